"""States of an epoch that went on elsewhere before: dealt out again, or cut in another way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch_distinput as tdi
from tests.distribute.states.all_recipes import RECIPES
from tests.distribute.states.playing import Rest, Steps, counted, in_order, is_one_order, play
from tests.distribute.states.recipes import Cluster
from tests.distribute.states.stops import Run
from torch_distinput.testing import simulate


class Leg(NamedTuple):
    """A part of an epoch.

    Attributes:
        cluster: where it is played.
        num_steps: its steps; None: all that are left, with the end.
        recipe: another name, where the data or the way to cut it is told in another way.
    """

    cluster: Cluster
    num_steps: int | None
    recipe: str = ""


def _down(*steps: int | None) -> tuple[Leg, ...]:
    return tuple(map(Leg, ((2, 1), (3, 1), (1, 1)), steps))


_UP = (Leg((3, 1), 3), Leg((2, 2), 2), Leg((1, 1), 1))
_FEWER_AND_MORE = (Leg((2, 1), 2), Leg((1, 1), 1), Leg((3, 1), 1))

EPOCHS: tuple[tuple[str, tuple[Leg, ...]], ...] = (
    ("text", _down(2, 1, 2)),
    ("text", _UP),
    ("text", (Leg((2, 1), 1), Leg((3, 1), None))),
    ("text", (Leg((2, 1), 3), Leg((2, 2), 1))),
    ("text", (Leg((2, 1), 2), Leg((2, 1), 1, "text, batches of 5"), Leg((1, 1), 1))),
    ("text", (Leg((2, 1), 3), Leg((2, 2), 1, "text, cycle"))),
    ("text, shuffle_files", _UP),
    ("text, 2 replicas", (Leg((2, 2), 2), Leg((3, 1), 2), Leg((2, 2), 1), Leg((1, 1), 1))),
    ("text, filter, FILE", _UP),
    ("text, shuffle, FILE", _down(2, 2, 1)),
    ("text, interleave, FILE", _UP),
    ("text, take, FILE", _FEWER_AND_MORE),
    ("text, repeat, FILE", _UP),
    ("text, interleave, filter, shuffle, map, FILE", _down(1, 1, 1)),
    ("text, all, FILE", _UP),
    ("decoded, filter, FILE", _FEWER_AND_MORE),
    ("decoded, shuffle, FILE", _UP),
    ("numbers, skip", _down(2, 1, 1)),
    ("numbers, skip", _UP),
    ("numbers, skip, chain", _FEWER_AND_MORE),
    ("numbers, split", _UP),
    ("text, split", _down(2, 1, 2)),
    ("counted", _down(2, 2, 1)),
    ("counted", _UP),
    ("counted, shuffle, FILE", _UP),
    ("counted, interleave, FILE", _down(2, 2, 1)),
    ("counted, repeat, FILE", _UP),
    ("parquet, FILE", _FEWER_AND_MORE),
    ("tfrecord, FILE", _UP),
    ("shards", _UP),
    ("ready shards", (Leg((2, 1), 2), Leg((3, 1), 2), Leg((1, 1), 1))),
    ("text, DATA", (Leg((2, 1), 2), Leg((3, 1), 1), Leg((1, 2), 1))),
    ("text, interleave, filter, shuffle, map, DATA", (Leg((2, 1), 1), Leg((3, 1), 1))),
    ("counted, shuffle, DATA", (Leg((2, 1), 2), Leg((1, 2), 1))),
    ("tensor", (Leg((2, 1), 2), Leg((3, 1), 1))),
    ("generator", (Leg((2, 1), 1), Leg((1, 2), 1), Leg((3, 1), 1))),
    ("ready batches", (Leg((2, 1), 1), Leg((1, 2), 1))),
    ("its state", (Leg((2, 1), 1), Leg((1, 2), 1), Leg((3, 1), 1))),
    ("ready, its state", (Leg((2, 1), 3), Leg((1, 1), 2))),
    ("its state, OFF", (Leg((2, 1), 1), Leg((2, 2), 2))),
)
"""What is played, and where. The state at the end is kept; of some recipes, after each leg."""
_ALL_LEGS = ("text", "counted", "shards", "numbers, skip")


class Saved(NamedTuple):
    """A state that was saved at the end of a leg; the name of the case says which leg."""

    name: str
    recipe: str
    cluster: Cluster
    state: str
    rest: Rest


def saved(folder: Path) -> Iterator[Saved]:
    """Play all of these epochs; each example of each of them is delivered once."""
    for name, legs in EPOCHS:
        whole = play(RECIPES[name], legs[0].cluster, folder)
        delivered: list[list[Steps]] = []
        state = ""
        for number, leg in enumerate(legs):
            recipe = leg.recipe or name
            steps, state = _played(leg, recipe, state, folder)
            delivered.append(steps)
            if _is_kept(name, legs, number):
                rest = play(RECIPES[recipe], leg.cluster, folder, state=json.loads(state))
                title = _title(name, legs[: number + 1])
                _check(title, whole, [*delivered, rest.workers], json.loads(state))
                yield Saved(title, recipe, leg.cluster, state, rest)


def names() -> Iterator[str]:
    """The names of all cases."""
    for name, legs in EPOCHS:
        for number in range(len(legs)):
            if _is_kept(name, legs, number):
                yield _title(name, legs[: number + 1])


def _is_kept(name: str, legs: tuple[Leg, ...], number: int) -> bool:
    return number == len(legs) - 1 or (number > 0 and name in _ALL_LEGS)


def _title(name: str, legs: tuple[Leg, ...]) -> str:
    shown = (
        f"{'all' if leg.num_steps is None else leg.num_steps} on {leg.cluster[0]}x{leg.cluster[1]}"
        f"{leg.recipe and f' as {leg.recipe}'}"
        for leg in legs
    )
    return "; ".join((name, *shown))


def _played(leg: Leg, recipe: str, state: str, folder: Path) -> tuple[list[Steps], str]:
    def work(strategy: tdi.Strategy) -> tuple[Steps, str]:
        run = Run(strategy, RECIPES[recipe], folder)
        if state:
            run.dataset.load_state_dict(json.loads(state))
        steps, states = run.epoch(leg.num_steps)
        return steps, states[-1]

    workers, replicas = leg.cluster
    results = simulate(work, num_workers=workers, replicas_per_worker=replicas)
    steps, states = map(list, zip(*results, strict=True))
    assert len(set(states)) == 1, f"workers say different states: {set(states)}"
    return steps, states[0]


def _check(title: str, whole: Rest, parts: list[list[Steps]], state: dict[str, Any]) -> None:
    assert counted(whole.workers) == counted(*parts), title
    if is_one_order(state):
        order = [x for part in parts for step in in_order(part) for x in step]
        assert [x for step in in_order(whole.workers) for x in step] == order, title
