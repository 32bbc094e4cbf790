"""What is said of batches whose structures differ."""

from __future__ import annotations

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.engine.same_data import name_change
from torch_distinput.errors import SourceError
from torch_distinput.testing import simulate


def test_a_long_difference_is_told_by_what_differs():
    """Of hundreds of parts, those first that only one of them has."""
    before = {f"batch[{n}]": "torch.int64" for n in range(300)}
    now = {f"batch[{n}]": "torch.int64" for n in range(301)}
    had, got = name_change(before, now, has_one_kind=True)
    assert had.startswith("the parts ['batch[0]', ")
    assert had.endswith("'batch[7]'] and 292 more")
    assert got.startswith("the parts ['batch[300]', 'batch[0]', ")
    assert name_change(before, now, has_one_kind=False) is None


class Field:
    """A key without a name: each process has one of its own, at another address."""


def test_keys_are_called_the_same_on_all_workers():
    """Else batches and values of one structure would be told to differ."""

    def work(strategy):
        key = Field()
        rows = [{key: n, ("pair", key): 2 * n} for n in range(4)]
        seen = 0
        for step in strategy.distribute_dataset(rows, global_batch_size=4):
            seen += step["pair", key].sum()
        return strategy.reduce("sum", {key: seen})[key].item()

    assert [12, 12] == simulate(work, num_workers=2)


@pytest.mark.parametrize("values", [(torch.ones(2), None), (None, torch.ones(2))])
def test_none_is_called_by_its_name(values):
    """It is no leaf, so that the leaves alone would look as if one was missing."""
    examples = [{"x": {"mask": value, "y": 1}} for value in values]
    number = values.index(None)
    words = rf"; row {number} holds None at example\['x'\]\['mask'\]"
    with pytest.raises(SourceError, match=words):
        next(iter(one().distribute_dataset(examples, global_batch_size=2)))


class Broken:
    """A dataset, one example of which cannot be read."""

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return 1 // (index - self.broken) and index

    def read_in_order(self):
        return map(self.__getitem__, range(8))


def play_mixture(second, state=None):
    mixture = tdi.mix({"a": [*range(8)], "b": second}, weights=[1, 1])
    dataset = one().distribute_dataset(mixture, global_batch_size=4)
    if state is not None:
        dataset.load_state_dict(state)
    step, *_ = dataset.steps()
    return step.state_dict()


@pytest.mark.parametrize("index", [0, 5])
@pytest.mark.parametrize("source", [Broken, lambda index: Broken(index).read_in_order])
def test_the_source_of_a_mixture_is_named(index, source):
    """Its examples are counted by itself, also where it is looked at before the first step."""
    words = f"Source 'b' of a mixture: The source raised ZeroDivisionError at example {index}"
    with pytest.raises(SourceError, match=words):
        play_mixture(source(index))


def test_the_source_of_a_mixture_is_named_where_it_is_read_again():
    """After a restart, up to where it was."""
    state = play_mixture(Broken(9).read_in_order)
    with pytest.raises(SourceError, match="Source 'b' of a mixture: .* at example 1"):
        play_mixture(Broken(1).read_in_order, state)


def refuse(examples):
    raise ZeroDivisionError(len(examples))


@pytest.mark.parametrize(
    ("size", "shown"), [(2, "0, 1"), (20, f"{', '.join(map(str, range(16)))} and 4 more")]
)
@pytest.mark.parametrize("loading", [{}, {"num_workers": 1}, {"num_threads": 1}], ids=str)
def test_the_examples_that_make_no_batch_are_named(size, shown, loading):
    """What collates them knows no more than their places in the batch."""
    data = one().distribute_dataset(
        [*range(20)], global_batch_size=size, collate_fn=refuse, **loading
    )
    words = rf"raised ZeroDivisionError at the batch of examples {shown}: {size}"
    with pytest.raises(SourceError, match=words):
        next(iter(data))
