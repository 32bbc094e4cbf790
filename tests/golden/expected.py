"""Pure operations on the expected side of a case, from which the rules are made.

A *grid* is one epoch of all workers: ``grid[worker][step][replica]`` is a recorded batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.golden import facts
from tests.golden.values import Json, num_rows

Grid = list[list[list[Json]]]


def failing(case: Json, ours: tuple[str, ...]) -> Json:
    """The case with every worker raising one of these classes of ours before its first step."""
    in_sync = facts.num_in_sync(case)
    seen = {"num_replicas_in_sync": in_sync, "error": {"ours": list(ours), "exact": True}}
    return {**case, "expected": [seen] * facts.num_workers(case)}


def failing_after(case: Json, ours: tuple[str, ...], num_steps: int) -> Json:
    """The case with every worker raising one of these classes after some steps of epoch 0."""
    end = {"event": "error", "error": {"ours": list(ours), "exact": True}}
    expected = [
        {
            "num_replicas_in_sync": seen["num_replicas_in_sync"],
            "epochs": [{"steps": steps_of(seen)[:num_steps], "end": end}],
        }
        for seen in case["expected"]
    ]
    return {**case, "expected": expected}


def each_worker(case: Json, change: Callable[[Json], Json]) -> Json:
    """The case with a changed observation of each worker."""
    return {**case, "expected": [change(seen) for seen in case["expected"]]}


def each_epoch(case: Json, change: Callable[[Json], Json]) -> Json:
    """The case with each worker's epochs changed."""

    def changed(seen: Json) -> Json:
        if "epochs" not in seen:
            return seen
        return {**seen, "epochs": [change(epoch) for epoch in seen["epochs"]]}

    return each_worker(case, changed)


def steps_of(seen: Json) -> list[list[Json]]:
    """All steps of a worker, epoch after epoch."""
    return [step for epoch in seen.get("epochs", ()) for step in epoch["steps"]]


def each_grid(case: Json, change: Callable[[Grid], Grid]) -> Json:
    """The case with each epoch changed as a grid; how many steps are asked for follows."""
    if not all("epochs" in seen for seen in case["expected"]):
        return case
    columns = zip(*(seen["epochs"] for seen in case["expected"]), strict=True)
    epochs = [_changed_epoch(list(column), change) for column in columns]
    rows = zip(*epochs, strict=True)
    expected = [
        {**seen, "epochs": list(row)} for seen, row in zip(case["expected"], rows, strict=True)
    ]
    return retyped({**case, "expected": expected, "iterate": _fewer_calls(case, expected)})


def retyped(case: Json) -> Json:
    """The case with types of values where there are steps, and none where there are none."""
    wrapped = facts.num_in_sync(case) > 1
    types = ["PerReplica"] if wrapped else ["EagerTensor"]

    def changed(seen: Json) -> Json:
        if "value_types" not in seen:
            return seen
        return {**seen, "value_types": types if steps_of(seen) else None}

    return each_worker(case, changed)


def _changed_epoch(epochs: list[Json], change: Callable[[Grid], Grid]) -> list[Json]:
    grid = change([epoch["steps"] for epoch in epochs])
    return [_with_steps(epoch, steps) for epoch, steps in zip(epochs, grid, strict=True)]


def _with_steps(epoch: Json, steps: list[Any]) -> Json:
    changed = {**epoch, "steps": steps}
    if "has_value" in epoch:
        empty = epoch["has_value"].count(False)
        changed["has_value"] = [True] * len(steps) + [False] * empty
    return changed


def _fewer_calls(case: Json, expected: list[Json]) -> Json:
    """Ask for as many steps fewer as were left out, where the number was limited."""
    how = case["iterate"]
    epochs = zip(case["expected"][0]["epochs"], expected[0]["epochs"], strict=True)
    gone = {len(before["steps"]) - len(after["steps"]) for before, after in epochs}
    if "steps" not in how or gone == {0}:
        return how
    if len(gone) > 1:
        raise NotImplementedError(f"epochs that lose different numbers of steps: {gone}")
    return {**how, "steps": how["steps"] - gone.pop()}


def is_empty(values: list[Json]) -> bool:
    """Whether no replica of a step has a row."""
    return not any(num_rows(value) for value in values)
