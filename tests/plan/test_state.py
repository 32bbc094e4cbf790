"""A position as a dict, and what is refused on the way back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import (
    BatchLayout,
    Position,
    Segment,
    StreamPosition,
)
from torch_distinput.plan.progress.state import (
    LENGTHS,
    SETTINGS,
    check_recipe,
    compact_state,
    from_state,
    to_current,
    to_state,
)

PLACE = Place("shuffle", (("window", 3),), 1, (Place("partition", (("number", 4),)),))
LAYOUT = BatchLayout(num_workers=2, replicas_per_worker=3, global_batch_size=4, rebatch="even")
POSITION = Position(
    epoch=5,
    layout=LAYOUT,
    steps=6,
    examples=24,
    steps_done=7,
    rows=(8, 9),
    files_touched=(1, 2),
    streams=(
        StreamPosition(batch=1, row=-2, segments=(Segment(worker=0, num_files=3, skip=2),)),
        StreamPosition(segments=(Segment(assignment=1, worker=1, start=PLACE),)),
    ),
    reassignments=((1, 2, 3),),
)
RECIPE = {"seed": 3, SETTINGS: "x"}


def load(state):
    """What ``load_state_dict`` does with it; no place of version 1 is in it."""
    return from_state(to_current(state, RECIPE, pytest.fail, name="files"))


def test_a_state_is_these_bytes():
    """What is saved today is loaded by later releases."""
    expected = (
        '{"version": 2, "recipe": [["seed", 3], ["seeds and shards of the stream", "x"]], '
        '"epoch": 5, "steps": 6, "examples": 24, "grid": [2, 3, 4, "even"], "rounds": 7, '
        '"rows": [8, 9], "reaches": [1, 2], "streams": [[1, -2, [0, 0, 3, 2, null]], '
        '[0, 0, [1, 1, null, 0, ["shuffle", ["window", 3], ["skip", 1], '
        '["from", ["partition", ["number", 4]]]]]]], "deals": [[1, 2, 3]]}'
    )
    assert expected == json.dumps(to_state(POSITION, RECIPE))


def test_a_position_comes_back():
    assert POSITION == load(json.loads(json.dumps(to_state(POSITION, RECIPE))))


def place_of(worker):
    return Place("partition", (("number", worker * 31 % 7),))


def many_workers(num_workers, *, start=lambda _: None):
    """Under FILE, where each worker has a stream of its own."""
    streams = tuple(
        StreamPosition(batch=2, row=8, segments=(Segment(worker=worker, start=start(worker)),))
        for worker in range(num_workers)
    )
    return Position(
        epoch=1,
        layout=replace(LAYOUT, num_workers=num_workers),
        steps=10,
        rows=(40,) * num_workers,
        files_touched=(3,) * num_workers,
        streams=streams,
        reassignments=((2,) * num_workers,),
    )


@pytest.mark.parametrize("num_workers", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("start", [lambda _: None, lambda _: PLACE, place_of])
def test_a_position_of_many_workers_comes_back(num_workers, start):
    position = many_workers(num_workers, start=start)
    state = to_state(position, RECIPE)

    assert (3 if num_workers > 16 else 2) == state["version"]
    assert position == load(json.loads(json.dumps(state)))


def test_a_state_that_was_loaded_is_packed_again():
    state = to_state(many_workers(40), RECIPE)
    assert state == compact_state(to_current(state, RECIPE, pytest.fail, name="files"))


def test_a_state_of_a_few_workers_after_many_is_packed_as_well():
    position = replace(POSITION, reassignments=((1,) * 40,))
    state = to_state(position, RECIPE)

    assert 3 == state["version"]
    assert position == load(state)


def test_a_state_of_many_workers_that_are_alike_is_small():
    """Four kilobytes, whatever they have delivered."""
    for start in (lambda _: None, lambda _: PLACE):
        state = to_state(many_workers(16_384, start=start), RECIPE)
        assert len(json.dumps(state)) < 1000


def test_a_state_of_many_workers_that_differ_takes_a_number_for_each():
    state = to_state(many_workers(16_384, start=place_of), RECIPE)
    assert len(json.dumps(state)) < 16_384 * 3 + 1000


def test_a_damaged_state_of_many_workers_is_refused():
    state = to_state(many_workers(40), RECIPE)
    with pytest.raises(ValueError, match="got a damaged one"):
        load({**state, "streams": ["values", [40, 0]]})


@pytest.mark.parametrize(
    ("state", "got"),
    [
        (7, "got int"),
        ({"model": 1}, "got a dict with the keys 'model'"),
        ({"version": 99}, "got version 99"),
    ],
)
def test_what_is_no_state_is_named(state, got):
    with pytest.raises(ValueError, match=f"Expected what .*state_dict.* returned .*{got}"):
        load(state)


DAMAGES = [
    ("epoch", -1),
    ("steps", 1.5),
    ("examples", "many"),
    ("grid", [2, 3, 4]),
    ("grid", [-2, 3, 4, "even"]),
    ("grid", [2, 3, ["bytes", 4, None], "even"]),
    ("grid", [2, 3, ["tokens", -4, None], "even"]),
    ("grid", [2, 3, ["tokens", 4], "even"]),
    ("rounds", None),
    ("rows", [-1, 0]),
    ("streams", [[0]]),
    ("streams", [[-1, 0, [0, 0, 1, 0, None]]]),
    ("streams", [[0, 0, [0, 0, 1, -1, None]]]),
    ("streams", [[0, 0, [0, 0, 1, 0]]]),
    ("streams", [[0, 0, [0, 0, 1, 0, ["shuffle", 3]]]]),
    ("deals", [1]),
    ("deals", [[]]),
    ("rows", [8]),
    ("reaches", [1]),
    ("streams", [[0, 0], [0, 0, [0, 0, 1, 0, None]]]),
    ("streams", [[0, 0, [0, 0, 1, 0, None]]] * 3),
]


@pytest.mark.parametrize("max_length", [None, 3])
def test_a_state_knows_its_budget(max_length):
    """In the place of a number of examples."""
    size = BatchBudget(num_tokens=9, max_length=max_length)
    position = replace(POSITION, layout=replace(LAYOUT, global_batch_size=size))
    state = to_state(position, RECIPE)
    assert [2, 3, ["tokens", 9, max_length], "even"] == state["grid"]
    assert position == load(json.loads(json.dumps(state)))


def test_a_number_of_examples_becomes_a_budget():
    """Its lengths are no fact that the state of before must have; other lengths are."""
    state = to_state(POSITION, RECIPE)
    check_recipe(state, {**RECIPE, LENGTHS: "a"}, name="rows")
    told = to_state(POSITION, {**RECIPE, LENGTHS: "a"})
    check_recipe(told, RECIPE, name="rows")
    with pytest.raises(ConfigurationError, match=f"{LENGTHS} was 'a', and here it is 'b'"):
        check_recipe(told, {**RECIPE, LENGTHS: "b"}, name="rows")


@pytest.mark.parametrize(("key", "value"), DAMAGES)
def test_a_damaged_state_is_refused(key, value):
    with pytest.raises(ValueError, match="got a damaged one"):
        load({**to_state(POSITION, RECIPE), key: value})


@pytest.mark.parametrize("key", [key for key in to_state(POSITION, RECIPE) if key != "version"])
def test_a_state_without_a_key_is_refused(key):
    state = to_state(POSITION, RECIPE)
    del state[key]
    with pytest.raises(ValueError, match=f"got a damaged one .*{key}"):
        load(state)


def test_another_recipe_is_refused_and_named():
    state = to_state(POSITION, RECIPE)
    check_recipe(state, RECIPE, name="files")
    with pytest.raises(ConfigurationError, match="seed was 3, and here it is 4"):
        check_recipe(state, {**RECIPE, "seed": 4}, name="files")
    with pytest.raises(ConfigurationError, match="shuffle was 'another', and here it is True"):
        check_recipe(state, {**RECIPE, "shuffle": True}, name="files")


def test_an_older_state_has_no_settings_to_compare():
    state = to_state(POSITION, {"seed": 3})
    check_recipe(state, RECIPE, name="files")
