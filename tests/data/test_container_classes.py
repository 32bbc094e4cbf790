"""Batches of a user's classes of dict, tuple and list: what becomes of them."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import pytest
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.batch.tree import flatten, map_leaves


class ScaledList(list):
    def __init__(self, values):
        super().__init__([value / 2 for value in values])


def test_a_batch_of_a_class_of_lists():
    batch = ScaledList([torch.tensor([2.0, 4.0]), torch.tensor([6.0, 8.0])])
    part = rows.slice_rows(batch, 1, 2)
    assert (list, [[2.0], [4.0]]) == (type(part), [leaf.tolist() for leaf in part])


class Tagged(dict):
    """Needs more than its values."""

    def __init__(self, *args, tag, **kwargs):
        super().__init__(*args, **kwargs)
        self.tag = tag


class Pair(tuple):
    """Takes its values one by one."""

    __slots__ = ()

    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))


class Forgetful(dict):
    """Takes something else than its values."""

    def __init__(self, name=""):
        super().__init__()
        self.name = name


def forgetful(**values):
    """Filled after it is made."""
    made = Forgetful("a")
    made.update(values)
    return made


class Scaled(dict):
    """Makes others of its values."""

    def __init__(self, values):
        super().__init__({key: value / 2 for key, value in values.items()})


class ScaledInside(dict):
    """The same of those in a dict or list inside of it, which it makes anew."""

    def __init__(self, values):
        super().__init__(
            {
                key: [part / 2 for part in value]
                if isinstance(value, list)
                else {name: part / 2 for name, part in value.items()}
                for key, value in values.items()
            }
        )


class ScaledPair(tuple):
    __slots__ = ()

    def __new__(cls, values):
        return super().__new__(cls, [value / 2 for value in values])


@pytest.mark.parametrize(
    ("example", "plain"),
    [
        (Scaled({"a": 2.0}), {"a": [1, 1]}),
        (ScaledPair([2.0, 4.0]), ([1, 1], [2, 2])),
        (ScaledInside({"a": {"b": 2.0}}), {"a": {"b": [1, 1]}}),
        (ScaledInside({"a": [2.0, 4.0]}), {"a": ([1, 1], [2, 2])}),
        (Tagged({"a": 1, "b": 2}, tag="t"), {"a": [1, 1], "b": [2, 2]}),
        (Pair(1, 2), ([1, 1], [2, 2])),
        (forgetful(a=1), {"a": [1, 1]}),
        (torch.Size([3, 4]), ([3, 3], [4, 4])),
        ({"x": Tagged({"a": torch.Size([3])}, tag="t")}, {"x": {"a": ([3, 3],)}}),
    ],
    ids=[
        *("scaled", "scaled tuple", "scaled inside", "scaled list inside", "mapping"),
        *("tuple", "other arguments", "shape", "nested"),
    ],
)
def test_containers_that_their_values_do_not_make_become_plain(example, plain):
    """As in default_collate; also from batch to batch."""
    for _ in range(2):
        batch = collate_examples([example, example])
        assert plain == map_leaves(lambda leaf: leaf.tolist(), batch)
        assert {type(plain)} == {type(batch), type(rows.slice_rows(batch, 0, 1))}
        assert flatten(batch)[1] == flatten(rows.drop_rows(batch))[1]


def test_a_class_that_became_plain_is_said_once(caplog):
    """Nothing is silent."""
    caplog.set_level("INFO")
    other = type("Other", (Pair,), {})
    for _ in range(2):
        collate_examples([other(1, 2)])
    assert 1 == len(caplog.records)
    assert "Other'> cannot be made of its values (TypeError" in caplog.text


class Copying(dict):
    """It makes lists and dicts of its own, as classes do whose keys are attributes, too."""

    def __init__(self, values):
        made = {
            key: Copying(value) if isinstance(value, dict) else [*value]
            for key, value in values.items()
        }
        super().__init__(made)
        self.__dict__ = self


def test_a_class_that_copies_lists_stays(caplog):
    given = Copying({"a": ["x", "y"], 1: ["z", "z"], "inside": {"b": ["u", "v"]}})
    batch = rows.slice_rows(given, 1, 2)
    assert {Copying} == {type(batch), type(batch["inside"])}
    assert {"a": ["y"], 1: ["z"], "inside": {"b": ["v"]}} == dict(batch)
    assert not caplog.records


@dataclasses.dataclass
class Cached:
    a: object

    @cached_property
    def double(self):
        return self.a * 2


def test_what_a_class_makes_again_is_not_lost(caplog):
    example = Cached(torch.ones(2))
    assert 2 == example.double[0]
    assert [2.0] == rows.slice_rows(example, 1, 2).double.tolist()
    assert not caplog.records


def test_attributes_that_are_lost_are_said_once(caplog):
    tagged = type("NewlyTagged", (Tagged,), {})
    for _ in range(2):
        collate_examples([tagged({"a": 1}, tag="t")] * 2)
    assert ["makes again: tag" in record.getMessage() for record in caplog.records] == [True]


@dataclasses.dataclass
class Elsewhere:
    """Keeps its fields in a table, as a tensorclass does."""

    x: torch.Tensor
    y: object = None

    def __setattr__(self, name, value):
        self.__dict__.setdefault("_table", {})[name] = value

    def __getattribute__(self, name):
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return self._table[name]


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    y: object = None


@dataclasses.dataclass
class WithDefault:
    x: torch.Tensor
    y: object = None


def test_a_field_that_was_never_set_is_that_of_the_class():
    batch = object.__new__(WithDefault)
    batch.x = torch.arange(4)
    part = rows.slice_rows(batch, 1, 3)
    assert (WithDefault, [1, 2], None) == (type(part), part.x.tolist(), part.y)


@dataclasses.dataclass
class Lazy:
    """Makes a field when it is first asked for."""

    x: torch.Tensor
    doubled: torch.Tensor = dataclasses.field(init=False)

    def __getattr__(self, name):
        if name != "doubled":
            raise AttributeError(name)
        return self.x * 2


def test_a_field_that_is_made_when_asked_for_leaves_the_class():
    part = rows.slice_rows(Lazy(torch.arange(4)), 1, 3)
    assert (Lazy, [1, 2], [2, 4]) == (type(part), part.x.tolist(), part.doubled.tolist())


@pytest.mark.parametrize("kind", [Elsewhere, Slotted, WithDefault])
def test_a_dataclass_is_made_by_setting_its_fields_or_becomes_a_dict(kind):
    batch = kind(torch.arange(4), ["a", "b", "c", "d"])
    part = rows.slice_rows(batch, 1, 3)
    is_made = kind is not Elsewhere
    values = (part.x, part.y) if is_made else (part["x"], part["y"])
    assert ((kind if is_made else dict), [1, 2], ["b", "c"]) == (
        type(part), values[0].tolist(), values[1],
    )  # fmt: skip
