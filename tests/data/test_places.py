"""From the place of any row a stream of files is read again from that row on, and so once more."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from torch_distinput.data.sources.resolve import open_source
from torch_distinput.data.sources.source import Request
from torch_distinput.plan.progress.route import Shard

CHAINS = {
    "nothing": lambda files: files,
    "map": lambda files: files.map(int),
    "filter": lambda files: files.filter(lambda number: int(number) % 3 != 1),
    "shuffle": lambda files: files.shuffle(4),
    "take": lambda files: files.take(13),
    "repeat": lambda files: files.repeat(2),
    "interleave": lambda files: files.interleave(2, 2),
    "all": lambda files: (
        files.interleave(3, 1).shuffle(3).filter(lambda number: int(number) % 3 != 1).take(9)
        .repeat(2).shuffle(2)
    ),
}  # fmt: skip


def rows_from(stream, shard, place=None):
    """The ids of all rows from a place on, one by one, and where each of them stands."""
    reader = stream.open(shard, place.start if place else None)
    if place is not None:
        assert reader.skip(place.skip) == place.skip
    ids, places = [], []
    while (chunk := reader.take(1)) is not None:
        ids.append(chunk.ids.tolist())
        places.append(chunk.place)
    return ids, places


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("sparse", [False, True], ids=["decoded early", "decoded late"])
@pytest.mark.parametrize("late", [False, True])
def test_read_again(tmp_path, chain, sparse, late):
    """From each row; and from the middle of what that gave, once more."""
    pattern = write_numbers(tmp_path, [range(5), range(10, 13), [], range(20, 29)])
    files = CHAINS[chain](tdi.FileDataset(pattern, reader=Numbers(late=late, records_per_part=2)))
    stream = open_source(files, Request(global_batch_size=1)).prepare().stream
    shard = Shard(seed=3, sparse=sparse)
    whole, places = rows_from(stream, shard)

    for number, place in enumerate(places):
        rest, again = rows_from(stream, shard, place)
        assert whole[number:] == rest
        middle = len(rest) // 2
        assert rest[middle:] == rows_from(stream, shard, again[middle])[0]
