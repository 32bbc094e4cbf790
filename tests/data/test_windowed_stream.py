"""Streams that are read in windows: rows that a plan makes, and a place for each of them."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.street import stream_of, write_files
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.files.dataset import find_files
from torch_distinput.data.files.stream import FileStream
from torch_distinput.data.sources.examples import ExampleStream
from torch_distinput.data.sources.sequences.window_plan import MadeRows, OrderPlan, RowPlan
from torch_distinput.data.sources.sequences.windowed_stream import WindowedStream
from torch_distinput.plan.assignment.permutation import permute
from torch_distinput.plan.progress.place import list_place, read_place
from torch_distinput.plan.progress.route import Shard


class Made(MadeRows):
    """Rows that were made of a window."""

    def __init__(self, made):
        self.made = made

    @property
    def ids(self):
        """The id of the first number of a row, and its number in the window."""
        ids = [np.append(first, number) for number, (first, _) in enumerate(self.made)]
        return np.array(ids, dtype=np.int64) if ids else np.empty((0, 2), dtype=np.int64)

    @property
    def digest(self):
        """Of the rows."""
        return str([row for _, row in self.made])

    def take(self, start, stop):
        """Tuples of numbers."""
        return [row for _, row in self.made[start:stop]]


@dataclasses.dataclass(frozen=True)
class Joined(RowPlan):
    """Joins numbers up to a sum, and leaves zeros out: more rows, fewer, or none."""

    most: int = 6
    kind = "joined"
    recipe = MappingProxyType({})

    def collate(self, examples):
        """A list of rows."""
        return list(examples)

    def count_contents(self, examples):
        """Each number is a document of so many tokens; nobody asks here."""
        return np.array([(len(row), sum(row), self.most) for row in examples])

    def make_rows(self, examples, ids, key):
        """First fit, in order."""
        made = []
        for number, name in zip(examples, ids.tolist(), strict=True):
            if not number:
                continue
            if made and sum(made[-1][1]) + number <= self.most:
                made[-1] = (made[-1][0], (*made[-1][1], number))
            else:
                made.append((name, (number,)))
        return Made(made)


def windowed(numbers, window):
    """A stream of joined numbers."""
    inner = ExampleStream(stream_of(numbers), collate_examples)
    return WindowedStream(inner=inner, plan=Joined(), window=window)


def read(reader, size=3):
    """All rows, each with its id and place."""
    rows = []
    while (chunk := reader.take(size)) is not None:
        for row in range(chunk.num_rows):
            place = chunk.place.after(row)
            rows.append((chunk.data[row], tuple(np.ravel(chunk.ids[row]).tolist()), place))
    return rows


lists = st.lists(st.integers(0, 6), max_size=20)


@given(lists, st.integers(1, 7), st.integers(1, 5), st.data())
def test_rows_go_on_from_the_place_of_each(numbers, window, size, data):
    """Rows of a window are planned together; a place is that of its window, and rows of it."""
    stream = windowed(numbers, window)
    whole = read(stream.open(Shard()), size)
    parts = [numbers[first : first + window] for first in range(0, len(numbers), window)]
    expected = [
        row
        for part in parts
        for row in Joined().make_rows(part, np.arange(len(part)), None).take(0, None)
    ]
    assert expected == [row for row, _, _ in whole]
    for number, (_, _, place) in enumerate(whole):
        start = read_place(list_place(place.start))
        reader = stream.open(Shard(), start)
        assert place.skip == reader.skip(place.skip)
        rest = read(reader)
        assert [each[:2] for each in whole[number:]] == [each[:2] for each in rest]
    passed = data.draw(st.integers(0, len(whole) + 2))
    reader = stream.open(Shard())
    assert min(passed, len(whole)) == reader.skip(passed)
    assert whole[passed:] == [] or whole[passed][:2] == read(reader)[0][:2]


@dataclasses.dataclass(frozen=True)
class Turned(OrderPlan):
    """Puts each window in an order of its own."""

    kind = "turned"
    recipe = MappingProxyType({})

    def order(self, examples, key):
        """Keyed by the number of the window."""
        return permute(len(examples), key=(key.number,))


@given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 60))
def test_windows_that_are_passed_over_are_not_read(count, window, passed):
    """But counted: those behind them come in the same order."""
    inner = ExampleStream(stream_of(range(count)), collate_examples)
    stream = WindowedStream(inner=inner, plan=Turned(), window=window)
    whole = read(stream.open(Shard()))
    assert [(number, (number,)) for number in range(count)] == sorted(row[:2] for row in whole)
    reader = stream.open(Shard())
    assert min(passed, count) == reader.skip(passed)
    assert [row[:2] for row in whole[passed:]] == [row[:2] for row in read(reader)]


def test_a_place_names_the_window_and_where_it_begins():
    """No row is in it."""
    (*_, last) = read(windowed([5, 5, 5, 5, 5], 2).open(Shard()), 1)
    listed = list_place(last[2].start)
    assert ["joined", ["window", 2], ["plan", "[(5,)]"], ["skip", 4], ["from", None]] == listed
    assert 0 == last[2].skip


def test_a_place_of_another_plan_is_refused():
    place = read_place(["packed", ["window", 2], ["skip", 4], ["from", None]])
    with pytest.raises(tdi.ConfigurationError, match="a place of 'joined' with 1 inside"):
        windowed([1], 1).open(Shard(), place)


def test_a_file_is_touched_when_a_window_holds_a_row_of_it(tmp_path):
    """All files of a window with its first row."""
    dataset = tdi.FileDataset(write_files(tmp_path, [[1, 2, 3], [4, 5, 6], [1, 1, 1]])).map(int)
    listing = find_files(dataset)
    inner = FileStream(dataset=dataset, listing=listing, collate=collate_examples)
    stream = WindowedStream(inner=inner, plan=Joined(), window=4)
    rows = read(stream.open(Shard()), 1)
    assert [(1, 2, 3), (4,), (5,), (6, ), (1, 1), (1,)] == [row for row, _, _ in rows]
    assert [2, 2, 3, 3, 3, 3] == [place.num_touched for _, _, place in rows]
