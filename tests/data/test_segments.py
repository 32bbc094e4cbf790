"""What a worker reads of several assignments: segments, one after another."""

from __future__ import annotations

import numpy as np
import torch

from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.segments import open_segments
from torch_distinput.plan.progress.route import ReadSegment, Shard


class Files:
    """A stream whose shards all hold two files of two rows, and the reader of a shard."""

    def __init__(self):
        self.row = 0
        self.noted = []

    def open(self, shard, start):
        assert start is None
        return Files()

    def take(self, num_rows):
        assert 1 == num_rows
        if self.row == 4:
            return None
        cursor = Cursor(skip=self.row, num_touched=1 + self.row // 2)
        self.row += 1
        self.noted.append(ReadReport(retries=self.row))
        return Chunk(data=torch.tensor([self.row]), ids=np.array([self.row]), place=cursor)

    def notes(self):
        return self.noted.pop(0) if self.noted else None


def test_only_files_of_the_last_segment_count_as_touched():
    """Who has those of earlier ones was decided when the files were assigned anew."""
    reader = open_segments(Files(), [ReadSegment(shard=Shard(), number=n) for n in (0, 2)])
    cursors = [reader.take(1).place for _ in range(8)]
    assert [0, 0, 0, 0, 1, 1, 2, 2] == [cursor.num_touched for cursor in cursors]
    assert [0, 0, 0, 0, 2, 2, 2, 2] == [cursor.segment for cursor in cursors]
    assert reader.take(1) is None


def test_what_a_segment_noted_is_told_after_its_end():
    """Each note once, and none is lost on the way to the next segment."""
    reader = open_segments(Files(), [ReadSegment(shard=Shard(), number=n) for n in (0, 2)])
    while reader.take(1) is not None:
        pass
    assert [1, 2, 3, 4] * 2 == [report.retries for report in iter(reader.notes, None)]


def test_a_first_segment_alone_is_what_its_reader_says():
    """As it is for nearly all: nothing stands between a step and its reader."""

    class Skipping(Files):
        skipped = 0

        def open(self, shard, start):
            del shard, start
            return self

        def skip(self, num_rows):
            self.skipped += num_rows

    stream = Skipping()
    assert stream is open_segments(stream, [ReadSegment(shard=Shard(), skip=3)])
    assert 3 == stream.skipped
    assert stream is not open_segments(stream, [ReadSegment(shard=Shard(), number=1)])
