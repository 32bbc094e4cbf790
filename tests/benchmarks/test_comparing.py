"""Kept figures and new ones, compared; all of them made up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MACHINE = {"cores": "2", "torch": "2.13.0"}
OURS = "torch_distinput"


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that compares."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(BENCHMARKS)
        import comparing

        yield comparing


def row(low: float, value: float, high: float, **changes: Any) -> dict[str, Any]:
    """A figure."""
    made = {"workload": "text", "case": OURS, "unit": "ratio"}
    return {**made, "low": low, "value": value, "high": high, **changes}


def results(*rows: dict[str, Any], machine: dict[str, str] = MACHINE) -> dict[str, Any]:
    """A run of one script."""
    return {"machine": machine, "scripts": {"files": list(rows)}}


# Kept from 1.0 to 1.2. A figure that lies below "to" and both spreads may be noise.
@pytest.mark.parametrize(
    ("now", "is_slower"),
    [
        ((1.1, 1.1, 1.1), False),
        ((1.38, 1.38, 1.38), False),  # 1.2 + 0.2 + 0
        ((1.42, 1.42, 1.42), True),
        ((1.3, 1.42, 1.5), False),  # 1.2 + 0.2 + 0.2
        ((1.5, 1.62, 1.7), True),
        ((0.3, 0.4, 0.5), False),  # faster
    ],
)
def test_slower_is_what_lies_above_the_range_by_more_than_both_spreads(comparing, now, is_slower):
    kept = results(row(1.0, 1.1, 1.2))

    found = comparing.compare(kept, results(row(*now)), is_quick=False)

    assert ([now[1]] if is_slower else []) == [pair.now.value for pair in found.slower]


def test_the_table_shows_both_and_the_spread(comparing):
    kept = results(row(1.0, 1.1, 1.25), row(5, 5, 5, case="a peer", unit="us"))
    now = results(row(2.0, 2.5, 2.5), row(6, 6, 7, case="a peer", unit="us"))

    lines = str(comparing.compare(kept, now, is_quick=False)).splitlines()

    assert f"| text | {OURS} | 1.1 | 2.5 | 0.75 |  |" in lines
    assert "1 of 2 figures got slower, 1 of them ours." == lines[-1]


def test_a_quick_run_is_compared_with_the_quick_one_that_was_kept(comparing):
    quick = results(row(7, 7, 7, unit="us"))
    kept = {**results(row(1, 1, 1, unit="us")), "quick": quick}

    found = comparing.compare(kept, results(row(6, 6, 6, unit="us")), is_quick=True)

    assert [7] == [pair.kept.value for pair in found.pairs]
    assert () == found.slower


def test_without_a_kept_quick_run_times_are_not_compared(comparing):
    rows = (row(1, 1, 1), row(1, 1, 1, workload="start", unit="ms"))
    now = (row(2, 2, 2), row(9, 9, 9, workload="start", unit="ms"))

    found = comparing.compare(results(*rows), results(*now), is_quick=True)

    assert ["text"] == [pair.now.workload for pair in found.slower]
    assert str(found).endswith(", 1 of them ours. 1 are times of less data than was kept.")


def test_a_full_run_compares_times_too(comparing):
    kept, now = results(row(1, 1, 1, unit="ms")), results(row(2, 2, 2, unit="ms"))

    assert 1 == len(comparing.compare(kept, now, is_quick=False).slower)


def test_another_machine_is_named_and_nothing_judged(comparing):
    now = results(row(9, 9, 9), machine={**MACHINE, "cores": "4", "ray": "2.60", "numpy": "2.4"})
    kept = results(row(1, 1, 1), machine={**MACHINE, "processor": "not told now", "numpy": "2.4"})

    found = comparing.compare(kept, now, is_quick=False)

    assert () == found.slower
    assert "Kept on another machine, nothing is judged: cores 2, now 4." == str(found)


@pytest.mark.parametrize("versions", [("not installed", "1.0"), ("1.0", "not installed")])
def test_a_package_that_only_one_had_makes_no_other_machine(comparing, versions):
    kept, now = (results(row(1, 1, 1), machine={"accelerate": one}) for one in versions)

    assert () == comparing.compare(kept, now, is_quick=False).differences


def test_what_has_no_partner_is_counted(comparing):
    """A workload that is measured otherwise, in another unit, is a new one."""
    kept = results(row(1, 1, 1), row(1, 1, 1, workload="old"), row(1, 1, 1, workload="unit"))
    kept["scripts"]["host"] = [row(1, 1, 1)]  # did not run
    now = results(row(1, 1, 1), row(9, 9, 9, workload="unit", unit="us"))

    found = str(comparing.compare(kept, now, is_quick=False))

    assert "0 of 1 figures got slower, 0 of them ours. 1 are new. 2 were kept and not measured."\
        == found


def test_runs_of_both_kinds_are_kept_beside_each_other(comparing):
    full, quick = results(row(1, 1, 1)), results(row(2, 2, 2))
    newer = results(row(3, 3, 3))

    kept = comparing.join_kept(comparing.NOTHING, full, is_quick=False, is_part=False)
    kept = comparing.join_kept(kept, quick, is_quick=True, is_part=False)

    assert {**full, "quick": quick} == kept
    assert {**newer, "quick": quick} == comparing.join_kept(
        kept, newer, is_quick=False, is_part=False
    )


@pytest.mark.parametrize("is_quick", [False, True])
def test_some_scripts_take_their_place_among_the_others(comparing, is_quick):
    before = {"machine": MACHINE, "scripts": {"files": [row(1, 1, 1)], "host": [row(2, 2, 2)]}}
    kept = {**before, "quick": before}
    expected = {"machine": MACHINE, "scripts": {**before["scripts"], "files": [row(3, 3, 3)]}}

    found = comparing.join_kept(kept, results(row(3, 3, 3)), is_quick=is_quick, is_part=True)

    assert ({**before, "quick": expected} if is_quick else {**expected, "quick": before}) == found


@pytest.fixture
def play_run(comparing, monkeypatch, tmp_path):
    """Run all benchmarks, of which one is there and measures 9, where 1 was kept."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import run

    file = tmp_path / "results.json"
    file.write_text(json.dumps(results(row(1, 1, 1), machine=run.machine())))
    monkeypatch.setattr(run, "RESULTS", file)
    monkeypatch.setattr(run, "SCRIPTS", ("files",))
    monkeypatch.setattr(run, "figures_of", lambda *_: [row(9, 9, 9)])

    def play(*options: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["run.py", *options])
        run.main()
        return json.loads(file.read_text())

    return play


def test_a_quick_run_says_what_got_slower_and_keeps_nothing(play_run, capsys):
    kept = play_run("--quick")

    assert [1] == [one["value"] for one in kept["scripts"]["files"]]
    assert "quick" not in kept
    assert "1 of 1 figures got slower, 1 of them ours.\n" in capsys.readouterr().out


def test_a_quick_run_is_kept_when_asked_for(play_run):
    kept = play_run("--quick", "--keep")

    assert [1] == [one["value"] for one in kept["scripts"]["files"]]
    assert [9] == [one["value"] for one in kept["quick"]["scripts"]["files"]]


def test_what_got_slower_fails_where_that_is_asked_for(play_run):
    with pytest.raises(SystemExit, match="1"):
        play_run("--quick", "--fail-if-slower")
