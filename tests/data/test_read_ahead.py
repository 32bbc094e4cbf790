"""Chunks read ahead by threads, and units that are passed over."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest
import torch

from torch_distinput.data.files import read_ahead
from torch_distinput.data.files.read_ahead import ReadAhead
from torch_distinput.data.files.unit_reader import UnitReader
from torch_distinput.data.files.work_units import Unit
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.data.stream.chunk import Chunk


def chunk(number, rows=2):
    """Rows with one number."""
    return Chunk(data=torch.full((rows,), number), ids=np.arange(rows))


def readers():
    """Threads that read ahead."""
    name = "torch_distinput-file-reader"
    return [thread for thread in threading.enumerate() if name in thread.name]


def joined(threads):
    """Whether they end."""
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


class TestReadAhead:
    """One thread, one iterator."""

    def test_order_and_end(self):
        """As without it."""
        ahead = ReadAhead(lambda: map(chunk, range(100)))
        assert list(range(100)) == [int(found.data[0]) for found in ahead]
        assert next(ahead, None) is None

    def test_bound(self, monkeypatch):
        """It reads so many bytes ahead, and one chunk of any size."""
        monkeypatch.setattr(read_ahead, "_HELD_BYTES", 3 * chunk(0).data.nbytes)
        made: list = []
        full = threading.Event()

        def start():
            for number in range(50):
                made.append(number)
                if number == 3:
                    full.set()  # this one has to wait
                yield chunk(number)

        ahead = ReadAhead(start)
        assert full.wait(60)
        assert [0, 1, 2, 3] == made
        for number in range(50):
            assert int(next(ahead).data[0]) == number
            assert len(made) <= number + 5

    def test_an_error_comes_in_its_place(self):
        """After what was read before it; then it is over."""

        def start():
            yield chunk(0)
            raise ValueError("broken")

        ahead = ReadAhead(start)
        assert next(ahead).num_rows == 2
        with pytest.raises(ValueError, match="broken"):
            next(ahead)
        assert next(ahead, None) is None

    @pytest.mark.parametrize("how", ["close", "drop"])
    def test_leaves(self, how):
        """A thread whose chunks nobody wants."""
        before = set(readers())
        ahead = ReadAhead(lambda: map(chunk, itertools.count()))
        next(ahead)
        threads = set(readers()) - before
        assert threads
        if how == "close":
            ahead.close()
            with pytest.raises(StopIteration):
                next(ahead)
        else:
            del ahead
            gc.collect()
        assert joined(threads)


class TestUnits:
    """Units in order."""

    SIZES = (3, 0, 5, 1, 4)

    def units(self, *, counted):
        """Rows are numbered over all units."""
        return [
            Unit(file=k, part=Part(start=0, num_records=size if counted else None))
            for k, size in enumerate(self.SIZES)
        ]

    def reader(self, *, counted, threads=0, exact=False):
        """A reader, and the (unit, start, rows) that it read."""
        read: list = []
        firsts = list(itertools.accumulate(self.SIZES, initial=0))

        def start(unit):
            stop = unit.part.stop if unit.part.stop is not None else self.SIZES[unit.file]
            read.append((unit.file, unit.part.start, stop - unit.part.start))
            for row in range(unit.part.start, stop):
                yield chunk(firsts[unit.file] + row, 1)

        units = self.units(counted=counted)
        return UnitReader(units, start, ReadLog(), exact=exact, threads=threads), read

    @pytest.mark.parametrize("counted", [False, True])
    @pytest.mark.parametrize("threads", [0, 2, 9])
    @pytest.mark.parametrize("exact", [False, True])
    def test_takes_and_skips(self, counted, threads, exact):
        """Every way to read all of it gives the same rows."""
        exact = exact and counted
        for skip, take in itertools.product(range(6), range(1, 7)):
            reader, _ = self.reader(counted=counted, threads=threads, exact=exact)
            position = 0
            while True:
                skipped = reader.skip(skip)
                assert skipped == min(skip, 13 - position)
                position += skipped
                found = reader.take(take)
                rows = [] if found is None else found.data.tolist()
                assert rows == list(range(position, min(13, position + take)))
                position += len(rows)
                if not rows:
                    break
            assert position == 13

    def test_counted_units_are_passed_over_unread(self):
        """Those that lie in what is skipped."""
        reader, read = self.reader(counted=True)
        assert reader.skip(8) == 8
        assert reader.take(1).data.tolist() == [8]
        assert [3] == [unit for unit, *_ in read]

    def test_an_addressable_unit_is_read_where_it_is_needed(self):
        """Just the rows that are taken."""
        reader, read = self.reader(counted=True, exact=True)
        for _ in range(3):
            reader.skip(2)
            reader.take(2)
        assert [(0, 2, 1), (2, 0, 1), (2, 3, 2), (4, 1, 2)] == read
