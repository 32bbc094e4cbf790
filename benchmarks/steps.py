"""What a step as a value costs: ``dataset.steps()`` beside ``iter(dataset)``.

    python benchmarks/steps.py [--quick] [--json] [--rounds 5]

One worker plays small batches of a tensor, and of a stream. The floor is the loop over the batches
of the same dataset. The figures are the microseconds that a step adds as a value, and with its
state taken each time, which a training loop does at its checkpoints only.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator

import torch
from measuring import OURS, Figure, command_line, figure, run, take_turns

import torch_distinput as tdi

BATCH = 8
STEPS = {"full": 5000, "quick": 1000, "tiny": 4}
ROUNDS = {"full": 15, "quick": 5, "tiny": 1}  # each is short
TARGETS_US = {OURS: 3.0, f"{OURS}, with its state": None}


def datasets(num_steps: int) -> dict[str, tdi.DistributedDataset]:
    """One whose steps are planned, and one whose end nobody knows."""
    strategy = tdi.OneDeviceStrategy("cpu")
    rows = torch.arange(BATCH * num_steps)

    def stream() -> Iterator[torch.Tensor]:
        yield from torch.split(rows, BATCH)

    return {
        "a tensor": strategy.distribute_dataset(rows, global_batch_size=BATCH),
        "a stream": strategy.distribute_dataset(stream),
    }


def play_batches(dataset: tdi.DistributedDataset) -> None:
    """The floor."""
    for _ in dataset:
        pass


def play_steps(dataset: tdi.DistributedDataset) -> None:
    """Each step is a value."""
    for _ in dataset.steps():
        pass


def play_states(dataset: tdi.DistributedDataset) -> None:
    """The state of each step is made."""
    for step in dataset.steps():
        step.state_dict()


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both datasets."""
    num_steps, figures = STEPS[arguments.size], []
    loops = dict(zip(TARGETS_US, (play_steps, play_states), strict=True))
    for name, dataset in datasets(num_steps).items():

        def bound(
            loop: Callable[[tdi.DistributedDataset], None], own: tdi.DistributedDataset = dataset
        ) -> Callable[[], None]:
            return lambda: loop(own)

        cases = {case: bound(loop) for case, loop in loops.items()}
        turns_of = take_turns(bound(play_batches), cases, arguments.rounds)
        for case, turns in turns_of.items():
            added = [1e6 * (ours - floor) / num_steps for floor, ours in turns]
            floor = 1e6 * statistics.median(floor for floor, _ in turns) / num_steps
            figures.append(
                figure(
                    f"a step of {name} as a value", case, "us", added, floor=floor,
                    floor_unit="us per step", target=TARGETS_US[case],
                )
            )  # fmt: skip
    return figures


if __name__ == "__main__":
    run(measure, command_line(__doc__, rounds=ROUNDS).parse_args())
