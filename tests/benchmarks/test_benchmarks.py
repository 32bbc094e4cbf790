"""The benchmarks run and say what they should. How long anything takes is not asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from tests.commands import output_of
from tests.conftest import LONG

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Ours, with a target: the unit of each workload.
EXPECTED: dict[str, dict[str, str]] = {
    "host": {
        **{f"{data}, {ranks}": "ratio" for data in ("tensors", "images")
           for ranks in ("1 rank", "2 ranks")},
        **{f"Python examples, {count} loader processes": "ratio" for count in (0, 2)},
    },
    "threads": {"compressed images": "ratio", "a slow store": "ratio"},
    "files": {
        f"{name}, {order}, 1 rank": "ratio"
        for name in ("text", "jsonl", "tfrecord", "parquet", "arrow", "tar")
        for order in ("sequential", "shuffled")
    },
    "split": {
        "four views of 2 leaves": "ratio",
        "four views of 12 leaves": "ratio",
        "zero rows of 2 leaves": "us",
        "zero rows of 12 leaves": "us",
    },
    "steps": {f"a step of a {source} as a value": "us" for source in ("tensor", "stream")},
    "agreement": {"agreement, no work": "us", "agreement, 2 ms of work": "us"},
    "resume": {
        **{f"resume at {percent} %, {source}": "ms" for source in ("a tensor", "map-style")
           for percent in (0, 50, 90)},
        **{f"resume at 90 %, {source}": "ms" for source in (
            "npy", "npy, shuffle(10000)", "npy, interleave(4, 16)", "parquet", "text",
            "text, split, filter", "a generator",
        )},
    },
    "startup": {"start-up": "ratio"},
    "order": {"order: first batch": "ms", "order: an index": "us", "order: memory": "MB"},
    "mixing": {"mixing, order": "us"},
    "balance": {
        **{f"step time, {cost}": "ratio" for cost in ("tokens", "attention", "padded")},
        "dealing": "ms",
    },
    "packing": {
        "packing: a document planned": "us",
        "packing: waste": "ppm",
        "packing: documents cut": "ppm",
        "packing: a token": "ns",
    },
    "preprocessing": {
        **{f"adapt {layer}": "ns" for layer in ("Normalization", "Discretization")},
        "rank error": "ppm",
        "counting tokens": "ns",
        **{f"lookup, host strings{how}": "ns" for how in ("", ", all as often", ", of a table")},
        **{f"lookup, packed strings{where}": "ns" for where in ("", ", in a file")},
        "memory of a file's tokens": "MB",
    },
    "coordinator": {
        **{f"{closures}, 2 workers": "ratio" for closures in ("closures", "closures of 5 ms")},
        **{f"{direction}, {what}": "ratio" for direction in ("pull", "push")
           for what in ("dense", "rows")},
    },
    "engine_calls": dict.fromkeys(("small calls", "arrays sent", "arrays returned"), "ratio"),
}  # fmt: skip
OF_RAY = ("coordinator", "engine_calls")
# What the scripts call is what mypy has checked; one of them runs here, all of them in test-long.
ALL = [name for name in EXPECTED if find_spec("ray") is not None or name not in OF_RAY]
SCRIPTS = ALL if LONG else ["order"]
PEERS = {  # of packages that every user has
    "host": ("tensors, 2 ranks", "DataLoader, by batch"),
    "threads": ("a slow store", "DataLoader"),
    "files": ("text, sequential, 1 rank", "DataLoader, IterableDataset"),
    "agreement": ("agreement, no work", "all_reduce in each step"),
    "resume": ("resume at 50 %, map-style", "StatefulDataLoader"),
    "order": ("order: memory", "DistributedSampler, 10^4"),
    "mixing": ("mixing, examples", "WeightedRandomSampler"),
    "coordinator": ("closures, 2 workers", "Ray, ActorPool"),
}


def run_script(script: str) -> str:
    """What a script prints with its smallest data."""
    command: list[str | Path] = [sys.executable, BENCHMARKS / f"{script}.py", "--tiny", "--json"]
    return output_of(command)


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    """The figures of each script; two scripts run at a time."""
    with ThreadPoolExecutor(2) as pool:
        printed = zip(SCRIPTS, pool.map(run_script, SCRIPTS), strict=True)
        return {script: json.loads(text) for script, text in printed}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that makes the page."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(BENCHMARKS)
        import report

        yield report


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_each_workload_has_a_figure_of_ours_with_a_target(measured, script):
    ours = {row["workload"]: row["unit"] for row in measured[script] if row["target"] is not None}

    assert EXPECTED[script] == ours
    assert all(
        row["case"].startswith("torch_distinput")
        for row in measured[script]
        if row["target"] is not None
    )


@pytest.mark.parametrize("script", [script for script in PEERS if script in SCRIPTS])
def test_peers_are_measured_beside_ours(measured, script):
    assert PEERS[script] in [(row["workload"], row["case"]) for row in measured[script]]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_there_is_no_floor_and_no_figure():
    assert [] == json.loads(run_script("coordinator"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_figures_are_numbers_with_a_range(measured, script):
    """A ratio is positive. A difference of times need not be, nor a growth of memory."""
    for row in measured[script]:
        assert all(isfinite(row[name]) for name in ("low", "value", "high"))
        assert row["low"] <= row["value"] <= row["high"]
        assert row["unit"] != "ratio" or row["low"] > 0
        assert row["floor"] is None or row["floor"] > 0


def test_the_page_names_what_is_met_and_missed(measured, report):
    order = [{**row, "value": 1e9} for row in measured["order"]]
    results = {"machine": {"cores": "2"}, "scripts": {"order": order}}

    page = report.page(results)

    assert "0 of 3 targets are met." in page
    assert "| order: memory (10^9) | 1000000000 MB | 5 MB |" in page
    assert page.count("| missed |") == 3
    assert "| cores | 2 |" in page
    assert "DistributedSampler" in page


def test_the_chart_has_bars_and_targets_of_both(measured, report):
    drawn = report.draw({"scripts": measured})

    figures = report.read({"scripts": measured}).values()
    rows = report.compared([one for many in figures for one in many])
    assert rows
    for kind in ("ours", "peer", "target"):
        assert len(rows) + 1 == drawn.count(f'class="{kind}"')  # one in the legend


def test_the_chart_was_made_from_the_results(report):
    results = json.loads((BENCHMARKS / "results.json").read_text())

    assert report.draw(results) == (BENCHMARKS.parent / "docs" / "benchmarks.svg").read_text()


def test_the_page_was_made_from_the_results(report):
    """Whoever changes one makes the other anew: ``python benchmarks/report.py``."""
    results = json.loads((BENCHMARKS / "results.json").read_text())

    assert report.page(results) == (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text()
