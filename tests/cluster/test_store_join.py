"""One text of all workers in a store: who makes it, also if whoever should have died with it."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

import torch_distinput as tdi
from torch_distinput.cluster.handshake import compare_shown
from torch_distinput.cluster.store_exchange import StoreExchange
from torch_distinput.cluster.store_join import StoreJoin
from torch_distinput.communicator import Alone, exchange, nobody

SIZE = 3
SOON = 20.0


@pytest.fixture
def store():
    return dist.HashStore()


def joins(store, merge=",".join, size=SIZE):
    return [
        StoreJoin(store, "meal", rank=rank, size=size, merge=merge) for rank in range(size)
    ]


def wait(join, *, gone=nobody, timeout=SOON, show=lambda: None):
    return StoreExchange(join, "meal", timeout=timeout, gone=gone).text(show)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_last_to_come_joins_the_texts_in_the_order_of_workers(store, order):
    merged = []
    workers = joins(store, lambda texts: merged.append(texts) or ",".join(texts))
    for worker in order:
        assert not workers[worker].is_joined()
        workers[worker].show(f"{worker}")

    assert ["0,1,2"] * SIZE == [worker.result() for worker in workers]
    assert 1 == len(merged)


def test_the_first_text_is_shown_to_all(store):
    """Nobody waits for the others, and only whoever was first has a key to delete."""
    workers = joins(store)
    for worker in (2, 0, 1):
        workers[worker].show_first(f"{worker}")
        assert "2" == wait(workers[worker])

    assert [0, 0, 1] == [len(worker.written) for worker in workers]


def test_what_each_reads_does_not_grow_with_the_workers_but_for_one(store):
    """Whoever is not the last asks for one key, and reads one text."""
    asked = []

    class Counted:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(store, name)

    first = StoreJoin(Counted(), "meal", rank=0, size=100, merge=lambda texts: texts[0])
    first.show("alike")
    for other in joins(store, lambda texts: texts[0], size=100)[1:]:
        other.show("alike")

    assert first.is_joined()
    assert "alike" == first.result()
    assert ["set", "add", "check", "has_extended_api", "multi_get"] == asked


@pytest.mark.parametrize("come", [[], [0], [1, 4], [*range(5)], [0, 2, 3, 5, 6], [*range(7)]])
def test_the_missing_ones_are_found(store, come):
    workers = joins(store, size=7)
    for worker in come:
        workers[worker].show("")

    assert [worker for worker in range(7) if worker not in come] == workers[6].find_missing()


def test_a_worker_that_did_not_come_is_named(store):
    workers = joins(store)
    workers[0].show("0")
    with pytest.raises(tdi.PeerTimeoutError, match="0.1 s, but worker 2 did not come") as got:
        wait(workers[1], timeout=0.1, show=lambda: workers[1].show("1"))
    assert (2,) == got.value.workers


def test_a_worker_that_died_before_it_came_is_named(store):
    workers = joins(store)
    workers[0].show("0")
    with pytest.raises(tdi.PeerFailedError, match="worker 2 will not come. worker 2: it was ill"):
        wait(
            workers[1], gone=lambda: {0: "it left", 2: "it was ill"},
            show=lambda: workers[1].show("1"),
        )  # fmt: skip


def die_before_it_counts(store):
    """Killed between its two calls: the text is there, and nobody is the last to come."""
    store.set("meal/2", "2")


def die_before_it_joins(store):
    """Killed as the last one to come, with the texts in its hands."""
    die_before_it_counts(store)
    store.add("meal/come", 1)


DEATHS = pytest.mark.parametrize("die", [die_before_it_counts, die_before_it_joins])


@DEATHS
def test_another_worker_joins_for_the_one_that_died(store, die):
    workers = joins(store)
    workers[0].show("0")
    workers[1].show("1")
    die(store)

    assert "0,1,2" == wait(workers[0], gone=lambda: {2: "it was ill"})
    assert "0,1,2" == wait(workers[1], gone=lambda: {2: "it was ill"})


@DEATHS
def test_another_worker_joins_for_one_that_is_stopped(store, die):
    """Nobody knows of it, so the time has to pass."""
    workers = joins(store)
    workers[0].show("0")
    workers[1].show("1")
    die(store)

    assert "0,1,2" == wait(workers[0], timeout=0.1)


@pytest.mark.slow
def test_a_second_worker_takes_over_when_the_first_has_died_too(store):
    workers = joins(store)
    for worker in workers[:2]:
        worker.show("text")
    die_before_it_joins(store)
    store.add("meal/turns", 1)  # a worker took its turn and died

    assert "text,text,2" == wait(workers[0], gone=lambda: {2: "it was ill"})


def test_all_that_was_written_is_told(store):
    """So that it can be deleted."""
    workers = joins(store)
    for worker in workers:
        worker.show("")
    for worker in workers:
        for key in worker.written:
            store.delete_key(key)

    assert 0 == store.num_keys()


class Wire(Alone):
    """A worker to whom all texts are shown at once."""

    def __init__(self, texts):
        self.texts, self.num_bytes = texts, 0

    def join(self, topic, text, merge, *, timeout, gone=nobody):
        joined = merge(self.texts)
        self.num_bytes = len(joined)
        return joined


@pytest.mark.parametrize(
    "texts", [["a"], ["a"] * 5, ["a", "b", "c"], ["a", "b", "a", "a"], ["", '"', "\n"]]
)
def test_texts_are_exchanged_as_they_are(texts):
    assert texts == exchange(Wire(texts), "topic", texts[0], timeout=SOON)


def test_texts_that_are_alike_travel_once():
    wire = Wire(["x" * 1000] * 10_000)
    exchange(wire, "topic", wire.texts[0], timeout=SOON)
    assert wire.num_bytes < 1100


def shown(facts, share=None, delivered=0):
    return json.dumps({"share": share, "delivered": delivered}) + "\n" + json.dumps(facts)


def test_a_verdict_over_equal_facts_is_as_short_for_many_workers_as_for_two():
    few, many = ([shown({"files": "x" * 500})] * count for count in (2, 10_000))
    assert compare_shown(few) == compare_shown(many)
    assert len(compare_shown(many)) < 60


def test_a_verdict_over_different_facts_holds_two_values_and_who_differs():
    texts = [shown({"a": 1, "seed": 7})] * 3 + [shown({"a": 1, "seed": 8})]
    assert {"difference": ["seed", 7, 8, 0, [3]]} == json.loads(compare_shown(texts))


def test_facts_that_somebody_does_not_know_are_equal():
    texts = [shown({"left": "not known"}), shown({"left": 4}), shown({"left": 4})]
    assert {"shares": None, "most": 0, "first": 0} == json.loads(compare_shown(texts))
