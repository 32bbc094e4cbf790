"""Two ranks agree on every step of a stream of unknown length.

    python benchmarks/agreement.py [--quick] [--json] [--rounds 5]

Each rank has a stream of ready batches. The figures are the microseconds that agreement adds to a
step. Ours is compared with the same dataset on one worker, which has no peer to agree with; a
second figure is for everything that the input does, compared with a plain loop over the batches.
Peers are what scripts do by hand in such a loop: an all-reduce in each step, or one started a step
ahead. The clock runs from the first batch to the end of the data, so the start of an epoch is not
included. ``time.sleep`` stands for the work of a device: both ranks release the processor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from measuring import OURS, Figure, command_line, figure, run, slowest, take_turns

import torch_distinput as tdi

ROWS = 64
STEPS = {
    0.0: {"full": 1500, "quick": 500, "tiny": 5},
    0.002: {"full": 300, "quick": 150, "tiny": 5},
}
TARGETS_US = {0.0: 15.0, 0.002: 20.0}

Loop = Callable[[], float]
"""Plays an epoch and returns the seconds after its first batch."""


def workload(work_seconds: float) -> str:
    """What stands between two steps."""
    return f"agreement, {f'{1e3 * work_seconds:g} ms of' if work_seconds else 'no'} work"


class Loops:
    """Loops over as many steps, by different means."""

    def __init__(self, steps: int, work_seconds: float) -> None:
        self._steps = steps
        self._work_seconds = work_seconds
        self._batch = torch.zeros(ROWS, 8)
        everybody = tdi.MultiWorkerMirroredStrategy(["cpu"])
        self._agreed = self._dataset(everybody)
        # Each rank plays all of it by itself, and says so.
        alone = tdi.InputOptions(auto_shard_policy="off")
        self._single = self._dataset(tdi.OneDeviceStrategy("cpu"), alone)

    def _dataset(
        self, strategy: tdi.Strategy, options: tdi.InputOptions | None = None
    ) -> tdi.DistributedDataset:
        """Nothing is read, cut or collated; that this ends is not known before."""
        return strategy.distribute_datasets_from_function(lambda _: self._Stream(self), options)

    class _Stream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __init__(self, loops: Loops) -> None:
            self._loops = loops

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self._loops.batches()

    def batches(self) -> Iterator[torch.Tensor]:
        """The stream."""
        for _ in range(self._steps):
            yield self._batch

    def _play(self, batches: Iterable[object]) -> float:
        iterator = iter(batches)
        next(iterator)
        start = time.perf_counter()
        for _ in iterator:
            if self._work_seconds:
                time.sleep(self._work_seconds)
        return time.perf_counter() - start

    def plain(self) -> float:
        """Nobody agrees on anything."""
        return self._play(self.batches())

    def ours_alone(self) -> float:
        """Ours, with one worker."""
        return self._play(self._single)

    def ours(self) -> float:
        """Ours, with two."""
        return self._play(self._agreed)

    def all_reduce(self) -> float:
        """Ask everybody before each step."""
        return self._play(asked_in_each_step(self.batches()))

    def all_reduce_ahead(self) -> float:
        """Ask during each step for the next one."""
        return self._play(asked_a_step_ahead(self.batches()))


def asked_in_each_step(batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What a script does about ranks that may end early."""
    more = torch.ones(1, dtype=torch.int32)
    for batch in batches:
        more.fill_(1)
        dist.all_reduce(more, dist.ReduceOp.MIN)
        if not more.item():
            return
        yield batch


def asked_a_step_ahead(batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What a better script does: the answer travels during the step."""
    flags = [torch.ones(1, dtype=torch.int32) for _ in range(2)]
    asked = dist.all_reduce(flags[0], dist.ReduceOp.MIN, async_op=True)
    for number, batch in enumerate(batches):
        asked.wait()
        if not flags[number % 2].item():
            return
        following = flags[1 - number % 2].fill_(1)
        asked = dist.all_reduce(following, dist.ReduceOp.MIN, async_op=True)
        yield batch
    asked.wait()


def steady(loop: Loop) -> float:
    """The slowest rank's seconds."""
    dist.barrier()
    return slowest(loop())


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """With work between the steps and without."""
    figures = []
    for work_seconds, target in TARGETS_US.items():
        steps = STEPS[work_seconds][arguments.size]
        loops = Loops(steps, work_seconds)
        compared: list[tuple[Loop, dict[str, Loop]]] = [
            (loops.ours_alone, {OURS: loops.ours}),
            (
                loops.plain,
                {
                    f"{OURS}, the whole input": loops.ours,
                    "all_reduce in each step": loops.all_reduce,
                    "all_reduce, a step ahead": loops.all_reduce_ahead,
                },
            ),
        ]
        for alone, cases in compared:
            turns_of = take_turns(alone, cases, arguments.rounds, clock=steady)
            for name, turns in turns_of.items():
                extra = [1e6 * (case - without) / (steps - 1) for without, case in turns]
                figures.append(
                    figure(
                        workload(work_seconds), name, "us", extra,
                        floor=1e6 * statistics.median(floor for floor, _ in turns) / (steps - 1),
                        floor_unit="us per step", target=target if name == OURS else None,
                    )
                )  # fmt: skip
    return figures


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args(), num_ranks=(2,))
