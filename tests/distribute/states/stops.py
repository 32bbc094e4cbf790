"""Where the recording saves: the stops of a run, each with what it goes on to deliver.

    older            as middle, with words for the place alone, as version 1 once had them (of
                     another version it is as middle)
    fresh            before the first iter()
    begun            after iter(), before the first step
    step 1, ...      after so many steps
    middle, last     half-way; after the last step, before the end is told
    ended            after StopIteration
    epoch 1 ...      the same in the second epoch
    left             in a first epoch that was left after two steps
    begun again      in the epoch after that
    step 1 again     after its first step
    set to epoch 3   by set_epoch, before iter()
"""

from __future__ import annotations

import json
from pathlib import Path

import torch_distinput as tdi
from tests.distribute.states.playing import NUM_NEXT, Pace, Rest, Steps, steps_of
from tests.distribute.states.recipes import SHORT, Place, Recipe
from torch_distinput.testing import simulate

Stops = dict[str, tuple[str, Steps, Steps]]
"""For each stop of one worker: the state, the rest of its epoch, the beginning of the next one."""


class Run:
    """One worker's run over some epochs, step by step."""

    def __init__(self, strategy: tdi.Strategy, recipe: Recipe, folder: Path) -> None:
        self.strategy = strategy
        self.pace = Pace()
        self.waits = recipe.waits
        self.dataset = recipe.distribute(strategy, Place(folder=folder, wait=self.pace.wait))

    def say(self) -> str:
        """The state now."""
        return json.dumps(self.dataset.state_dict())

    def epoch(self, num_steps: int | None = None) -> tuple[Steps, list[str]]:
        """Play an epoch, or its first steps: the steps, and the states before and after each."""
        self.pace.begin()
        steps: Steps = []
        iterator = iter(self.dataset)
        states = [self.say()]
        played = steps_of(self.strategy, iterator)
        for _ in range(num_steps) if num_steps is not None else iter(int, 1):
            # What is collated is held where the worker has rows, ready batches in any case.
            self.pace.ask(1 + (sum(map(bool, steps)) if self.waits else len(steps)))
            step = next(played, None)
            if step is None:
                break
            steps.append(step)
            states.append(self.say())
        else:
            self.pace.ask(float("inf"))
            iterator.close()
        return steps, [*states, self.say()]


def stops_of(recipe: Recipe, folder: Path) -> dict[str, tuple[str, Rest]]:
    """All stops of a recipe at home."""

    def work(strategy: tdi.Strategy) -> Stops:
        whole, left, later = (
            play(Run(strategy, recipe, folder)) for play in (_whole, _left, _set)
        )
        # It is to go on in the epoch that was left, which only the whole run does.
        left["left"] = left["left"][0], *whole["step 2"][1:]
        return {**whole, **left, **later}

    results = simulate(work, num_workers=recipe.home[0], replicas_per_worker=recipe.home[1])
    stops = {}
    for name in recipe.positions:
        states, rests, following = map(list, zip(*(stops[name] for stops in results), strict=True))
        assert len(set(states)) == 1, f"{name}: workers say different states: {set(states)}"
        if recipe.positions == SHORT:  # one epoch is compared
            following = []
        stops[name] = states[0], Rest(workers=rests, following=following, state="")
    return stops


def _whole(run: Run) -> Stops:
    fresh = run.say()
    epochs = [run.epoch() for _ in range(2)]
    epochs.append(run.epoch(NUM_NEXT))
    stops: Stops = {}
    for number, prefix in enumerate(("", "epoch 1 ")):
        (steps, states), (following, _) = epochs[number], epochs[number + 1]
        num_steps = len(steps)
        places = {"begun": 0, "middle": (num_steps + 1) // 2, "last": num_steps}
        places |= {f"step {k}": k for k in range(1, num_steps)}
        for name, place in places.items():
            stops[prefix + name] = states[place], steps[place:], following[:NUM_NEXT]
        stops[prefix + "ended"] = states[-1], [], following[:NUM_NEXT]
    stops["fresh"] = fresh, *stops["begun"][1:]
    stops["older"] = _older(stops["middle"][0]), *stops["middle"][1:]
    return stops


def _older(said: str) -> str:
    """Without the words for the beginning of the epoch."""
    state = json.loads(said)
    for _, _, segment in state["streams"]:
        if isinstance(segment[-1], str) and isinstance(segment[-2], str):
            segment.pop()
    return json.dumps(state)


def _left(run: Run) -> Stops:
    run.epoch(2)
    left = run.say()
    steps, states = run.epoch()
    following, _ = run.epoch(NUM_NEXT)
    return {
        "left": (left, [], []),
        "begun again": (states[0], steps, following),
        "step 1 again": (states[1], steps[1:], following),
    }


def _set(run: Run) -> Stops:
    run.dataset.set_epoch(3)
    state = run.say()
    steps, _ = run.epoch()
    following, _ = run.epoch(NUM_NEXT)
    return {"set to epoch 3": (state, steps, following)}
