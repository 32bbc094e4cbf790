"""Which policy holds, and what is assigned to whom."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.errors import TooFewFilesError
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.sharding import (
    assign_items,
    check_enough_shards,
    resolve_policy,
)

AUTO, FILE, DATA, OFF = AutoShardPolicy


@pytest.mark.parametrize(
    ("policy", "has_shards", "expected"),
    [
        (AUTO, True, FILE),
        (AUTO, False, DATA),
        (FILE, True, FILE),
        (DATA, True, DATA),
        (OFF, True, OFF),
    ],
)
def test_policy(policy, has_shards, expected):
    """AUTO is FILE where there is something to deal out."""
    assert expected is resolve_policy(policy, has_shards=has_shards, source="files")


def test_file_policy_needs_files():
    """The error names the cure."""
    with pytest.raises(ValueError, match=r"needs a source with files.*got a list.*Use .*DATA"):
        resolve_policy(FILE, has_shards=False, source="a list")


def test_too_few_files_names_the_counts():
    """Expected, got, and what to do."""
    with pytest.raises(TooFewFilesError, match='has 3 for 8 workers.*"data".*write 8 files'):
        check_enough_shards(3, 8, what="'train-*'", cure="write 8 files")
    check_enough_shards(8, 8, what="'train-*'", cure="")
    with pytest.raises(TooFewFilesError):
        check_enough_shards(0, 1, what="nothing", cure="")


def test_every_item_is_assigned_once():
    """Item i goes to shard i modulo the number of shards."""
    for items, shards in itertools.product(range(9), range(1, 5)):
        parts = [list(assign_items(items, shards, index)) for index in range(shards)]
        assert list(range(items)) == sorted(itertools.chain.from_iterable(parts))
        assert all(i % shards == index for index, part in enumerate(parts) for i in part)
