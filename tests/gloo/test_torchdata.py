"""A pipeline of nodes behind a distributed dataset, on real ranks."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from torchdata import nodes

import torch_distinput as tdi
from tests.distribute.street import write_files
from torch_distinput.integrations.torchdata import DistributedNode
from torch_distinput.testing import run_ranks

COUNT = 40


def trained(strategy, pattern, stop=None, state=None):
    """Examples of all ranks, gathered here while a thread of the pipeline reads ahead."""
    files = tdi.FileDataset(pattern, shuffle_files=True).map(int)
    node = DistributedNode(strategy.distribute_dataset(files, global_batch_size=6), with_info=True)
    loader = nodes.Loader(nodes.Prefetcher(nodes.ParallelMapper(node, tuple, num_workers=2), 2))
    if state is not None:
        loader.load_state_dict(state)
    seen, counts = [], []
    for step, info in itertools.islice(loader, stop):
        seen += strategy.gather(step).tolist()
        counts.append(info.num_examples)
    return seen, counts, loader.state_dict()


@pytest.mark.slow
def test_ranks_train_behind_nodes_that_read_ahead_and_go_on_as_others(tmp_path):
    """Two ranks, then three: each example once, and the same state on all."""
    numbers = iter(range(COUNT))
    pattern = write_files(tmp_path, [list(itertools.islice(numbers, n)) for n in (13, 9, 11, 7)])
    first = run_ranks(partial(trained, pattern=pattern, stop=2), 2)
    assert first[0] == first[1]
    seen, counts, state = first[0]
    assert len(seen) == sum(counts)
    rest = run_ranks(partial(trained, pattern=pattern, state=state), 3)
    assert [rest[0]] * 3 == rest
    assert list(range(COUNT)) == sorted(seen + rest[0][0])


def stopped(strategy):
    """The step behind which a rank stops; one reads ahead much further than the other."""
    dataset = strategy.distribute_dataset(range(20_000), global_batch_size=2)
    told = nodes.Mapper(DistributedNode(dataset), lambda step: (step, strategy.stop_requested))
    ahead = nodes.Prefetcher(told, 1 + 7 * strategy.worker_index)
    for number, (step, is_last) in enumerate(nodes.Loader(ahead)):
        strategy.gather(step)
        if number == 3 and strategy.worker_index:
            strategy.request_stop()
        if is_last:
            return number
    return None


@pytest.mark.slow
def test_ranks_that_read_ahead_stop_behind_the_same_step():
    """A Mapper directly behind the node asks for it where the step is taken."""
    first, second = run_ranks(stopped, 2)
    assert first == second
    assert first is not None
