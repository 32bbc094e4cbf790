"""Balanced ranks: how long steps take whose slowest rank counts, and how long dealing takes.

    python benchmarks/balance.py [--quick] [--json] [--rounds 5]

*Step time*: the documents are source files and docstrings of Python's standard library, four bytes
a token and 2,048 tokens at most, in random order, 512 in a global batch on 32 ranks. Nothing is
computed: a step takes what its slowest rank costs, and a figure is the sum over the steps of an
epoch, divided by what a rank costs on average. So 1 is the best there is, unless one document
costs more than the average rank. *Tokens* cost a rank the sum of its lengths, as if documents were
packed; *attention* the sum of their squares. *Padded* is the cost by which `BatchRebalanceSampler`
groups: each document of a rank is as long as the longest, and costs length + length² / 1000; the
average is without padding. Each round has another order. What `LengthGroupedSampler` gives is cut
as Trainer cuts it, 16 for each rank. Of a *stream* the costs are found when it is read; the peers
need all lengths before.

*Dealing*: one batch of 1,024 documents on 64 ranks.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import OURS, Figure, command_line, figure, installed, repeated, run

import torch_distinput as tdi
from torch_distinput.plan.assignment.balancing import deal_rows

BATCH, NUM_RANKS = 512, 32
LARGE_BATCH, MANY_RANKS = 1024, 64
MOST_TOKENS, BYTES_PER_TOKEN = 2048, 4
NUM_FILES = {"full": 600, "quick": 200, "tiny": 40}
REPEATS = {"full": 20, "quick": 5, "tiny": 1}
STEP_TARGETS = {"tokens": 2.1, "attention": 1.8, "padded": 1.65}  # what BatchRebalanceSampler has
DEALING_TARGET_MS = 1.0

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Step = Sequence[Sequence[int]]
"""The documents of each rank."""
Dealer = Callable[[int], Iterable[Step]]
"""From a seed to the steps of an epoch."""


def documents(num_files: int) -> Numbers:
    """Tokens of sources and docstrings."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted([*folder.glob("*.py"), *folder.glob("*/*.py")])
    texts: list[str] = []
    for file in files[:num_files]:
        source = file.read_text(errors="replace")
        texts.append(source)
        nodes = ast.walk(ast.parse(source))
        texts += [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    lengths = [len(text) // BYTES_PER_TOKEN + 1 for text in texts if text]
    return np.minimum(np.array(lengths, dtype=np.int64), MOST_TOKENS)


# ------------------------------------------------------------------------------ who deals


def ours(balance: Any, num_examples: int, seed: int) -> Iterator[Step]:
    """By the public way, with all ranks as replicas of one process."""
    strategy = tdi.MirroredStrategy(["cpu"] * NUM_RANKS)
    dataset = strategy.distribute_dataset(
        torch.arange(num_examples), global_batch_size=BATCH, shuffle=True, seed=seed,
        drop_last=True, balance=balance,
    )  # fmt: skip
    for step in dataset:
        yield [batch.tolist() for batch in step]


def ours_of_stream(costs: Numbers, seed: int, *, is_padded: bool) -> Iterator[Step]:
    """The same of a stream, in an order of its own: costs are found when documents are read.

    The peers need all lengths before.
    """

    def read() -> Iterator[int]:
        yield from np.random.default_rng(seed).permutation(len(costs)).tolist()

    def cost(number: int) -> int:
        return int(costs[number])

    dataset = tdi.MirroredStrategy(["cpu"] * NUM_RANKS).distribute_dataset(
        read, global_batch_size=BATCH, drop_last=True,
        balance=tdi.PaddedCost(cost) if is_padded else cost,
    )  # fmt: skip
    for step in dataset:
        yield [batch.tolist() for batch in step]


def rebalance(lengths: Numbers) -> Dealer:
    """Hugging Face's sampler. All ranks group alike, so one of them does it for all."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    def deal(seed: int) -> Iterator[Step]:
        known = lengths.tolist()
        sampler = BatchRebalanceSampler(known, BATCH, NUM_RANKS, grad_accum=1)
        order = np.random.default_rng(seed).permutation(len(known)).tolist()
        for first in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[first : first + BATCH]
            groups = sampler._assign(batch, [known[i] for i in batch])  # noqa: SLF001 - once for all
            yield [group for (group,) in groups]

    return deal


def group(lengths: Numbers) -> Dealer:
    """Hugging Face's sampler by length, cut for each rank."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    def deal(seed: int) -> Iterator[Step]:
        own = BATCH // NUM_RANKS
        generator = torch.Generator().manual_seed(seed)
        order = list(LengthGroupedSampler(own, lengths=lengths.tolist(), generator=generator))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            yield [order[start : start + own] for start in range(first, first + BATCH, own)]

    return deal


# ------------------------------------------------------------------------------ figures


def slowness(steps: Iterable[Step], costs: Numbers, *, is_padded: bool) -> float:
    """The slowest rank over what a rank costs on average without padding."""
    slowest, total = 0, 0
    for step in steps:
        of_ranks = [costs[list(rank)] for rank in step]
        total += sum(int(own.sum()) for own in of_ranks)
        slowest += max(int(len(own) * own.max() if is_padded else own.sum()) for own in of_ranks)
    return slowest * NUM_RANKS / total


def step_times(lengths: Numbers, rounds: int) -> list[Figure]:
    """Ours and the peers, by each cost."""
    found = []
    peers = installed({"BatchRebalanceSampler": rebalance, "LengthGroupedSampler": group}, lengths)
    for name, costs in {
        "tokens": lengths, "attention": lengths**2, "padded": 1000 * lengths + lengths**2
    }.items():  # fmt: skip
        is_padded = name == "padded"
        balance = tdi.PaddedCost(costs) if is_padded else costs
        cases: dict[str, Dealer] = {
            OURS: partial(ours, balance, len(lengths)),
            f"{OURS}, a stream": partial(ours_of_stream, costs, is_padded=is_padded),
            f"{OURS}, without balance": partial(ours, None, len(lengths)),
            **peers,
        }
        for case, deal in cases.items():
            values = [slowness(deal(seed), costs, is_padded=is_padded) for seed in range(rounds)]
            is_judged = case in (OURS, f"{OURS}, a stream")
            target = STEP_TARGETS[name] if is_judged else None
            found.append(figure(f"step time, {name}", case, "ratio", values, target=target))
    return found


def dealing_times(lengths: Numbers, rounds: int, repeats: int) -> list[Figure]:
    """How long a large batch takes."""
    batch = np.random.default_rng(0).choice(lengths, LARGE_BATCH)
    plain = (LARGE_BATCH // MANY_RANKS,) * MANY_RANKS
    cases: dict[str, Callable[[], object]] = {
        OURS: lambda: deal_rows(batch, plain),
        f"{OURS}, padded": lambda: deal_rows(batch, plain, is_padded=True),
    }
    peers = installed({"BatchRebalanceSampler": _rebalancing}, batch)
    found = []
    for case, work in {**cases, **peers}.items():
        times = repeats if case.startswith(OURS) else 1
        values = [1e3 * _cpu_seconds(repeated(work, times)) / times for _ in range(rounds)]
        target = DEALING_TARGET_MS if case == OURS else None
        found.append(figure("dealing", case, "ms", values, target=target))
    return found


def _rebalancing(batch: Numbers) -> Callable[[], object]:
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    known, indices = batch.tolist(), list(range(len(batch)))
    sampler = BatchRebalanceSampler(known, LARGE_BATCH, MANY_RANKS, grad_accum=1)
    return lambda: sampler._assign(indices, known)  # noqa: SLF001 - as above


def _cpu_seconds(work: Callable[[], object]) -> float:
    """One thread does it all."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both."""
    lengths = documents(NUM_FILES[arguments.size])
    rounds = arguments.rounds
    return [
        *step_times(lengths, rounds),
        *dealing_times(lengths, rounds, REPEATS[arguments.size]),
    ]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
