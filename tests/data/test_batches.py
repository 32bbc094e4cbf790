"""Batches as trees: structure, rows, specs, collation, fingerprints."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.fast_paths import switched
from torch_distinput.data.batch import rows
from torch_distinput.data.batch import tree as structure
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.jagged import longest_row, make_jagged
from torch_distinput.data.batch.spec import merge_specs, spec_of, zero_rows
from torch_distinput.data.batch.tree import Examples, flatten, leaf_names, map_leaves, unflatten

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Item:
    """A container of the user's own."""

    x: object
    y: object = None


def jagged(*lengths):
    """A jagged tensor with rows of these lengths."""
    values = torch.arange(sum(lengths) * 2.0).reshape(-1, 2)
    return torch.nested.nested_tensor(list(values.split(list(lengths))), layout=torch.jagged)


TREES = [
    torch.ones(2),
    (torch.ones(2), ["a", "b"]),
    [torch.ones(2), torch.ones(2)],
    {"a": {"b": (torch.ones(2), None)}, "c": np.ones(2)},
    OrderedDict(z=torch.ones(2), a=[b"x", b"y"]),
    defaultdict(None, x=torch.ones(2)),
    UserDict(x=torch.ones(2)),
    Point(torch.ones(2), Item(torch.ones(2), ["a", "b"])),
    jagged(2, 1),
    {"text": tdi.PackedStrings.from_list(["a", None]), "x": torch.ones(2)},
    [tdi.PackedStrings.from_list([b"a", b""]), torch.ones(2)],
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_flatten_and_back(tree):
    """Leaves in order, containers of the same class."""
    leaves, structure = flatten(tree)
    back = unflatten(structure, leaves)
    assert (dict if isinstance(tree, defaultdict) else type(tree)) is type(back)
    assert all(a is b for a, b in zip(leaves, flatten(back)[0], strict=True))
    assert len(leaves) == len(leaf_names(structure))
    assert structure == flatten(map_leaves(lambda leaf: leaf, tree))[1]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_zero_rows_keep_the_kind(tree):
    """From a batch and from its spec alike."""
    assert 2 == rows.num_rows(tree)
    for empty in (rows.drop_rows(tree), rows.slice_rows(tree, 1, 1), zero_rows(spec_of(tree))):
        assert 0 == rows.num_rows(empty)
        assert flatten(tree)[1] == flatten(empty)[1]
        for leaf, none in zip(flatten(tree)[0], flatten(empty)[0], strict=True):
            assert type(leaf) is type(none)
            assert getattr(leaf, "dtype", 0) == getattr(none, "dtype", 0)
            if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
                assert leaf.shape[1:] == none.shape[1:]
                assert 0 == none.untyped_storage().nbytes()


@pytest.mark.parametrize(
    "leaf",
    [
        torch.arange(12).reshape(4, 3),
        torch.ones(4, 2, 3, 3).to(memory_format=torch.channels_last),
        np.array(["a", "b", "c", "d"]),
        [1, 2, 3, 4],
        Examples([(1, "a"), (2, "b"), (3, "c"), (4, "d")]),
        jagged(2, 0, 3, 1),
        tdi.PackedStrings.from_list(["a", None, "", "bc"]),
    ],
    ids=["tensor", "channels_last", "strings", "list", "examples", "jagged", "packed"],
)
def test_slices_join_to_the_whole(leaf):
    """Cut anywhere and concatenate: the same rows; take gives them in any order."""
    for cut in range(5):
        parts = [rows.slice_rows(leaf, 0, cut), rows.slice_rows(leaf, cut, 4)]
        assert shown(leaf) == shown(rows.concat_rows(parts))
    order = np.array([2, 0, 3])
    everything = shown(leaf)
    assert [everything[k] for k in order] == shown(rows.take_rows(leaf, order))


def width(batch):
    """What torch pads the rows of a jagged tensor to."""
    return torch.nested.to_padded_tensor(batch, 0.0).shape[1]


LINES, OFFSETS = torch.arange(6.0), torch.tensor([0, 3, 4, 6, 6])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.nested.nested_tensor_from_jagged(LINES, OFFSETS, max_seqlen=7), 7),
        (torch.nested.nested_tensor_from_jagged(LINES, OFFSETS), 3),
        (make_jagged(LINES, OFFSETS), 3),
    ],
    ids=["set by the user", "unknown", "ours"],
)
def test_pieces_of_a_jagged_batch_keep_its_width(batch, expected):
    """However many there are, and joined or taken again."""
    for cut in range(1, 4):
        parts = [rows.slice_rows(batch, 0, cut), rows.slice_rows(batch, cut, 4)]
        assert [expected] * 3 == list(map(width, [*parts, rows.concat_rows(parts)]))
    assert expected == width(rows.take_rows(batch, np.array([1, 3])))
    assert expected == longest_row(rows.drop_rows(batch))


