"""States as a release wrote them, and what must still be delivered: a recording for good.

    python -m tests.distribute.states.record OUT.json              record
    python -m tests.distribute.states.record --compare IN.json     play anew, compare the bytes

``version_1.json`` was recorded once, with the release that wrote version 1, and is never recorded
again: the states of that release must load for good (``test_version_1``). A release that writes
another version records another file beside it.

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
from tests.distribute.states.playing import Rest, expected_of

Case = dict[str, Any]
_PACKAGES = ("torch", "torchdata", "numpy")
"""What a source says of its place may be in words of theirs."""


def cases(folder: Path) -> Iterator[Case]:
    """Play all recipes, and all chains of them."""
    for name, recipe in RECIPES.items():
        for stop, (said, rest) in stops.stops_of(recipe, folder).items():
            case = {"name": f"{name}: {stop}", "recipe": name, "cluster": recipe.home}
            yield {**case, "stop": stop, **_expected(said, rest)}
    for saved in legs.saved(folder):
        case = {"name": saved.name, "recipe": saved.recipe, "cluster": saved.cluster}
        yield {**case, "stop": "elsewhere", **_expected(saved.state, saved.rest)}


def _expected(said: str, rest: Rest) -> Case:
    state = json.loads(said)
    return {"state": state, **expected_of(state, rest)}


def record(path: Path) -> int:
    """Write a recording."""
    parquets = [
        base64.b64encode(written.parquet(written.numbers_of(file))).decode()
        for file in range(len(written.LENGTHS))
    ]
    with tempfile.TemporaryDirectory() as folder:
        written.write_all(Path(folder), parquets)
        lines = [_line(case) for case in cases(Path(folder))]
    head = {"packages": {name: version(name) for name in _PACKAGES}, "parquet": parquets}
    text = _line(head)[:-1] + ',"cases":[\n' + ",\n".join(lines) + "\n]}\n"
    path.write_text(text)
    print(f"{len(lines)} cases, {len(text)} bytes")
    return 0


def compare(path: Path) -> int:
    """Play anew, and say which states have other bytes."""
    recording = json.loads(path.read_text())
    known = {case["name"]: case for case in recording["cases"]}
    counts = {"equal": 0, "of another version": 0, "with other bytes": 0}
    with tempfile.TemporaryDirectory() as folder:
        written.write_all(Path(folder), recording["parquet"])
        for case in cases(Path(folder)):
            expected = known.pop(case["name"])
            found = difference(expected, case)
            counts[found or "equal"] += 1
            if found == "with other bytes":
                shown = (json.dumps(one["state"]) for one in (expected, case))
                print(case["name"], *shown, sep="\n  ")
    print(*(f"{count} {what}" for what, count in counts.items()), sep=", ")
    if known:
        print(f"not played: {', '.join(known)}")
    return 1 if known or counts["with other bytes"] else 0


def difference(expected: Case, case: Case) -> str:
    """How a state differs from the recorded one; empty if it does not."""
    states = expected["state"], case["state"]
    if states[0]["version"] != states[1]["version"]:
        return "of another version"
    if RECIPES[case["recipe"]].is_timed:  # where the streams can be read again is told in votes
        states = tuple({**state, "streams": []} for state in states)
    before, now = map(json.dumps, states)
    return "" if before == now else "with other bytes"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.distribute.states.record")
    parser.add_argument("path", type=Path, metavar="PATH", help="a recording")
    parser.add_argument("--compare", action="store_true", help="play anew, compare the bytes")
    given = parser.parse_args()
    return compare(given.path) if given.compare else record(given.path)


if __name__ == "__main__":
    sys.exit(main())
