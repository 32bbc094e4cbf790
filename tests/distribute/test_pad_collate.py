"""Rows padded to the longest of a replica's batch, or of the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.testing import simulate


def rows(*lengths):
    """Lists of ones."""
    return [[1] * length for length in lengths]


@pytest.mark.parametrize(
    "examples",
    [rows(1, 3), [torch.ones(1, dtype=torch.long), torch.ones(3, dtype=torch.long)],
     [np.ones(1, np.int64), np.ones(3, np.int64)]],
)  # fmt: skip
def test_sequences_are_padded_to_the_longest(examples):
    """Lists, tensors and arrays."""
    assert [[1, 7, 7], [1, 1, 1]] == tdi.pad_collate(7)(examples).tolist()


def test_columns_are_padded_each_with_its_number():
    """What is not named is collated as ever, and keeps its place."""
    examples = [
        {"ids": [5], "name": "a", "labels": torch.tensor([1]), "n": 1},
        {"ids": [6, 6], "name": "b", "labels": torch.tensor([2, 2]), "n": 2},
    ]
    batch = tdi.pad_collate({"ids": 0, "labels": -100}, mask="mask", multiple_of=4)(examples)
    assert ["ids", "name", "labels", "n", "mask"] == list(batch)
    assert [[5, 0, 0, 0], [6, 6, 0, 0]] == batch["ids"].tolist()
    assert [[1, -100, -100, -100], [2, 2, -100, -100]] == batch["labels"].tolist()
    assert [[True, False, False, False], [True, True, False, False]] == batch["mask"].tolist()
    assert (["a", "b"], [1, 2]) == (batch["name"], batch["n"].tolist())


def test_one_number_pads_all_sequences():
    """Of dicts and tuples; rows may have more dimensions."""
    batch = tdi.pad_collate()([{"x": torch.ones(n, 2), "n": n} for n in (1, 2)])
    assert (2, 2, 2) == batch["x"].shape
    x, n = tdi.pad_collate()([([1], 1), ([1, 1], 2)])
    assert ([[1, 0], [1, 1]], [1, 2]) == (x.tolist(), n.tolist())


def test_a_list_without_numbers_has_the_type_of_the_others():
    assert torch.int64 == tdi.pad_collate()(rows(0, 2)).dtype


@pytest.mark.parametrize(
    ("fill", "examples", "dtype"),
    [
        (0, rows(0, 0), torch.int64),
        (0.0, rows(0), torch.float32),
        (0, [[], torch.ones(0, dtype=torch.int32)], torch.int32),
        (0, [np.ones(0, np.float64), []], torch.float64),
    ],
)
def test_lists_without_any_number_have_the_type_of_the_fill(fill, examples, dtype):
    """Which lists share a batch is a matter of the cut; rows that have a dtype keep it."""
    assert dtype == tdi.pad_collate(fill)(examples).dtype
    assert dtype == tdi.pad_collate({"x": fill})([{"x": row} for row in examples])["x"].dtype


@pytest.mark.parametrize(
    ("collate", "examples", "words"),
    [
        (tdi.pad_collate({"x": 0}), [{"x": [1]}, {"y": [1]}], "columns x in each .* got y"),
        (tdi.pad_collate({"x": 0}), rows(1), "examples that are dicts"),
        (tdi.pad_collate({"x": 0}), [{"x": "word"}], "lists of numbers, got a str at x"),
        (tdi.pad_collate({"x": 0}), [{"x": 3}], "got a number at x"),
        (tdi.pad_collate({"x": 0}, mask="x"), [{"x": [1]}], "add a column 'x'"),
        (tdi.pad_collate(0.5), rows(1), "torch.int64 holds to fill example, got 0.5"),
        (tdi.pad_collate(300), [torch.ones(1, dtype=torch.uint8)], "holds to fill"),
        (tdi.pad_collate(), [torch.ones(1), torch.ones(1, 2)], "one dtype that differ in"),
        (tdi.pad_collate(), [torch.ones(1), torch.ones(1).long()], "one dtype that differ in"),
        (tdi.pad_collate(longest_of="step"), rows(1), "but it was called without"),
    ],
)
def test_rows_that_cannot_be_padded(collate, examples, words):
    """Each with the column and the cure."""
    with pytest.raises(ValueError, match=words):
        collate(examples)


@pytest.mark.parametrize(
    ("values", "keywords", "error", "words"),
    [
        ("0", {}, TypeError, "expects a number"),
        ({}, {}, ValueError, "one column or more"),
        (0, {"longest_of": "rank"}, ValueError, "'replica' or 'step', got 'rank'"),
        (0, {"multiple_of": 0}, ValueError, "multiple_of"),
    ],
)
def test_what_is_misspelt(values, keywords, error, words):
    with pytest.raises(error, match=words):
        tdi.pad_collate(values, **keywords)


LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]


def play_widths(longest_of, *, ranks=2, length=None, multiple_of=1, **keywords):
    """The width of each step on each worker, and the longest row there."""
    source = tdi.bucket(
        rows(*LENGTHS), length=length or LENGTHS, boundaries=(3, 5), window=8
    )
    collate = tdi.pad_collate(longest_of=longest_of, multiple_of=multiple_of)

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=4, shuffle=True, collate_fn=collate, **keywords
        )
        return [(b.shape[1], int(b.sum(1).max())) for b in dataset if len(b)]

    return simulate(work, num_workers=ranks)


@pytest.mark.parametrize("loaders", [0, 2])
def test_shapes_agree_on_all_ranks(loaders):
    """To the longest of the global batch, which each rank knows; else to that of its own rows."""
    steps = list(zip(*play_widths("step", num_workers=loaders), strict=False))
    for step in steps:
        assert {max(longest for _, longest in step)} == {width for width, _ in step}
    alone = [step for worker in play_widths("replica") for step in worker]
    assert all(width == longest for width, longest in alone)
    widths = [{width for width, _ in step} for step in zip(*play_widths("replica"), strict=False)]
    assert any(len(each) > 1 for each in widths)


def test_rows_of_a_mixture_are_padded_to_a_step():
    sources = {"a": rows(1, 5, 3, 7), "b": rows(2, 2, 9, 4)}
    mixture = tdi.mix(sources, weights=(1, 1), stop="all")
    source = tdi.bucket(mixture, length=len, boundaries=(3, 6), window=8)

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=4, collate_fn=tdi.pad_collate(longest_of="step")
        )
        return [tuple(batch.shape) for batch in dataset]

    assert [[(2, 3), (2, 9)]] * 2 == simulate(work, num_workers=2)


def test_widths_are_multiples():
    """For tensor cores."""
    widths = {width for worker in play_widths("step", multiple_of=8) for width, _ in worker}
    assert {8, 16} == widths


def test_a_row_that_is_longer_than_was_said_is_refused():
    """Else ranks would have other shapes."""
    with pytest.raises(tdi.SourceError, match="Let length= count what is padded"):
        play_widths("step", ranks=1, length=[1] * len(LENGTHS))


def test_a_step_is_looked_at_again_in_its_width():
    source = tdi.bucket(rows(*LENGTHS), length=len, boundaries=(3, 5), window=8)
    dataset = one().distribute_dataset(
        source, global_batch_size=4, collate_fn=tdi.pad_collate(longest_of="step", multiple_of=4)
    )
    state = dataset.state_dict()
    played = [batch.tolist() for batch in dataset]
    assert played[2] == dataset.replay(state, 2).batches[0].tolist()


@pytest.mark.parametrize(
    "source",
    [
        rows(1, 2),
        tdi.mix({"a": rows(1, 2)}, weights=(1,)),
    ],
)
def test_lengths_of_a_step_must_be_known(source):
    """Refused with the cure."""
    with pytest.raises(ValueError, match="lengths that are known beforehand"):
        one().distribute_dataset(
            source, global_batch_size=2, collate_fn=tdi.pad_collate(longest_of="step")
        )


def test_a_loader_that_pads_to_a_step_is_refused():
    """It does not say how long the longest is."""
    loader = DataLoader(rows(1, 2), batch_size=2, collate_fn=tdi.pad_collate(longest_of="step"))
    with pytest.raises(tdi.SourceError, match="called without"):
        list(one().distribute_dataset(loader))
