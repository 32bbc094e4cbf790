"""States that are damaged, or of other operations, are refused with words, in every version."""

from __future__ import annotations

import copy
import json

import pytest
import torch.distributed.checkpoint as dcp

import torch_distinput as tdi
from tests.distribute.states.all_recipes import RECIPES
from tests.distribute.states.playing import in_order, play, steps_of
from tests.distribute.states.recipes import Place
from tests.distribute.states.test_recorded import CASES

ONE_PROCESS = "ignore:torch.distributed is disabled, unavailable or uninitialized"
CHAIN = "text, interleave, filter, shuffle, map, FILE"
OLD = {
    name: CASES[f"{name}: {stop} (version 1)"]
    for name, stop in [
        ("text", "middle"),
        ("text, take, FILE", "middle"),
        ("decoded, filter, FILE", "middle"),
        (CHAIN, "middle"),
        ("text, all, FILE", "middle"),
        ("its state", "middle"),
        ("ready, its state", "step 1"),
        ("function, its state", "step 1"),
    ]
}
NEW = {name.removesuffix(" (version 2)"): case for name, case in CASES.items() if "n 2)" in name}


def loaded(case, state, folder, recipe=""):
    """A dataset of one worker that has loaded a state."""
    dataset = RECIPES[recipe or case["recipe"]].distribute(
        tdi.OneDeviceStrategy("cpu"), Place(folder=folder)
    )
    dataset.load_state_dict(state)
    return dataset


def first_segment(state):
    """The first one that has a place, in a copy."""
    state = copy.deepcopy(state)
    segments = [segment for stream in state["streams"] for segment in stream[2:]]
    return state, next(segment for segment in segments if len(segment) > 4 and segment[4] != [])


WORDS = "Expected (the numbers of a|a place|the place|a whole)"


@pytest.mark.slow
@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("damage", [[0], [{"a": "dict"}], [-7], [0, 0]])
def test_version_1_with_something_left_over(name, damage, folder):
    """The numbers are read from the right; what is left is said where the state is loaded."""
    state, segment = first_segment(OLD[name]["state"])
    segment[4:4] = damage

    with pytest.raises(ValueError, match=WORDS):
        loaded(OLD[name], state, folder)


NEEDED = [name for name in OLD if "text, " in name or "decoded" in name or "ready" in name]


@pytest.mark.parametrize("name", NEEDED)
def test_version_1_with_too_few_numbers(name, folder):
    state, segment = first_segment(OLD[name]["state"])
    del segment[4]

    with pytest.raises(ValueError, match=WORDS):
        loaded(OLD[name], state, folder)


def test_version_1_of_another_source(folder):
    """Said before its places are taken apart."""
    with pytest.raises(tdi.ConfigurationError, match="source was 'files or shards', and here"):
        loaded(OLD[CHAIN], OLD[CHAIN]["state"], folder, "its state")


def test_version_1_of_other_operations(folder):
    """The error says which there are here, and what came."""
    case = OLD[CHAIN]

    with pytest.raises(tdi.ConfigurationError, match=r"in files with take, .* got \[\d+, \d+"):
        loaded(case, case["state"], folder, "text, take, FILE")


@pytest.mark.parametrize("name", ["text: middle (version 1)", "text: step 1 (version 2)"])
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("grid", [2, 1, 4], "not enough values"),
        ("rounds", -1, "-1 is no count"),
        ("reaches", [1.5, 0], "1.5 is no count"),
        ("deals", None, "NoneType"),
        ("streams", [[0, 0, [0, 0]]], "values to unpack"),
        ("streams", [[0, 0, [0, 0, 0, "many", 3]]], "'many'"),
        ("recipe", 3, "int"),
    ],
)
def test_damage(name, key, value, words, folder):
    case = CASES[name]

    with pytest.raises(ValueError, match=f"whole state of a DistributedDataset.*{words}"):
        loaded(case, {**case["state"], key: value}, folder)


@pytest.mark.parametrize("name", ["text: middle (version 1)", "text: step 1 (version 2)"])
@pytest.mark.parametrize("key", ["epoch", "steps", "examples", "grid", "rounds", "rows", "deals"])
def test_a_key_that_is_missing(name, key, folder):
    case = CASES[name]
    state = {own: value for own, value in case["state"].items() if own != key}

    with pytest.raises(ValueError, match=f"damaged one .KeyError: '{key}'"):
        loaded(case, state, folder)


def test_a_later_version(folder):
    case = CASES["text: step 1 (version 2)"]

    with pytest.raises(ValueError, match="version 1, 2 or 3.*got version 4"):
        loaded(case, {**case["state"], "version": 4}, folder)


PLACED = {
    case["recipe"]: case
    for case in NEW.values()
    if case["stop"] != "elsewhere" and any(stream[2][4] for stream in case["state"]["streams"])
}


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("changed", ["kind", "value"])
def test_a_place_of_another_operation(name, changed, folder):
    """Said where it is read, with what was expected and what came; it stands for nothing else."""
    case = PLACED[name]
    state = copy.deepcopy(case["state"])
    for _, _, *segments in state["streams"]:
        for segment in segments:
            if segment[4] is not None:
                spoil(segment[4], changed)

    words = "Expected .* got .*The state is of data that is read in another way"
    with pytest.raises(tdi.SourceError, match=words):
        play(RECIPES[case["recipe"]], case["cluster"], folder, state=state)


def spoil(place, changed):
    """Rename the innermost operation, or the first of its values."""
    while place[-1][0] == "from" and place[-1][1] is not None:
        place = place[-1][1]
    if changed == "kind" or not isinstance(place[1], list) or place[1][0] == "skip":
        place[0] = "another"
    else:
        place[1][0] = "another"


class Held:
    """A state that is saved as it is."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        raise AssertionError


@pytest.mark.filterwarnings(ONE_PROCESS)
@pytest.mark.parametrize("name", ["tensor", "generator", "text, shuffle, DATA"])
def test_through_a_library_that_looks_for_the_same_keys(name, folder, tmp_path):
    """``torch.distributed.checkpoint`` asks a fresh dataset which keys to load."""
    case = CASES[f"{name}: middle (version 1)"]
    dcp.save({"train": Held(case["state"])}, checkpoint_id=tmp_path)
    strategy = tdi.OneDeviceStrategy("cpu")
    fresh = RECIPES[case["recipe"]].distribute(strategy, Place(folder=folder))
    dcp.load({"train": fresh}, checkpoint_id=tmp_path)

    assert case["batches"] == in_order([list(steps_of(strategy, iter(fresh)))])
    assert json.dumps(fresh.state_dict()).startswith('{"version": 2')
