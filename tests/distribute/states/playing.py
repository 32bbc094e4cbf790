"""Playing recipes on simulated workers: what is delivered, and the states at every stop."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch_distinput as tdi
from tests.distribute.states.recipes import Cluster, Place, Recipe, numbers
from torch_distinput.testing import simulate

Steps = list[list[int]]
"""The examples of each step: of one worker, or of all of them in the order of the replicas."""
NUM_NEXT = 2
"""Steps of the following epoch that are compared."""


class Pace:
    """Lets the source of one worker go on by a step when it is asked for one.

    Made in the thread that asks, which never waits: where it reads by itself, it reads one step.
    """

    def __init__(self) -> None:
        self._asking = threading.get_ident()
        self._changed = threading.Condition()
        self._asked: float = math.inf
        self._made = 0

    def wait(self) -> None:
        """Wait until the next step is asked for."""
        if threading.get_ident() != self._asking:
            with self._changed:
                self._made += 1
                self._changed.wait_for(lambda: self._made <= self._asked)

    def ask(self, number: float) -> None:
        """Ask for the first steps of the epoch."""
        with self._changed:
            self._asked = number
            self._changed.notify_all()

    def begin(self) -> None:
        """Another epoch; nothing of it is asked for."""
        with self._changed:
            self._made = self._asked = 0


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What is delivered from a state on.

    Attributes:
        workers: the steps of each worker.
        following: its first steps of the next epoch.
        state: the state after what was played.
    """

    workers: list[Steps]
    following: list[Steps]
    state: str


def play(
    recipe: Recipe,
    cluster: Cluster,
    folder: Path,
    *,
    state: Any = None,
    num_steps: int | None = None,
    num_next: int | None = None,
) -> Rest:
    """Play the rest of an epoch, or its first steps; begin the next epoch, if steps of it count."""

    def work(strategy: tdi.Strategy) -> tuple[Steps, Steps, str]:
        dataset = recipe.distribute(strategy, Place(folder=folder))
        if state is not None:
            dataset.load_state_dict(state)
        steps = list(islice(steps_of(strategy, iter(dataset)), num_steps))
        following: Steps = []
        if num_next is not None:
            following = list(islice(steps_of(strategy, iter(dataset)), num_next))
        return steps, following, json.dumps(dataset.state_dict())

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    workers, following, states = map(list, zip(*results, strict=True))
    assert len(set(states)) == 1, f"workers say different states: {set(states)}"
    return Rest(workers=workers, following=following, state=states[0])


def steps_of(strategy: tdi.Strategy, iterator: tdi.DistributedIterator) -> Iterator[list[int]]:
    """A worker's examples of each step; padding is none."""
    for step in iterator:
        counts = iterator.last_step.local_counts
        batches = (_unpadded(batch) for batch in strategy.local_results(step))
        yield [
            number
            for batch, count in zip(batches, counts, strict=True)
            for number in numbers(batch, count)
        ]


def _unpadded(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple) else batch


def in_order(workers: list[Steps]) -> Steps:
    """The global batches, where the workers play one order."""
    return [list(chain(*step)) for step in zip(*workers, strict=True)]


def counted(*parts: list[Steps]) -> Counter[int]:
    """All examples of some workers."""
    return Counter(one for part in parts for steps in part for step in steps for one in step)


def expected_of(state: dict[str, Any], rest: Rest) -> dict[str, list[Any]]:
    """A rest as the recording keeps it: global batches, or what each worker had."""
    one = is_one_order(state)
    following = in_order(rest.following) if one else rest.following
    return {
        "batches" if one else "workers": in_order(rest.workers) if one else rest.workers,
        **({"next": following} if any(following) else {}),
    }


def is_one_order(state: dict[str, Any]) -> bool:
    """Whether all workers play one order (DATA), as the recipe in a state says."""
    return ["auto_shard_policy", "data"] in state["recipe"]


def replayed(recipe: Recipe, folder: Path, state: Any) -> list[int]:
    """The examples of the first step after a state, looked at on one worker."""
    place = Place(folder=folder)
    dataset = recipe.distribute(tdi.OneDeviceStrategy("cpu"), place)
    step = dataset.replay(state, state["steps"])
    return [number for batch in step.batches if batch is not None for number in numbers(batch)]
