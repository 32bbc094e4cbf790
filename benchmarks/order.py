"""The shuffled order of an epoch: time until the first batch, and memory.

    python benchmarks/order.py [--quick] [--json] [--rounds 5]

Ours is of 10^9 examples. *First batch*: from nothing to the indices of one rank's share of a batch
of 1,024 among eight ranks; ours is the slowest of 24, on three ranks at eight places of the epoch,
and the peers begin at its start. *Index*: the cost of one more index, ours in blocks of 65,536.
*Memory*: the peak of the process above its state before. The peers make a table, so they get 10^6
and 10^7 examples; their time and memory grow with that number. Each case runs in a separate
process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sized
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice, product
from multiprocessing import get_context

import torch
from measuring import OURS, Figure, command_line, figure, forget_peak, peak_mb, run
from torch.utils.data import DistributedSampler

from torch_distinput.plan.assignment.order import EpochOrder

BATCH, NUM_RANKS, BLOCK = 1024, 8, 65_536
OURS_EXAMPLES = 10**9
PEER_EXAMPLES = {"full": (10**6, 10**7), "quick": (10**6,), "tiny": (10**4,)}
FIRST_TARGET_MS, INDEX_TARGET_US, MEMORY_TARGET_MB = 5.0, 0.06, 5.0


@dataclass(frozen=True)
class Cost:
    """What one run has cost."""

    first_ms: float
    index_us: float
    memory_mb: float


def order_of(num_examples: int, seed: int) -> EpochOrder:
    """An order that nobody has looked at before."""
    return EpochOrder(num_examples=num_examples, shuffle=True, seed=seed)


def our_cost(num_examples: int, seed: int) -> Cost:
    """Any rank, any place."""
    before = forget_peak()
    share = BATCH // NUM_RANKS
    slowest = 0.0
    for rank, eighth in product((0, 3, 7), range(8)):
        start = (num_examples - BATCH) * eighth // 7 + rank * share
        began = time.perf_counter()
        order_of(num_examples, seed + eighth).take_range(start, start + share)
        slowest = max(slowest, time.perf_counter() - began)
    order = order_of(num_examples, seed)
    began = time.perf_counter()
    for block in range(16):
        order.take_range(block * BLOCK, (block + 1) * BLOCK)
    passed = time.perf_counter() - began
    return Cost(1e3 * slowest, 1e6 * passed / (16 * BLOCK), peak_mb() - before)


def sampler_cost(num_examples: int, seed: int) -> Cost:
    """A list of all indices, and a rank's part of it."""
    data: Sized = range(num_examples)
    before = forget_peak()
    sampler = DistributedSampler(data, NUM_RANKS, 0, seed=seed)  # type: ignore[arg-type, var-annotated]
    began = time.perf_counter()
    indices = iter(sampler)
    list(islice(indices, BATCH // NUM_RANKS))
    first = time.perf_counter() - began
    more = num_examples // NUM_RANKS // 2
    began = time.perf_counter()
    list(islice(indices, more))
    passed = time.perf_counter() - began
    return Cost(1e3 * first, 1e6 * passed / more, peak_mb() - before)


def permutation_cost(num_examples: int, seed: int) -> Cost:
    """A table of integers, as small and fast as torch makes one."""
    before = forget_peak()
    began = time.perf_counter()
    table = torch.randperm(num_examples, generator=torch.Generator().manual_seed(seed))
    table[:BATCH:NUM_RANKS].clone()
    first = time.perf_counter() - began
    began = time.perf_counter()
    count = 0
    for start in range(0, num_examples, BLOCK):
        count += len(table[start : start + BLOCK].clone())
    passed = time.perf_counter() - began
    return Cost(1e3 * first, 1e6 * passed / count, peak_mb() - before)


def costs(cost: Callable[[int, int], Cost], num_examples: int, rounds: int) -> list[Cost]:
    """Each round in a new process, whose memory no other has used; the code is loaded before."""
    found = []
    for seed in range(rounds):
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as process:
            process.submit(cost, 100_000, 0).result()
            found.append(process.submit(cost, num_examples, seed).result())
    return found


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Ours and the tables."""
    cases = [(OURS, our_cost, OURS_EXAMPLES)]
    for number in PEER_EXAMPLES[arguments.size]:
        cases += [
            ("DistributedSampler", sampler_cost, number), ("randperm", permutation_cost, number)
        ]  # fmt: skip
    found = {
        (name, f"{name}, 10^{len(str(number)) - 1}"): costs(cost, number, arguments.rounds)
        for name, cost, number in cases
    }
    rows = [
        ("order: first batch", "ms", "first_ms", FIRST_TARGET_MS),
        ("order: an index", "us", "index_us", INDEX_TARGET_US),
        ("order: memory", "MB", "memory_mb", MEMORY_TARGET_MB),
    ]
    return [
        figure(
            workload, case, unit, [getattr(cost, attribute) for cost in of_case],
            target=target if name == OURS else None,
        )
        for workload, unit, attribute, target in rows
        for (name, case), of_case in found.items()
    ]  # fmt: skip


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
