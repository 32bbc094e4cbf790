"""Audits of honest epochs, of sources of all kinds: none is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.test_audited_streams import IN_PROCESS, SOURCES, audited
from torch_distinput.testing import simulate


@st.composite
def recipes(draw):
    """An honest source of any kind, a cluster, how it is cut, and where it is resumed."""
    count = draw(st.integers(0, 41))
    kind = draw(st.sampled_from(["columns", "list", "sampler", "files", "counted", *IN_PROCESS]))
    clusters = st.tuples(st.integers(1, 3), st.integers(1, 2))
    return {
        "count": count,
        "kind": kind,
        "sizes": draw(st.tuples(st.integers(1, 9), st.integers(1, 9))),
        "clusters": draw(st.tuples(clusters, clusters)),
        "rebatch": draw(st.sampled_from(["split", "even", "cycle"])),
        "drop_last": draw(st.booleans()),
        "policy": draw(st.sampled_from(["auto", "data", "off"])),
        "left_at": draw(st.integers(0, 12)),
    }


def honest(recipe, pattern, size):
    """The source and the keywords of a recipe."""
    kind, examples = recipe["kind"], list(range(recipe["count"]))
    asked = {"global_batch_size": size, "drop_last": recipe["drop_last"]}
    loaded = partial(DataLoader, batch_size=size, drop_last=recipe["drop_last"])
    if kind in ("ready batches", "a DataLoader"):
        return SOURCES[kind](examples)
    if kind in SOURCES:
        source, more = SOURCES[kind](examples)
        return source, {**more, **asked}
    return {
        "columns": (torch.arange(recipe["count"]), {**asked, "shuffle": True}),
        "list": (examples, asked),
        "sampler": (loaded(examples, sampler=[*examples[::-1], *examples[:3]]), {}),
        "files": (tdi.FileDataset(pattern, reader=Numbers()).filter(lambda n: n % 3), asked),
        "counted": (tdi.FileDataset(pattern, reader=Numbers(counted=True)).shuffle(4), asked),
    }[kind]


@pytest.mark.slow
@given(recipe=recipes())
@settings(
    max_examples=2000 if LONG else 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
def test_no_honest_epoch_is_refused(tmp_path_factory, recipe):
    """Also not one that goes on elsewhere, at any step."""
    folder = tmp_path_factory.mktemp("numbers")
    pattern = write_numbers(folder, [range(recipe["count"]), range(50, 55), [60], [70]])

    def started(strategy, size):
        source, more = honest(recipe, pattern, size)
        rebatch = recipe["rebatch"] if "global_batch_size" in more else "split"
        return audited(strategy, source, recipe["policy"], rebatch, **more)

    def begin(strategy):
        dataset = started(strategy, recipe["sizes"][0])
        with iter(dataset) as iterator:
            for _ in zip(range(recipe["left_at"]), iterator, strict=False):
                pass
        state = dataset.state_dict()
        return state, sum(1 for _ in dataset)

    def go_on(strategy, state, size):
        dataset = started(strategy, size)
        dataset.load_state_dict(state)
        return sum(1 for _ in dataset), sum(1 for _ in dataset)

    (before, (num_workers, replicas)) = recipe["clusters"]
    states = simulate(begin, num_workers=before[0], replicas_per_worker=before[1])
    size = recipe["sizes"][1]
    dealt = recipe["kind"] == "shards" and recipe["policy"] == "auto"
    if recipe["policy"] == "off" or dealt:  # which only the same cluster goes on with
        (num_workers, replicas), size = before, recipe["sizes"][0]
    if "buckets" in recipe["kind"]:  # they are made for a batch size
        size = recipe["sizes"][0]
    simulate(
        partial(go_on, state=states[0][0], size=size),
        num_workers=num_workers,
        replicas_per_worker=replicas,
    )
