"""Windows of a shuffle: the rows and places of whole windows, gathered where they are taken."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.jagged import make_jagged
from torch_distinput.data.files import windows
from torch_distinput.data.files.operations import Key, Shuffle, read_windows, run
from torch_distinput.data.files.windows import WindowReader
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.plan.progress.place import Place

KEY = Key(seed=3, epoch=1)
LONG = "x" * 90
"""Rows so long are copied one by one, also where each fifth is missing; shorter ones together."""


def batch_of(numbers, filling=LONG):
    """A leaf of each kind that tells the numbers."""
    texts = [None if n % 5 == 4 else f"{n}{filling}" for n in numbers]
    lengths = [n % 3 for n in numbers]
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64)
    return {
        "tensor": torch.tensor(numbers, dtype=torch.int64),
        "list": texts,
        "packed": tdi.PackedStrings.from_list(texts, str)[0 : len(texts)],
        "bytes": tdi.PackedStrings.from_list([b"%d" % n for n in numbers], bytes),
        "array": np.array([str(n) for n in numbers], object),
        "jagged": make_jagged(torch.arange(int(offsets[-1])), offsets),
    }


def chunks_of(sizes):
    first = 0
    for number, size in enumerate(sizes):
        ids = np.stack([np.full(size, number), np.arange(first, first + size)], axis=1)
        place = Cursor(start=Place("here"), skip=first, num_touched=number + 1)
        yield Chunk(data=batch_of(range(first, first + size)), ids=ids, place=place)
        first += size


def seen(batch):
    """A batch as plain values."""
    return {
        name: [row.tolist() for row in leaf.unbind()]
        if isinstance(leaf, torch.Tensor)
        else list(leaf)
        for name, leaf in batch.items()
    }


def taken(reader, counts):
    """What a reader hands out where it is asked for these numbers of rows, or to pass over some."""
    found = []
    for count, skips in counts:
        chunk = None if skips else reader.take(count)
        if skips:
            found.append(reader.skip(count))
        elif chunk is not None:
            found.append((seen(chunk.data), chunk.ids.tolist(), chunk.place))
    return found


sizes = st.lists(st.integers(1, 9), max_size=6)


@pytest.mark.slow
@given(sizes, st.integers(1, 20), st.lists(st.tuples(st.integers(1, 12), st.booleans())))
def test_rows_and_places_are_those_of_whole_windows(sizes, buffer_size, counts):
    """However many are taken or passed over at a time, within a window and across some."""
    operations = [Shuffle(buffer_size)]

    def upstream(_, place):
        return chunks_of(sizes)

    whole = ChunkReader(run(upstream, operations, KEY, Cursor()))
    found = read_windows(upstream, operations, KEY, Cursor())
    assert taken(whole, counts) == taken(WindowReader(found, ReadLog(), None), counts)


def test_an_operation_behind_a_shuffle_sees_whole_windows():
    operations = [Shuffle(4), Shuffle(4)]
    assert read_windows(lambda *_: iter(()), operations[:1], KEY, Cursor()) is not None
    last = [*operations, tdi.FileDataset("x").take(3).operations[0]]
    assert read_windows(lambda *_: iter(()), last, KEY, Cursor()) is None


@pytest.mark.slow
@given(sizes.filter(len), st.sampled_from(["", LONG]), st.data())
def test_a_pool_takes_what_joined_batches_would(sizes, filling, data):
    ends = np.cumsum(sizes).tolist()
    batches = [batch_of(range(end - size, end), filling) for size, end in zip(sizes, ends)]  # noqa: B905
    chosen = np.array(data.draw(st.lists(st.integers(0, ends[-1] - 1), min_size=1)), np.int64)
    expected = rows.take_rows(rows.concat_rows(batches), chosen)
    assert seen(expected) == seen(rows.RowPool(batches).take(chosen))


def test_a_window_is_let_go_before_the_next_is_filled():
    """Else two of them would be in memory."""
    held = []

    def upstream(_, place):
        for chunk in chunks_of([4, 4]):
            gc.collect()
            held.append([at() is not None for at in refs])
            refs.append(weakref.ref(chunk.data["tensor"]))
            yield chunk
            del chunk

    refs = []
    reader = WindowReader(
        read_windows(upstream, [Shuffle(4)], KEY, Cursor()), ReadLog(), None
    )
    while reader.take(2) is not None:
        pass
    assert [[], [False]] == held


@pytest.mark.slow
@given(sizes, st.integers(1, 20), st.integers(1, 9))
def test_pieces_are_the_window(sizes, buffer_size, piece):
    """In order, each row at its place."""

    def upstream(_, place):
        return chunks_of(sizes)

    def played():
        chunks = list(run(upstream, [Shuffle(buffer_size)], KEY, Cursor()))
        return [
            (chunk.ids[row].tolist(), chunk.place.after(row))
            for chunk in chunks
            for row in range(chunk.num_rows)
        ]

    whole = played()
    assert sum(sizes) == len(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_PIECE_BYTES", 400 * piece)
        cut = played()
    assert whole == cut


def test_an_operation_behind_a_shuffle_holds_one_window():
    """Not the one before as well."""
    held, refs = [], []

    def upstream(_, place):
        for chunk in chunks_of([4, 4, 4]):
            gc.collect()
            held.append([at() is not None for at in refs])
            refs.append(weakref.ref(chunk.data["tensor"]))
            yield chunk
            del chunk

    for chunk in run(upstream, [Shuffle(4)], KEY, Cursor()):
        del chunk
    assert [[], [False], [False, False]] == held
