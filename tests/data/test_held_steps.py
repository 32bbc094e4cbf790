"""Steps that stay while their source goes on: they own their rows, and only those."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import options, play, stream_of
from torch_distinput.data.sources.ready_batches import ReadyStream
from torch_distinput.data.steps.ready_batches import RebatchReadyDataset
from torch_distinput.data.steps.rebatch import Finish, RebatchDataset
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.route import ReadPlan, ReadSegment, Shard
from torch_distinput.testing import simulate


def reusing(kind, count=6):
    """A stream whose ready batches lie in one buffer."""

    def stream():
        buffer = torch.zeros(4, dtype=torch.int64)
        for number in range(count):
            buffer[:] = torch.arange(4) + 4 * number
            yield buffer.numpy() if kind == "array" else buffer[:] if kind == "view" else buffer

    return stream


@pytest.mark.parametrize("kind", ["array", "view", "tensor"])
@pytest.mark.parametrize("policy", ["data", "off"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_buffer_that_is_written_again(kind, policy, num_workers):
    """Each worker among several reads ahead of what it plays."""
    keywords = {"options": options(auto_shard_policy=policy), "num_workers": num_workers}
    workers = play(reusing(kind), None, 2, **keywords)
    per_worker = [[x for step in worker for x in step[0]] for worker in workers]
    times = 1 if policy == "data" else 2
    assert sorted([*range(24)] * times) == sorted(per_worker[0] + per_worker[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_fn_that_writes_into_one_buffer(num_workers):
    """Likewise."""
    buffers = defaultdict(lambda: torch.empty(2, dtype=torch.int64))  # workers are threads here

    def collate(examples):
        return buffers[threading.get_ident()].copy_(torch.tensor(examples))

    first, second = play(stream_of(range(40)), 4, 2, collate_fn=collate, num_workers=num_workers)
    assert [[[k, k + 1]] for k in range(0, 40, 4)] == first
    assert [[[k, k + 1]] for k in range(2, 40, 4)] == second


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
def test_a_buffer_of_replica_batches(cluster):
    """A step takes one batch for each replica before it is played."""

    def work(strategy):
        dataset = strategy.distribute_datasets_from_function(lambda context: reusing("tensor"))
        return [b.tolist() for step in dataset for b in strategy.local_results(step)]

    for worker in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
        assert [list(range(k, k + 4)) for k in range(0, 24, 4)] == worker


ROUTE = ReadPlan(segments=(ReadSegment(shard=Shard()),))


class Columns:
    """A stream of one large chunk of columns."""

    def open(self, shard, start=()):
        """Hand out the chunk."""
        return ChunkReader(iter([Chunk(data=batch(), ids=np.arange(1000))]))

    def finish(self, chunk, shard):
        """Nothing to collate."""
        return chunk.data


def batch():
    """1000 rows."""
    jagged = torch.nested.nested_tensor_from_jagged(torch.ones(2000), torch.arange(0, 2001, 2))
    return {"x": torch.arange(1000), "jagged": jagged, "names": np.full(1000, "name")}


@pytest.mark.parametrize("ready", [True, False])
def test_a_part_does_not_keep_the_whole(ready):
    """A worker that waits for the others holds its own rows, not the global batch."""
    splitter = Splitter(
        topology=Topology(num_workers=10), rebatch=Rebatch.SPLIT,
        global_batch_size=None if ready else 1000, shared=True,
    )  # fmt: skip
    if ready:
        dataset = RebatchReadyDataset(ReadyStream(lambda: [batch()]), ROUTE, splitter=splitter)
    else:
        cut = RebatchDataset(Columns(), ROUTE, splitter=splitter)
        dataset = map(Finish(Columns(), Shard(), splitter), cut)
    (step,) = dataset
    data = step.parts[0].batch
    assert 100 * 8 == data["x"].untyped_storage().nbytes()
    assert 200 * 4 == data["jagged"].values().untyped_storage().nbytes()
    assert data["names"].base is None  # its own memory
    assert 100 == len(data["names"])


def test_a_single_worker_copies_nothing():
    """Its step is played before the source goes on."""
    whole = torch.arange(4)
    dataset = tdi.MirroredStrategy(["cpu"] * 2).distribute_dataset(lambda: [whole])
    (step,) = dataset
    assert whole.data_ptr() == step[0].data_ptr()
