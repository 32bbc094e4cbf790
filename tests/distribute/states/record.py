"""States as a release wrote them, and what must still be delivered: a recording for good.

    python -m tests.distribute.states.record PATH.json             record
    python -m tests.distribute.states.record --sample PATH.json    record one of each shape
    python -m tests.distribute.states.record --compare PATH.json   play anew, compare the bytes

``version_1.json`` was recorded with the release that wrote version 1, and its states must load for
good (``test_recorded``). So what is in a file stays as it is: recording again adds only the cases
that it lacks, and only as long as that version is written. Another version gets a file of its own:
``version_2.json`` is a sample, whose cases hold places of the same shape as all others.

``--compare`` is for changes that promise the same bytes. It ends with 1 and names the cases whose
states are others now. It says nothing of a later version: when the version changes, the bytes may.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.distribute.states import legs, stops, written
from tests.distribute.states.all_recipes import RECIPES
from tests.distribute.states.playing import Rest, expected_of, play
from torch_distinput.plan.progress.state import SUBSET, WHOLE

Case = dict[str, Any]
_PACKAGES = ("torch", "torchdata", "numpy")
"""What a source says of its place may be in words of theirs."""


def played(parquets: list[str]) -> Iterator[Case]:
    """Play all recipes at all of their stops, and all epochs that go on elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written.write_all(folder, parquets)
        for recipe in RECIPES:
            for stop, (said, rest) in stops.stops_of(RECIPES[recipe], folder).items():
                case = {"name": f"{recipe}: {stop}", "recipe": recipe, "stop": stop}
                yield _told({**case, "cluster": RECIPES[recipe].home}, said, rest, folder)
        for saved in legs.saved(folder):
            case = {"name": saved.name, "recipe": saved.recipe, "stop": "elsewhere"}
            yield _told({**case, "cluster": saved.cluster}, saved.state, saved.rest, folder)


def _told(case: Case, said: str, rest: Rest, folder: Path) -> Case:
    state, recipe = json.loads(said), RECIPES[case["recipe"]]
    told = {**case, "state": state, **expected_of(state, rest)}
    there = recipe.other_than(case["cluster"])
    if "workers" in told and recipe.is_elastic and there[0] > 1:  # who gets what was left over
        told["elsewhere"] = play(recipe, there, folder, state=state).workers
    return told


def record(path: Path, *, sample: bool) -> int:
    """Write a recording, or add to one what it lacks."""
    recording = json.loads(path.read_text()) if path.exists() else _new()
    cases = {case["name"]: case for case in recording["cases"]}
    new = [case for case in played(recording["parquet"]) if case["name"] not in cases]
    if sample:
        new = list(_one_of_each_shape(list(cases.values()), new))
    versions = {case["state"]["version"] for case in (*cases.values(), *new)}
    if len(versions) > 1:
        print(f"{path} has states of one version, and there would be {sorted(versions)}.")
        return 1
    lines = ",\n".join(map(_line, (*cases.values(), *new)))
    head = _line({name: value for name, value in recording.items() if name != "cases"})
    path.write_text(f'{head[:-1]},"cases":[\n{lines}\n]}}\n')
    print(f"{len(cases)} cases kept, {len(new)} added")
    return 0


def _one_of_each_shape(old: list[Case], new: list[Case]) -> Iterator[Case]:
    """Leave out cases whose streams are as those of another one, but for the numbers."""
    known = {_shape_of(case) for case in old}
    for case in new:
        shape = _shape_of(case)
        if shape not in known and not RECIPES[case["recipe"]].is_timed:
            known.add(shape)
            yield case


def _shape_of(case: Case) -> str:
    state = case["state"]
    return repr((dict(state["recipe"])["source"], len(state["deals"]), _shape(state["streams"])))


def _shape(value: Any) -> Any:
    """The kinds of values: of a list of them each kind once, of what has a name all in order."""
    if not isinstance(value, list):
        return type(value).__name__
    if value and isinstance(value[0], str):
        return [value[0], *map(_shape, value[1:])]
    return sorted({repr(_shape(item)) for item in value})


def _new() -> dict[str, Any]:
    parquets = map(written.parquet, map(written.numbers_of, range(len(written.LENGTHS))))
    return {
        "packages": {name: version(name) for name in _PACKAGES},
        "parquet": [base64.b64encode(content).decode() for content in parquets],
        "cases": [],
    }


def compare(path: Path) -> int:
    """Play anew, and say which states have other bytes."""
    recording = json.loads(path.read_text())
    known = {case["name"]: case for case in recording["cases"]}
    counts = {"equal": 0, "of another version": 0, "with other bytes": 0, "not recorded": 0}
    for case in played(recording["parquet"]):
        expected = known.pop(case["name"], None)
        found = "not recorded" if expected is None else difference(expected, case) or "equal"
        counts[found] += 1
        if expected is not None and found == "with other bytes":
            shown = (json.dumps(one["state"]) for one in (expected, case))
            print(case["name"], *shown, sep="\n  ")
    print(*(f"{count} {what}" for what, count in counts.items()), sep=", ")
    if known:
        print(f"not played: {', '.join(known)}")
    return 1 if known or counts["with other bytes"] else 0


def difference(expected: Case, case: Case) -> str:
    """How a state differs from the recorded one; empty if it does not."""
    before, now = expected["state"], case["state"]
    if before["version"] != now["version"]:
        return "of another version"
    if json.dumps(before) == json.dumps(unmarked(now)):
        return ""
    if RECIPES[case["recipe"]].is_timed:  # where the streams can be read again is told in votes
        before, now = ({**state, "streams": []} for state in (before, now))
    return "" if json.dumps(before) == json.dumps(now) else "with other bytes"


def unmarked(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it was before places in sources held a mark of what they began with.

    And before those with an index said that they are of all of it, and not of a subset.
    """
    streams = [
        [batch, row, *([*told, _unmarked(place)] for *told, place in segments)]
        for batch, row, *segments in state["streams"]
    ]
    recipe = [fact for fact in state["recipe"] if fact != [SUBSET, WHOLE]]
    return {**state, "recipe": recipe, "streams": streams}


def _unmarked(place: Any) -> Any:
    kind, *values = place or [None]
    if kind == "source" and values[-1][0] == "mark":
        has_told = any(name == "state" for name, _ in values)
        return [kind, *values[:-1]] if has_told else None
    if kind == "streams":
        *numbers, (name, *streams) = values
        found = list(map(_unmarked, streams))
        return [kind, *numbers, [name, *found]] if any(found) else None
    return place


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.distribute.states.record")
    parser.add_argument("path", type=Path, metavar="PATH", help="a recording")
    parser.add_argument("--compare", action="store_true", help="play anew, compare the bytes")
    parser.add_argument("--sample", action="store_true", help="add one case of each shape")
    given = parser.parse_args()
    return compare(given.path) if given.compare else record(given.path, sample=given.sample)


if __name__ == "__main__":
    sys.exit(main())
