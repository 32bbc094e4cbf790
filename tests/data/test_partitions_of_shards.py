"""What is dealt out of files, and of their parts."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from torch_distinput.data.files import counts
from torch_distinput.data.files.counts import FileCounts
from torch_distinput.data.files.work_units import Survey
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage.file_listing import FileInfo, FileListing
from torch_distinput.plan.progress.route import Shard

LISTING = FileListing(FileInfo(path=f"{number}.txt", size=9) for number in range(5))
PARTS = [(2, 3), (), (4,), (1, 1, 1), (5,)]
SURVEY = Survey(
    tuple(tuple(Part(start=i, num_records=n) for i, n in enumerate(parts)) for parts in PARTS)
)


def count(*, split, survey=SURVEY):
    files = tdi.FileDataset("*.txt", split_files=split)
    return FileCounts(files, LISTING, survey)


def dealt(counted, num_shards):
    """For each shard the units of each partition: file, and start of the part."""
    shards = [Shard(num_shards=num_shards, index=index) for index in range(num_shards)]
    return [
        [[(unit.file, unit.part.start) for unit in units] for units in counted.partitions(shard)]
        for shard in shards
    ]


@pytest.mark.parametrize("num_shards", range(1, 8))
def test_files_come_with_all_their_parts(num_shards):
    files = [[(file, start) for start in range(len(parts))] for file, parts in enumerate(PARTS)]
    counted = count(split=False)
    assert [files[index::num_shards] for index in range(num_shards)] == dealt(counted, num_shards)
    assert 5 == counted.num_partitions


@pytest.mark.parametrize("num_shards", range(1, 8))
def test_parts_of_split_files_come_one_by_one(num_shards):
    """A file may have none."""
    parts = [[(file, start)] for file, all_of in enumerate(PARTS) for start in range(len(all_of))]
    counted = count(split=True)
    assert [parts[index::num_shards] for index in range(num_shards)] == dealt(counted, num_shards)
    assert 7 == counted.num_partitions


@pytest.mark.parametrize("split", [False, True])
def test_files_that_nobody_has_looked_into_are_whole(split):
    counted = count(split=split, survey=None)
    whole = Part().start
    expected = [[[(file, whole)] for file in range(index, 5, 2)] for index in range(2)]
    assert expected == dealt(counted, 2)


@pytest.mark.parametrize(("split", "expected"), [(False, (14, 3)), (True, (12, 5))])
def test_rows_of_shards_are_counted(split, expected):
    shards = [Shard(num_shards=2, index=index) for index in range(2)]
    assert expected == count(split=split).lengths(shards)


def test_a_shard_makes_its_own_units_only(monkeypatch):
    """Others may have a million."""
    made = []
    monkeypatch.setattr(counts, "Unit", lambda **given: made.append(given["file"]))
    count(split=False, survey=None).partitions(Shard(num_shards=5, index=3))
    assert [3] == made
