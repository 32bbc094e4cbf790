"""Ready batches in shards that are dealt out: exactly once over any number of restarts."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from torch_distinput.testing import simulate


class BatchShards:
    """Shards of four batches each; they keep no state."""

    def __init__(self, numbers=range(6)):
        self.numbers = list(numbers)

    @property
    def num_shards(self):
        """As dealable sources have it."""
        return len(self.numbers)

    def shard(self, num_shards, index):
        """Every num_shards-th one."""
        return BatchShards(self.numbers[index::num_shards])

    def __iter__(self):
        for number in self.numbers:
            yield from torch.arange(16 * number, 16 * number + 16).split(4)


def play(num_workers, state=None, steps=None):
    """The rows of some steps on all workers, and the state after them."""

    def work(strategy):
        dataset = strategy.distribute_dataset(BatchShards())
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        played = itertools.islice(iter(dataset), steps)
        return [row for step in played for row in step.tolist()], json.dumps(dataset.state_dict())

    results = simulate(work, num_workers=num_workers)
    return [row for rows, _ in results for row in rows], results[0][1]


@pytest.mark.parametrize("stop", [2, 5, 8])
@pytest.mark.parametrize("again", [1, 10, 13])
@pytest.mark.parametrize("workers", [(2, 1, 1), (3, 1, 2), (2, 1, 2)])
def test_a_restart_in_the_part_of_another_worker(workers, stop, again):
    """A part that comes second has no place that could be taken for its beginning."""
    first, state = play(workers[0], steps=stop)
    second, state = play(workers[1], state, steps=again)
    rest, _ = play(workers[2], state)
    assert list(range(96)) == sorted(first + second + rest)
