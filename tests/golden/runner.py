"""Play all cases of a file, and what there is to say about it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden.compare import differences
from tests.golden.play import play
from tests.golden.rules import RULES, rewritten
from tests.golden.skips import SKIPS, skip_rule
from tests.golden.values import Json

RECORDED = Path(__file__).with_name("tf.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one case ended.

    Attributes:
        differences: in words; empty if the case passed or was skipped.
        skipped: name of the rule by which it was not played.
        touched: names of the rules that rewrote its expected side.
    """

    differences: list[str] = field(default_factory=list)
    skipped: str | None = None
    touched: list[str] = field(default_factory=list)


def load(path: Path) -> list[Json]:
    """Read the cases of a file."""
    return list(json.loads(path.read_text()))


def run_case(case: Json, *, gloo: bool = False) -> Outcome:
    """Skip a case, or play it and compare."""
    rule = skip_rule(case)
    if rule is not None:
        return Outcome(skipped=rule.name)
    touched: list[str] = []
    try:
        promised, touched = rewritten(case)
        found = differences(promised, play(promised, gloo=gloo))
    except Exception as error:  # noqa: BLE001  # one case must not end the run
        found = [f"{type(error).__name__}: {error}"]
    return Outcome(differences=found, touched=touched)


def run_all(cases: Iterable[Json], *, gloo: bool, say: Callable[[str], None]) -> bool:
    """Play cases and report; whether all passed and every rule had a use."""
    passed = failed = 0
    skipped, touched = Counter[str](), Counter[str]()
    for case in cases:
        outcome = run_case(case, gloo=gloo)
        touched.update(outcome.touched)
        if outcome.skipped is not None:
            skipped[outcome.skipped] += 1
        elif outcome.differences:
            failed += 1
            first, *more = outcome.differences
            others = f" (and {len(more)} more)" if more else ""
            say(f"FAILED {case['id']}: {first.splitlines()[0]}{others}")
        else:
            passed += 1
    for skip in SKIPS:
        say(f"skipped {skipped[skip.name]:4}  {skip.name}: {skip.reason}")
    for rule in RULES:
        say(f"touched {touched[rule.name]:4}  {rule.name}: {rule.reason}")
    unused = [rule.name for rule in RULES if not touched[rule.name]]
    if unused:
        say(f"rules that touched no case: {', '.join(unused)}")
    say(f"{passed} passed, {failed} failed, {sum(skipped.values())} skipped")
    return not failed and not unused
