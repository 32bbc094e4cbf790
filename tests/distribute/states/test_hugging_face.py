"""States of streams whose shards were dealt out in parts: they go on, and no row is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torch_distinput as tdi
from tests.distribute.hugging_face_streams import EVERY_KIND, distribute, play, rows_of

RECORDED = json.loads(Path(__file__).with_name("hugging_face.json").read_text())
ALL = 1 << 31


def name_of(recorded):
    """For the report."""
    return f"{recorded['stream']}-{recorded['workers']}-{recorded['state']['steps']}"


def as_version_1(state):
    """The same state as the first release wrote it: no places, and ALL as a number."""
    streams = [
        [batch, row, *([a, w, ALL if n is None else n, skip] for a, w, n, skip, _ in segments)]
        for batch, row, *segments in state["streams"]
    ]
    deals = [[ALL if n is None else n for n in touched] for touched in state["deals"]]
    return {**state, "version": 1, "streams": streams, "deals": deals}


@pytest.mark.parametrize("workers", [(1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_recorded_states_go_on(recorded, workers):
    """On the workers they are from and on others, and from the states that follow."""
    make, state = EVERY_KIND[recorded["stream"]], json.dumps(recorded["state"])
    epoch = recorded["epoch"]
    middle, state = play(make, workers[0], state, steps=1, epoch=epoch)
    rest, _ = play(make, workers[1], state, epoch=epoch)
    expected = sorted(row["row"] for row in make())
    assert expected == sorted([*recorded["rows"], *rows_of(middle + rest)])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("recorded", RECORDED[2:6], ids=name_of)
def test_recorded_states_of_version_1(recorded, workers):
    """They hold no places."""
    make, state = EVERY_KIND[recorded["stream"]], as_version_1(recorded["state"])
    rest, _ = play(make, workers, json.dumps(state), epoch=recorded["epoch"])
    expected = sorted(row["row"] for row in make())
    assert expected == sorted([*recorded["rows"], *rows_of(rest)])


def test_the_epoch_after_is_dealt_out_by_shard():
    """Parts are for the epoch that was saved."""
    recorded = RECORDED[2]
    one = tdi.OneDeviceStrategy("cpu")
    dataset = distribute(one, EVERY_KIND[recorded["stream"]])
    dataset.load_state_dict(recorded["state"])
    list(dataset)
    steps = iter(dataset)
    rows = [row for step in steps for row in step["row"].tolist()]
    assert sorted(rows) == rows
    assert "part" not in json.dumps(steps.state_dict()["streams"])


def test_a_state_by_shard_is_refused_where_there_are_parts():
    """Of the same files, but with a stage that counts beyond the end of a shard."""
    _, state = play(EVERY_KIND["tables"], 1, steps=1)
    other = distribute(tdi.OneDeviceStrategy("cpu"), EVERY_KIND["skip"])
    with pytest.raises(tdi.ConfigurationError, match="dealing of shards was 'one by one'"):
        other.load_state_dict(json.loads(state))
