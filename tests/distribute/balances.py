"""Sources whose examples differ in what they cost, and what became of a step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.distribute.mixtures import Rows
from tests.distribute.street import shown, stream_of
from torch_distinput.testing import simulate

COUNT = 41
COSTS = [(7 * number % 11) ** 2 + (number == 5) * 300 for number in range(COUNT)]


def cost_of(example):
    """Examples are numbers."""
    return COSTS[int(example)]


def mixture():
    """Numbers from two sources."""
    numbers = torch.arange(COUNT)
    return tdi.mix({"some": numbers[:30], "more": numbers[30:]}, weights=(2, 1), stop="all")


INDEXED = {
    "tensor": lambda: torch.arange(COUNT),
    "list": lambda: list(range(COUNT)),
    "dataset": lambda: Rows(list(range(COUNT))),
    "loader": lambda: DataLoader(Rows(list(range(COUNT))), batch_size=6),
    "sampler": lambda: DataLoader(
        Rows(list(range(COUNT))), batch_sampler=[[1, 2], [3, 4, 5, 6, 7], [40, 0], [9] * 3, [8]]
    ),
    "mixture": mixture,
}
STREAMS = {
    "stream": lambda: stream_of(range(COUNT)),
    "mixed stream": lambda: tdi.mix(
        {"some": stream_of(range(30)), "more": torch.arange(30, COUNT)}, weights=(2, 1), stop="all"
    ),
}
HAS_SIZE = ("loader", "sampler")


def play(source, size, cluster, **keywords):
    """Per worker the steps, per replica its examples; and the stats."""

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=size, **keywords)
        iterator = iter(dataset)
        steps = [shown(strategy, step) for step in iterator]
        return steps, iterator.stats().balance

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    return [steps for steps, _ in results], [stats for _, stats in results]


def in_steps(workers):
    """The replica batches of all workers, step by step."""
    return [[batch for worker in step for batch in worker] for step in zip(*workers, strict=True)]


def examples_in_steps(workers):
    """What is in each step, whoever has it."""
    return [Counter(x for batch in step for x in batch) for step in in_steps(workers)]


def costs_in_steps(workers, add_up=sum):
    """What each replica costs, step by step."""
    return [[add_up(list(map(cost_of, batch))) for batch in step] for step in in_steps(workers)]


def pad_up(costs):
    """Each row costs as much as the dearest of them."""
    return len(costs) * max(costs, default=0)


def slowness(costs):
    """The slowest replica over the mean, over all steps."""
    return sum(map(max, costs)) / sum(map(np.mean, costs))