def shown(leaf):
    """Rows as plain values."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return [row.tolist() for row in leaf.unbind()]
    return leaf.tolist() if hasattr(leaf, "tolist") else list(leaf)


def test_specs():
    """Sizes that differ become None; structures that differ are left alone."""
    one, other = spec_of({"x": torch.ones(2, 3)}), spec_of({"x": torch.ones(4, 5)})
    assert {"x": tdi.TensorSpec((None, None), torch.float32)} == merge_specs(one, other)
    assert one == merge_specs(one, spec_of(torch.ones(2)))
    assert tdi.TensorSpec((None, None, 2), torch.float32, torch.jagged) == spec_of(jagged(1, 2))
    assert tdi.TensorSpec((None,), bytes) == spec_of([b"x"])


def test_collate_for_plain_loaders():
    """Zero-row batches where default_collate raises."""
    examples = [{"x": torch.ones(2, dtype=torch.float16), "name": "a"}] * 3
    spec = spec_of(collate_examples(examples))
    collate = tdi.collate(spec)
    assert (3, 2) == tuple(collate(examples)["x"].shape)
    empty = collate([])
    assert (0, 2) == tuple(empty["x"].shape)
    assert torch.float16 is empty["x"].dtype
    assert [] == empty["name"]


def test_collate_keeps_lists_apart_from_rows():
    """A list in an example is a container, so it becomes a tuple of columns."""
    assert ([1, 3], [2, 4]) == tuple(c.tolist() for c in collate_examples([[1, 2], [3, 4]]))


@given(st.lists(st.integers(-5, 5), max_size=6), st.lists(st.integers(-5, 5), max_size=6))
def test_fingerprints_tell_data_apart(one, other):
    """Equal data, equal number; it is never 0 and fits 63 bits."""
    for kind in (torch.tensor, np.array, Examples):
        marks = fingerprint(kind(one)), fingerprint(kind(other))
        assert (one == other) == (marks[0] == marks[1])
        assert all(0 < mark < 2**63 for mark in marks)


def test_fingerprints_of_values_that_are_not_in_one_piece():
    """Dtype and shape count."""
    sparse = torch.eye(2).to_sparse()
    different = [
        sparse, torch.eye(3).to_sparse(), sparse.to(torch.float64), torch.ones(2, device="meta"),
    ]  # fmt: skip
    assert len(different) == len({fingerprint(data) for data in different})


def test_fingerprints_see_dtypes_shapes_and_strings():
    """And ignore what only has an address."""
    different = [
        torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(1, 2), ["a", "b"],
        ["ab", ""], torch.tensor(1.0), jagged(1, 2), jagged(2, 1),
    ]  # fmt: skip
    assert len(different) == len({fingerprint(data) for data in different})
    assert fingerprint([object()]) == fingerprint([object()])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_numbers_are_taken(dtype):
    """torch has no index_select for them."""
    taken = rows.take_rows(torch.from_numpy(np.arange(5, dtype=dtype)), np.array([3, 0]))
    assert taken.tolist() == [3, 0]


class Points(list):
    """Code for an example with it never finds it, as it is no plain list."""


@pytest.mark.parametrize(
    "value",
    [[1, 2], (1, 2), torch.Size([1, 2]), defaultdict(int, {"a": 1}), Points([1, 2])],
    ids=type,
)
def test_examples_of_one_structure_cost_code_once(value, monkeypatch):
    """Also where a class stands for another."""
    made = []
    compiled = structure.compile_leaves
    monkeypatch.setattr(structure, "compile_leaves", lambda *a: made.append(a) or compiled(*a))
    monkeypatch.setattr(structure, "_known_examples", {})
    example = {"x": value, "y": 1}
    batch = None
    for _ in range(20):
        batch = collate_examples([example, example])
    assert len(made) == (structure._MOST_KNOWN if isinstance(value, Points) else 1)
    assert [1, 1] == batch["y"].tolist()


some_leaves = st.one_of(
    st.just(torch.ones(2)), st.just(np.ones(2)), st.just(["a", "b"]), st.just([b"c"]), st.none()
)
keys = st.sampled_from("abc")
trees = st.recursive(
    some_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(Point._make),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(
            lambda found: defaultdict(list, found)
        ),
        st.lists(st.just(torch.zeros(1)), min_size=1, max_size=3),
    ),
    max_leaves=12,
)


@given(trees, trees)
def test_generated_code_does_what_the_walk_does(one, other):
    """Apart and together again, the first time, again, and after another tree of that type."""
    with switched("plain paths"):
        expected = [flatten(tree) for tree in (one, other)]
    with switched("fast paths"):
        for tree, (found, walked) in zip((one, other, one, other), expected * 2, strict=True):
            leaves, own = flatten(tree)
            assert walked == own
            assert all(a is b for a, b in zip(found, leaves, strict=True))
            again = unflatten(own, leaves)
            assert shape_of(tree) == shape_of(again)
            assert all(a is b for a, b in zip(leaves, flatten(again)[0], strict=True))


def test_large_structures_have_no_code_of_their_own():
    """Nor have deep ones trouble."""
    wide = {"a": tuple(torch.ones(1) for _ in range(400)), "b": (None, Point(["x"], [b"y"]))}
    found, whole = flatten(wide)
    again = unflatten(whole, found)
    assert 402 == len(found)
    assert shape_of(wide) == shape_of(again)
    assert Point(["x"], [b"y"]) == again["b"][1]


def shape_of(tree):
    """Classes and keys; a defaultdict comes back as a dict."""
    if isinstance(tree, dict):
        kind = dict if isinstance(tree, defaultdict) else type(tree)
        return kind, [(key, shape_of(value)) for key, value in tree.items()]
    if isinstance(tree, tuple) or (isinstance(tree, list) and isinstance(tree[0], torch.Tensor)):
        return type(tree), [shape_of(value) for value in tree]
    return type(tree)


def test_deep_containers_are_refused():
    """With words, not with whatever the interpreter says when its stack is full."""
    deep = 0
    for _ in range(150):
        deep = [deep, 0]
    assert 151 == len(structure.flatten_example(deep)[0])
    with pytest.raises(ValueError, match="nested at most 150 deep, got a list in 150 others"):
        structure.flatten_example((deep,))
