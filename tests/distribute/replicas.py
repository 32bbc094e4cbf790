"""Strategies with several replicas, and what each of them computes."""

from __future__ import annotations

import torch

from torch_distinput.testing import simulate


def everywhere(work, num_workers, num_replicas):
    """Run on simulated workers and require one result on all."""
    results = simulate(work, num_workers=num_workers, replicas_per_worker=num_replicas)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


def per_replica(strategy, fn):
    """A value for each local replica from its index in sync."""
    return strategy.distribute_values_from_function(lambda c: fn(c.replica_id_in_sync_group))
