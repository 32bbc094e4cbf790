"""Topologies, and the contexts of functions."""

from __future__ import annotations

import pytest

from torch_distinput.plan.assignment.topology import InputContext, Topology, ValueContext


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
