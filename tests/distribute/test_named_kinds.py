"""What is said of batches whose structures differ."""

from __future__ import annotations

import pytest
import torch

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
