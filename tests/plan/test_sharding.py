"""Which policy holds, and what is dealt to whom; topologies and contexts."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput import InputContext, TooFewFilesError, Topology, ValueContext
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
    with pytest.raises(TooFewFilesError, match="has 3 for 8 workers.*DATA.*8 or more files"):
        check_enough_shards(3, 8, what="'train-*'")
    check_enough_shards(8, 8, what="'train-*'")
    with pytest.raises(TooFewFilesError):
        check_enough_shards(0, 1, what="nothing")


def test_dealing_is_exact():
    """Item i goes to shard i modulo the number of shards."""
    for items, shards in itertools.product(range(9), range(1, 5)):
        parts = [list(assign_items(items, shards, index)) for index in range(shards)]
        assert list(range(items)) == sorted(itertools.chain.from_iterable(parts))
        assert all(i % shards == index for index, part in enumerate(parts) for i in part)


def test_topology_refuses_nonsense():
    """Counts below one, and an index outside."""
    for wrong in ({"num_workers": 0}, {"replicas_per_worker": 0}, {"worker_index": 1}):
        with pytest.raises(ValueError, match="must be"):
            Topology(**wrong)
    topology = Topology(num_workers=3, replicas_per_worker=2, worker_index=2)
    assert (6, 4) == (topology.num_replicas_in_sync, topology.first_replica)


def test_contexts_print_as_in_tensorflow():
    """And per-replica sizes must divide."""
    context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert "tf.distribute.InputContext(input pipeline id 1, total: 2)" == str(context)
    assert 2 == context.get_per_replica_batch_size(8)
    with pytest.raises(ValueError, match="7 is not divisible by num_replicas_in_sync 4"):
        context.get_per_replica_batch_size(7)
    value = ValueContext(replica_id_in_sync_group=2, num_replicas_in_sync=4)
    expected = "tf.distribute.ValueContext(replica id 2,  total replicas in sync: 4)"
    assert expected == str(value)
