"""Batches in which a list has something for each example: a list of tensors is one of columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import torch_distinput as tdi
from torch_distinput.testing import simulate


class Vectors(IterableDataset):
    """Eight, each of its number."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return (torch.full((self.length,), float(number)) for number in range(8))


class Indexed(Dataset):
    """The same with an index."""

    def __init__(self, length):
        self.vectors = list(Vectors(length))

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.vectors[index]


class Whole(Indexed):
    """Gives two columns for the indices of a batch."""

    def __getitems__(self, indices):
        rows = torch.stack([self.vectors[index] for index in indices])
        return [rows, rows + 1]


class Box:
    """Is no container, so it is one row."""

    def __init__(self, value):
        self.value = value


def batches_of(source, **keywords):
    """What one worker gets."""
    return list(tdi.OneDeviceStrategy("cpu").distribute_dataset(source, **keywords))


COLLATES = {
    "as they are": lambda examples: examples,
    "a tuple": tuple,
    "a column of them": lambda examples: {"x": list(examples), "y": torch.stack(examples)},
    "after others": lambda examples: (torch.stack(examples), (*examples, None), list(examples)),
    "zipped": lambda examples: tuple(zip(*[(each, each) for each in examples], strict=True)),
    "in dicts": lambda examples: [{"x": each} for each in examples],
}


@pytest.mark.parametrize("length", [4, 16])  # 4: as many as examples
@pytest.mark.parametrize("kind", [Vectors, Indexed])
@pytest.mark.parametrize("collate", COLLATES.values(), ids=COLLATES)
def test_a_list_of_tensors_is_not_taken_for_columns(collate, kind, length):
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(DataLoader(kind(length), batch_size=4, collate_fn=collate))


@pytest.mark.parametrize("kind", [Vectors, Indexed])
def test_a_list_of_new_tensors_neither(kind):
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(DataLoader(kind(16), 4, collate_fn=lambda batch: [each + 1 for each in batch]))


@pytest.mark.parametrize("collate", [list, lambda batch: {"x": list(batch)}])
def test_examples_of_a_stream_that_are_batched_here(collate):
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(Vectors(4), global_batch_size=4, collate_fn=collate)


@pytest.mark.parametrize("length", [4, 16])
def test_examples_of_a_subset(length):
    """Torch gives it ``__getitems__``, whatever its dataset has."""
    half = Subset(Subset(Indexed(length), range(8)), range(4))
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(half, global_batch_size=4, collate_fn=list)


CORNERS = [{"x": torch.ones(2), "box": [n, n + 1, n + 2, n + 3]} for n in range(8)]
"""As many values each as there are examples in a batch, in lists of Python's."""


@pytest.mark.parametrize(
    "made",
    [
        lambda box: {"corners": box},
        lambda box: (torch.tensor(box), None),
        np.array,
        torch.tensor,
    ],
)
def test_lists_of_examples_in_containers_or_tensors_are_no_columns(made):
    def collate(examples):
        x = torch.stack([each["x"] for each in examples])
        return {"x": x, "boxes": [made(each["box"]) for each in examples]}

    for source in (CORNERS, DataLoader(CORNERS, 4, collate_fn=collate)):
        keywords = {} if isinstance(source, DataLoader) else {"collate_fn": collate}
        keywords |= {} if isinstance(source, DataLoader) else {"global_batch_size": 4}
        with pytest.raises(tdi.SourceError, match=r"for each example at batch\['boxes'\]"):
            batches_of(source, **keywords)


def test_columns_of_features_are_as_they_may_be():
    """Three of three examples each, which are equal: rows and columns look the same."""
    rows = [[1, 2, 3]] * 3 + [[0, 0, 0]] * 3 + [[1, 2, 3], [4, 5, 6], [7, 8, 9]]

    def features(examples):
        return torch.tensor(examples).unbind(1)

    played = batches_of(rows, global_batch_size=3, collate_fn=features)
    assert [[1, 1, 1], [0, 0, 0], [1, 4, 7]] == [batch[0].tolist() for batch in played]


def test_a_list_of_columns_that_is_as_long_by_chance():
    """One of them may be a value of its example, or have nothing in it."""

    def play(columns, size):
        return batches_of(DataLoader(Vectors(size), batch_size=size, collate_fn=columns))

    assert 4 == len(play(lambda x: (torch.stack(x), x[1]), 2))
    assert 8 == len(play(lambda x: [x[0]], 1))
    with pytest.raises(tdi.SourceError, match="one row per example, got 2 rows for 3 examples"):
        batches_of(
            Indexed(3),
            global_batch_size=3,
            collate_fn=lambda x: (torch.stack(x[:2]), torch.stack(x[:2]), {"none": None}),
        )


def test_loader_processes_refuse_them():
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(DataLoader(Vectors(4), batch_size=4, num_workers=1, collate_fn=list))


def test_files_and_mixtures_refuse_them(tmp_path):
    (tmp_path / "numbers.txt").write_text("".join(f"{number}\n" for number in range(8)))
    files = tdi.FileDataset(tmp_path / "numbers.txt").map(lambda line: torch.full((4,), int(line)))
    weights = {"a": 1, "b": 1}
    mixed = [tdi.mix({"a": each, "b": each}, weights=weights) for each in (Indexed(4), files)]
    for source in (files, *mixed):
        with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
            batches_of(source, global_batch_size=4, collate_fn=list)


