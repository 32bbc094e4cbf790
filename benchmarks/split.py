"""A batch in host memory becomes four replica batches, which are views of it.

    python benchmarks/split.py [--quick] [--json] [--rounds 5]

Two batches of 256 rows: a tuple of 2 tensors, and a nested one of 12. The floor calls ``split`` on
each leaf and does nothing with the pieces. Ours also rebuilds the structure, with a ``PerReplica``
in place of each leaf. A zero-row batch is what a replica without data gets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from measuring import (
    OURS,
    Figure,
    command_line,
    figure,
    installed,
    ratios,
    repeated,
    run,
    seconds,
    take_turns,
)
from torch.utils import _pytree

from torch_distinput.data.steps.local_step import cut_step, take_apart
from torch_distinput.distribute.replicas.per_replica import regroup_leaves
from torch_distinput.engine.zero_rows import Shapes

ROWS, REPLICAS = 256, 4
TIMES = {"full": 1000, "quick": 300, "tiny": 2}
ROUNDS = {"full": 15, "quick": 5, "tiny": 1}  # each is short
SPLIT_TARGET, ZERO_ROWS_TARGET_US = 1.2, 1.0

Work = Callable[[], object]


def two_leaves() -> Any:
    """Examples and labels."""
    return torch.zeros(ROWS, 64), torch.zeros(ROWS, dtype=torch.int64)


def twelve_leaves() -> Any:
    """Dicts, lists and tuples."""
    return {
        "features": {f"feature {number}": torch.zeros(ROWS, 32) for number in range(6)},
        "lists": [torch.zeros(ROWS, 8) for _ in range(4)],
        "target": (torch.zeros(ROWS), torch.zeros(ROWS, 2, 2)),
    }


BATCHES = {"2 leaves": two_leaves, "12 leaves": twelve_leaves}


def floor(batch: Any) -> Work:
    """Only the pieces of the leaves."""
    leaves = _pytree.tree_leaves(batch)
    return lambda: [leaf.split(ROWS // REPLICAS) for leaf in leaves]


def our_split(batch: Any) -> Work:
    """The two things that is done to a batch that all replicas share."""
    sizes = (ROWS // REPLICAS,) * REPLICAS
    ids = torch.arange(ROWS).numpy()

    def split() -> Any:
        step = cut_step(take_apart(batch, ids), sizes)
        parts = [part for part in step.parts if part is not None]
        return regroup_leaves([p.structure for p in parts], [p.leaves for p in parts])

    return split


def our_zero_rows(batch: Any) -> Work:
    """The zero-row batch that is like a batch seen before."""
    shapes = Shapes(None)
    shapes.observe(take_apart(batch, torch.arange(ROWS).numpy()), 0)
    return lambda: shapes.empty(lambda: None)


def windows() -> list[slice]:
    """The rows of each replica."""
    size = ROWS // REPLICAS
    return [slice(start, start + size) for start in range(0, ROWS, size)]


def accelerate_split(batch: Any) -> Work:
    """A function of accelerate, once a replica."""
    from accelerate.utils import slice_tensors

    return lambda: [slice_tensors(batch, rows) for rows in windows()]


def pytree_split(batch: Any) -> Work:
    """What one would write with torch's tree functions."""
    return lambda: [
        _pytree.tree_map(lambda leaf, rows=rows: leaf[rows], batch) for rows in windows()
    ]


def pytree_zero_rows(batch: Any) -> Work:
    """The same for no rows."""
    return lambda: _pytree.tree_map(lambda leaf: leaf.new_empty((0, *leaf.shape[1:])), batch)


SPLITS: dict[str, Callable[[Any], Work]] = {
    OURS: our_split,
    "accelerate slice_tensors": accelerate_split,
    "torch tree_map": pytree_split,
}
ZERO_ROWS: dict[str, Callable[[Any], Work]] = {
    OURS: our_zero_rows,
    "torch tree_map": pytree_zero_rows,
}


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both batches."""
    times, figures = TIMES[arguments.size], []
    for name, make in BATCHES.items():
        batch = make()
        made = installed(SPLITS, batch)
        cases = {case: repeated(work, times) for case, work in made.items()}
        turns = take_turns(repeated(floor(batch), times), cases, arguments.rounds)
        workload = f"four views of {name}"
        figures += ratios(workload, turns, target=SPLIT_TARGET, count=times, per="batch")
    for (name, make), (case, made_of) in product(BATCHES.items(), ZERO_ROWS.items()):
        work = repeated(made_of(make()), times)
        work()
        values = [1e6 * seconds(work) / times for _ in range(arguments.rounds)]
        target = ZERO_ROWS_TARGET_US if case == OURS else None
        figures.append(figure(f"zero rows of {name}", case, "us", values, target=target))
    return figures


if __name__ == "__main__":
    run(measure, command_line(__doc__, rounds=ROUNDS).parse_args())
