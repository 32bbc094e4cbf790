"""Mixing three sources: what it adds to an example, beside packages that mix as well.

    python benchmarks/mixing.py [--quick] [--json] [--rounds 5]

Three tables of numbers (700, 200 and 100 of each 1,000 rows) are mixed by weights 7, 2 and 1, in
batches of 256. *Order* is the time of one more place of the mixture, in blocks of 65,536, each
source shuffled. The floor of *examples* gathers the rows of each batch from one table, by indices
that are known. WeightedRandomSampler draws from all rows, with repetitions; datasets makes a table
of all indices; grain asks for one example after another.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from measuring import (
    OURS,
    Figure,
    command_line,
    figure,
    installed,
    ratios,
    run,
    seconds,
    take_turns,
)
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler

import torch_distinput as tdi
from torch_distinput.plan.assignment.mixed_order import Member, MixedIndices
from torch_distinput.plan.assignment.order import EpochOrder
from torch_distinput.plan.assignment.shares import Shares, make_shares

BATCH, BLOCK = 256, 65_536
SHARES = {"web": 7, "code": 2, "math": 1}
COUNTS = {"full": 1_000_000, "quick": 100_000, "tiny": 1000}
ORDER_TARGET_US = 0.1


def measure_order(count: int, rounds: int) -> list[Figure]:
    """One more place of an order of sources that are shuffled."""
    members = tuple(
        Member(
            name=name,
            num_examples=count * share // 10,
            num_indices=count * share // 10,
            make_order=_order_of(count * share // 10),
        )
        for name, share in SHARES.items()
    )
    shares = Shares(((0, make_shares(tuple(map(Fraction, SHARES.values())))),))
    mixed = MixedIndices.of(members, shares, "all")

    def play() -> None:
        order = mixed.make_order(0, 1)
        for start in range(0, count, BLOCK):
            order.take_range(start, start + BLOCK)

    play()
    values = [1e6 * seconds(play) / count for _ in range(rounds)]
    return [figure("mixing, order", OURS, "us", values, target=ORDER_TARGET_US)]


def _order_of(count: int) -> Callable[[int, int], EpochOrder]:
    return lambda seed, epoch: EpochOrder(num_examples=count, shuffle=True, seed=seed, epoch=epoch)


def drain(batches: Any) -> None:
    """Take all batches."""
    for _ in batches:
        pass


def grain_mix(tables: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Google's grain."""
    import grain

    sources = [
        grain.MapDataset.source(table.numpy()).shuffle(seed=0) for table in tables.values()
    ]
    mixed = grain.MapDataset.mix(sources, weights=[share / 10 for share in SHARES.values()])
    batched = mixed.batch(BATCH)
    return lambda: drain(batched[number] for number in range(len(batched)))


def datasets_mix(tables: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Hugging Face datasets, with an index."""
    import datasets

    datasets.disable_progress_bars()
    sources = [
        datasets.Dataset.from_dict({"x": table.numpy()}).with_format("torch")
        for table in tables.values()
    ]
    shares = [share / 10 for share in SHARES.values()]

    def play() -> None:
        mixed = datasets.interleave_datasets(
            sources, shares, seed=0, stopping_strategy="first_exhausted"
        )
        drain(mixed.iter(BATCH))

    return play


def sampler_mix(tables: dict[str, torch.Tensor]) -> Callable[[], None]:
    """What torch has: sources drawn at random, with repeated examples."""
    joined = TensorDataset(torch.cat(list(tables.values())))
    weights = torch.cat([torch.full((len(table),), 1.0) for table in tables.values()])
    sampler = WeightedRandomSampler(weights.tolist(), len(joined))
    batches = BatchSampler(sampler, BATCH, drop_last=False)
    loader: DataLoader[Any] = DataLoader(joined, sampler=batches, batch_size=None)
    return lambda: drain(loader)


def measure_examples(count: int, rounds: int) -> list[Figure]:
    """Batches of all examples."""
    tables = {
        name: torch.arange(count * share // 10, dtype=torch.float32)
        for name, share in SHARES.items()
    }
    joined = torch.cat(list(tables.values()))
    order = torch.randperm(count)
    train = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        tdi.mix(tables, weights=SHARES, stop="all"), global_batch_size=BATCH, shuffle=True
    )

    def gathered() -> Iterator[torch.Tensor]:
        for start in range(0, count, BATCH):
            yield joined[order[start : start + BATCH]]

    cases = {
        OURS: lambda: drain(train),
        "WeightedRandomSampler": sampler_mix(tables),
        **installed({"datasets": datasets_mix, "grain": grain_mix}, tables),
    }
    turns = take_turns(lambda: drain(gathered()), cases, rounds)
    return ratios("mixing, examples", turns, target=None, count=count)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Order, and examples."""
    count = COUNTS[arguments.size]
    return [
        *measure_order(count, arguments.rounds),
        *measure_examples(count // 10, arguments.rounds),
    ]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
