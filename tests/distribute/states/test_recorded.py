"""Recorded states of every version go on for good, here and elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torch_distinput as tdi
from tests.distribute.states import legs, record, stops
from tests.distribute.states.all_recipes import RECIPES
from tests.distribute.states.playing import (
    NUM_NEXT,
    counted,
    expected_of,
    in_order,
    play,
    replayed,
)
from tests.distribute.states.recipes import ALL, Place

RECORDINGS = {
    version: json.loads(Path(__file__).with_name(f"version_{version}.json").read_text())
    for version in (1, 2)
}
CASES = {
    f"{case['name']} (version {version})": case
    for version, recording in RECORDINGS.items()
    for case in recording["cases"]
}
ELASTIC = [
    name
    for name, case in CASES.items()
    if RECIPES[case["recipe"]].is_elastic
    # Other workers leave out other examples at the ends of their streams.
    and ("batches" in case or "drop_last" not in RECIPES[case["recipe"]].keywords)
]
FIRM = [name for name, case in CASES.items() if not RECIPES[case["recipe"]].is_elastic]
REPLAYED = [
    name
    for name, case in CASES.items()
    if case.get("batches") and not RECIPES[case["recipe"]].is_function
]


def going_on(name, cluster, folder, **keywords):
    """Play on from the state of a case."""
    case = CASES[name]
    return play(RECIPES[case["recipe"]], cluster, folder, **{"state": case["state"], **keywords})


def elsewhere_of(name):
    """Another cluster than that of the state."""
    return RECIPES[CASES[name]["recipe"]].other_than(CASES[name]["cluster"])


def compare_examples(name, *parts):
    """One order goes on; what was dealt out is delivered once."""
    case = CASES[name]
    if "batches" in case:
        assert case["batches"] == [step for part in parts for step in in_order(part)]
    else:
        assert counted(case["workers"]) == counted(*parts)


@pytest.mark.parametrize("name", CASES)
def test_on_the_same_cluster(name, folder):
    """The steps that were to come, and the beginning of the next epoch."""
    case = CASES[name]
    rest = going_on(name, case["cluster"], folder, num_next=NUM_NEXT if "next" in case else None)

    expected = {key: case[key] for key in ("batches", "workers", "next") if key in case}
    assert expected == expected_of(case["state"], rest)


@pytest.mark.parametrize("name", ELASTIC)
def test_elsewhere(name, folder):
    """The same examples, dealt out to other workers or replicas."""
    rest = going_on(name, elsewhere_of(name), folder)

    compare_examples(name, rest.workers)
    assert CASES[name].get("elsewhere", rest.workers) == rest.workers


@pytest.mark.parametrize("name", [name for name in ELASTIC if CASES[name]["stop"] == "elsewhere"])
def test_elsewhere_and_back(name, folder):
    """What is saved there is of the version of today, and goes on from what was loaded."""
    there = going_on(name, elsewhere_of(name), folder, num_steps=2)
    back = going_on(name, CASES[name]["cluster"], folder, state=json.loads(there.state))

    compare_examples(name, there.workers, back.workers)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["stop"] == "ended"])
def test_the_next_epoch_saved_again(name, folder):
    """The beginning of what follows the end of a recorded epoch is in a state of today."""
    case = CASES[name]
    begun = going_on(name, case["cluster"], folder, num_next=0)
    state = json.loads(begun.state)
    rest = going_on(name, case["cluster"], folder, state=state, num_steps=NUM_NEXT)

    assert case["next"] == (in_order(rest.workers) if "batches" in case else rest.workers)


@pytest.mark.parametrize("name", FIRM)
def test_what_only_the_same_workers_can_continue(name, folder):
    with pytest.raises(tdi.ConfigurationError, match="Start as many"):
        going_on(name, elsewhere_of(name), folder)


@pytest.mark.parametrize("name", REPLAYED)
def test_replay(name, folder):
    """The first step after the state, as all replicas got it."""
    case = CASES[name]

    assert case["batches"][0] == replayed(RECIPES[case["recipe"]], folder, case["state"])


def test_every_kind_is_recorded():
    """Each recipe at each of its stops, and each epoch that went on elsewhere."""
    known = {f"{name}: {stop}" for name, recipe in RECIPES.items() for stop in recipe.positions}
    cases = RECORDINGS[1]["cases"]

    assert {*known, *legs.names()} == {case["name"] for case in cases}
    assert len(cases) >= 303
    assert {*ALL, "older", "elsewhere"} <= {case["stop"] for case in cases}
    assert {0, 1, 2, 3} <= {len(case["state"]["deals"]) for case in cases}


def test_all_recordings_are_of_the_same_files():
    assert RECORDINGS[1]["parquet"] == RECORDINGS[2]["parquet"]


@pytest.mark.parametrize("version", RECORDINGS)
def test_a_recording_is_of_one_version(version):
    assert {version} == {case["state"]["version"] for case in RECORDINGS[version]["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_state_is_of_the_version_of_today(name, folder):
    """Before the first ``iter()``, on one worker; what it is of and what was delivered stay."""
    case = CASES[name]
    place = Place(folder=folder)
    recipe = RECIPES[case["recipe"]]
    dataset = recipe.distribute(tdi.OneDeviceStrategy("cpu"), place)
    dataset.load_state_dict(case["state"])
    loaded = dataset.state_dict()

    assert loaded["version"] == 2
    assert list(case["state"]) == list(loaded)  # a checkpoint library looks for the same keys
    for key in ("recipe", "epoch", "steps", "examples", "grid", "rounds", "rows"):
        assert case["state"][key] == loaded[key]
    dataset.load_state_dict(loaded)
    assert json.dumps(loaded) == json.dumps(dataset.state_dict())


SAMPLE = sorted({case["recipe"] for case in RECORDINGS[2]["cases"] if case["stop"] != "elsewhere"})


@pytest.mark.parametrize("recipe", [name for name in SAMPLE if not RECIPES[name].is_timed])
def test_the_bytes_of_today(recipe, folder):
    """What is saved today is what was recorded when the version was new, but for marks."""
    recorded = [
        case
        for case in RECORDINGS[2]["cases"]
        if case["recipe"] == recipe and case["stop"] != "elsewhere"
    ]
    played = stops.stops_of(RECIPES[recipe], folder)

    for case in recorded:
        now = {**case, "state": json.loads(played[case["stop"]][0])}
        assert record.difference(case, now) == "", now["state"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ""),
        ({"steps": 99}, "with other bytes"),
        ({"version": 2, "steps": 99}, "of another version"),
    ],
)
def test_bytes_are_compared_within_a_version(change, found):
    case = RECORDINGS[1]["cases"][0]
    changed = {**case, "state": {**case["state"], **change}}

    assert found == record.difference(case, changed)