@pytest.mark.parametrize(("size", "num_columns"), [(2, 2), (2, 3), (3, 3), (5, 3)])
def test_a_stream_may_cut_its_examples_into_other_rows(size, num_columns):
    """There may be as many columns as examples in a batch, or in the last one."""

    def cut(examples):
        rows = torch.cat(examples)
        return tuple(rows + number for number in range(num_columns))

    played = batches_of(DataLoader(Vectors(6), batch_size=size, collate_fn=cut))
    assert 48 == sum(len(batch[0]) for batch in played)


@pytest.mark.parametrize("num_columns", [2, 3])
def test_a_stream_may_drop_rows(num_columns):
    """One row is left of a batch with as many examples as columns, of their size or their kind."""

    class Pairs(Vectors):
        def __iter__(self):
            return ((each, each[0].long(), -each[:1]) for each in super().__iter__())

    def keep(examples):
        kept = [each for each in examples if each[1] % num_columns == 0]
        return tuple(map(torch.stack, zip(*kept, strict=True)))[:num_columns]

    loader = DataLoader(Pairs(5), batch_size=num_columns, collate_fn=keep)
    played = batches_of(loader)
    assert list(range(0, 8, num_columns)) == [int(batch[1]) for batch in played]


@pytest.mark.parametrize(
    "columns",
    [(torch.ones(6, 3), torch.ones(6, 3)), (torch.ones(6, 3), torch.arange(6), torch.ones(6))],
    ids=["a pair of one kind", "three of other kinds"],
)
def test_a_stream_of_chunks_may_drop_rows(columns):
    """As many rows are left of a batch of chunks as each has."""

    class Chunks(IterableDataset):
        def __iter__(self):
            return iter([columns] * 6)

    def merge(examples):
        merged = map(torch.cat, zip(*examples, strict=True))
        return tuple(column[:: len(examples)] for column in merged)

    played = batches_of(DataLoader(Chunks(), batch_size=len(columns), collate_fn=merge))
    assert [6] * (6 // len(columns)) == [len(batch[1]) for batch in played]


def test_a_pair_of_columns_that_is_wrong_is_called_so():
    """As long as a batch of two examples."""
    cut = {
        "got 1 row for 2 examples.*tdi.pack": lambda x: (x[0][None], x[1][None]),
        "the same number of rows": lambda x: (torch.stack(x), torch.cat(x)),
    }
    for words, collate in cut.items():
        with pytest.raises(tdi.SourceError, match=words):
            batches_of(DataLoader(Indexed(3), batch_size=2, collate_fn=collate))


def test_arrays_are_columns_as_tensors_are():
    rows = [np.full(4, float(number)) for number in range(8)]
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(rows, global_batch_size=4, collate_fn=list)


def test_a_batch_that_the_dataset_gave_may_be_a_list():
    """Two columns, and two rows."""

    class Loader(DataLoader):
        """Whose batches are taken as they come."""

        def __iter__(self):
            return super().__iter__()

    for collate in (lambda batch: batch, tuple, lambda batch: [batch[0].float(), batch[1]]):
        for source in (Whole(3), Subset(Whole(3), range(8))):
            played = batches_of(source, global_batch_size=2, collate_fn=collate)
            played += batches_of(Loader(source, batch_size=2, collate_fn=collate))
            assert [[(2, 3), (2, 3)]] * 8 == [[tuple(column.shape) for column in x] for x in played]


def test_a_batch_that_the_dataset_gave_may_be_anything():
    """Also without a length."""

    class Boxed(Whole):
        def __getitems__(self, indices):
            return Box(super().__getitems__(indices))

    played = batches_of(Boxed(3), global_batch_size=2, collate_fn=lambda box: box.value)
    assert [[(2, 3), (2, 3)]] * 4 == [[tuple(column.shape) for column in x] for x in played]


def test_examples_that_a_dataset_gives_together_are_not_taken_for_columns():
    class Together(Indexed):
        def __getitems__(self, indices):
            return [self.vectors[index] for index in indices]

    for length in (4, 16):
        loader = DataLoader(Together(length), batch_size=3, collate_fn=tuple)
        with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
            batches_of(loader)


def test_packed_rows_in_a_list():
    rows = tdi.pack([torch.arange(3)] * 8, length=6, tokens=None)
    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(rows, global_batch_size=4, collate_fn=list)


def test_many_new_tensors_of_another_size_neither():
    """As pictures that are cut and scaled: no batch has that many columns."""

    def halves(examples):
        return [each[:2] for each in examples]

    class Long(Vectors):
        def __iter__(self):
            return iter([torch.ones(self.length)] * 12)

    with pytest.raises(tdi.SourceError, match="with something for each example at batch"):
        batches_of(DataLoader(Long(4), batch_size=9, collate_fn=halves))


def test_what_the_error_advises_is_delivered():
    def jagged(examples):
        return torch.nested.nested_tensor(examples, layout=torch.jagged)

    def boxed(examples):
        return list(map(Box, examples))

    def work(strategy, collate):
        dataset = strategy.distribute_dataset(Indexed(5), global_batch_size=4, collate_fn=collate)
        return [row for batch in dataset for row in batch]

    for collate in (jagged, boxed):
        ranks = simulate(lambda strategy, by=collate: work(strategy, by), num_workers=2)
        values = [getattr(row, "value", row) for rows in ranks for row in rows]
        assert sorted(float(value[0]) for value in values) == list(range(8))
        assert all(value.shape == (5,) for value in values)
