"""Audits of streams that all workers read: each of them tells what it has read by itself."""

from __future__ import annotations

import logging
import re
import threading
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.distribute.street import Shards, options, stream_of
from torch_distinput.data.batch import fingerprint as fingerprints
from torch_distinput.data.sources import examples as example_streams
from torch_distinput.data.steps import ready_batches
from torch_distinput.data.steps.rebatch import RebatchDataset
from torch_distinput.testing import simulate

COUNT = 40
FAULTS = {
    "leaves out": lambda items, at: items.pop(at),
    "repeats": lambda items, at: items.insert(at, items[at]),
    "swaps": lambda items, at: items.insert(at - 1, items.pop(at)),
    "alters": lambda items, at: items.__setitem__(at, items[at] + 100),
}


class Iterated(IterableDataset):
    """Examples, for a DataLoader."""

    def __init__(self, examples):
        self.examples = examples

    def __iter__(self):
        return iter(self.examples)


class Pixel:
    """An example that is an object."""

    def __init__(self, value):
        self.value = value


def values(pixels):
    """A batch of objects."""
    return torch.tensor([pixel.value for pixel in pixels])


def ready(examples):
    """Batches of four."""
    return stream_of([torch.tensor(examples[i : i + 4]) for i in range(0, len(examples), 4)])


def packed(examples):
    """Rows of three documents of one token each."""
    documents = [{"input_ids": [example]} for example in examples]
    return tdi.pack(stream_of(documents), length=3, window=8)


def numbers_of(step):
    """All that a step has."""
    return (step["input_ids"] if isinstance(step, dict) else step).flatten().tolist()


SOURCES = {
    "examples": lambda examples: (stream_of(examples), {"global_batch_size": 4}),
    "in a loader process": lambda examples: (
        stream_of(examples), {"global_batch_size": 4, "num_workers": 1}
    ),
    "in loader processes": lambda examples: (
        stream_of(examples), {"global_batch_size": 4, "num_workers": 3}
    ),
    "all but the last": lambda examples: (
        stream_of(examples), {"global_batch_size": 3, "drop_last": True}
    ),
    "objects": lambda examples: (
        stream_of(list(map(Pixel, examples))), {"global_batch_size": 4, "collate_fn": values}
    ),
    "shards": lambda examples: (Shards([examples[:9], [], examples[9:]]), {"global_batch_size": 4}),
    "buckets": lambda examples: (
        tdi.bucket(stream_of(examples), length=lambda n: 1 + n % 5, boundaries=(3,), window=7),
        {"global_batch_size": 4},
    ),
    "packed": lambda examples: (packed(examples), {"global_batch_size": 4}),
    "packed buckets": lambda examples: (
        tdi.bucket(packed(examples), length=lambda _: 1, boundaries=(3,), window=5),
        {"global_batch_size": 4},
    ),
    "ready batches": lambda examples: (ready(examples), {}),
    "ready in a loader process": lambda examples: (ready(examples), {"num_workers": 1}),
    "a DataLoader": lambda examples: (DataLoader(Iterated(examples), batch_size=4), {}),
}  # fmt: skip


def audited(strategy, source, policy="data", rebatch="split", **keywords):
    """An audited dataset."""
    chosen = options(audit=True, auto_shard_policy=policy, rebatch=rebatch)
    return strategy.distribute_dataset(source, options=chosen, **keywords)


def played(num_workers, make, **keywords):
    """What each worker's epoch came to: its examples, or the error."""

    def work(strategy):
        source, more = make(strategy.worker_index)
        try:
            steps = audited(strategy, source, **more, **keywords)
            return [example for step in steps for example in numbers_of(step)]
        except (tdi.AuditError, tdi.MismatchError) as error:
            return error

    return simulate(work, num_workers=num_workers)


def faulty(kind, fault, at, *, culprit=1, number=COUNT):
    """Of one worker a source with a fault."""

    def make(worker):
        examples = list(range(number))
        if worker == culprit:
            FAULTS[fault](examples, at)
        return SOURCES[kind](examples)

    return make


IN_PROCESS = [kind for kind in SOURCES if "loader process" not in kind]
PLACES = [(kind, at) for kind in IN_PROCESS for at in (1, 21, COUNT - 1)]
PLACES += [(kind, 21) for kind in SOURCES if kind not in IN_PROCESS]


@pytest.mark.parametrize(("kind", "at"), PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_worker_reads_another_stream(kind, fault, at):
    """All workers are told, early or at the end of the epoch."""
    for outcome in played(2, faulty(kind, fault, at)):
        assert isinstance(outcome, (tdi.AuditError, tdi.MismatchError))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rebatch", ["even", "cycle"])
@pytest.mark.parametrize("culprit", [0, 2])
def test_the_odd_one_of_three(fault, rebatch, culprit):
    """It is told by what most have read, also where others' examples are passed over."""
    make = faulty("examples", fault, 21, culprit=culprit, number=43)
    for outcome in played(3, make, rebatch=rebatch):
        assert isinstance(outcome, (tdi.AuditError, tdi.MismatchError))
        if isinstance(outcome, tdi.AuditError):
            first = {"leaves out": 21, "repeats": 22, "swaps": 20, "alters": 21}[fault]
            assert f"worker {culprit} read another one than worker {culprit == 0:d}" in str(outcome)
            assert f"example {first} of worker {culprit}" in str(outcome)


def test_a_long_stream():
    """The place is told to about a thirtieth of the epoch; here the rank counts in the content."""

    def make(worker):
        examples = list(range(5000))
        examples[3000] += worker
        return stream_of(examples), {"global_batch_size": 64}

    for outcome in played(2, make):
        start, stop = re.search(r"one of the examples (\d+) to (\d+) of", str(outcome)).groups()
        assert 3000 in range(int(start), int(stop) + 1)
        assert int(stop) - int(start) < 5000 / 30


@pytest.mark.parametrize("kind", ["examples", "ready batches"])
@pytest.mark.parametrize(
    ("change", "what"),
    [(lambda steps: steps[:2] + steps[3:], "lost"), (lambda steps: steps + steps[-1:], "repeated")],
    ids=["lost", "repeated"],
)
def test_steps_that_all_workers_agree_on(monkeypatch, kind, change, what):
    """What is cut and voted on is not believed: what was read is counted apart."""
    cutter = RebatchDataset if kind == "examples" else ready_batches.RebatchReadyDataset
    inner = cutter.__iter__

    def cut(self):
        *steps, reading = inner(self)
        return iter([*change(steps), reading])

    monkeypatch.setattr(cutter, "__iter__", cut)
    for outcome in played(2, lambda _: SOURCES[kind](list(range(COUNT)))):
        assert isinstance(outcome, tdi.AuditError)
        assert f"expected 40 examples, but 4 were {what}" in str(outcome)


@pytest.mark.parametrize("kind", ["examples", "shards", "ready batches", "a DataLoader"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rest_of_an_epoch(kind, fault):
    """What is compared begins where all workers start to read."""

    def work(strategy, culprit):
        def distributed(fault_of):
            source, more = faulty(kind, fault, 30, culprit=fault_of)(strategy.worker_index)
            return audited(strategy, source, **more)

        begun = distributed(None)
        iterator = iter(begun)
        head = [example for _ in range(5) for example in next(iterator).tolist()]
        rest = distributed(culprit)
        rest.load_state_dict(begun.state_dict())
        try:
            return head + [example for step in rest for example in step.tolist()]
        except (tdi.AuditError, tdi.MismatchError) as error:
            return error

    honest = simulate(partial(work, culprit=None), num_workers=2)
    assert list(range(COUNT)) == sorted(honest[0] + honest[1])
    for outcome in simulate(partial(work, culprit=1), num_workers=2):
        assert isinstance(outcome, (tdi.AuditError, tdi.MismatchError))


@pytest.mark.parametrize("sizes", [{}, {"global_batch_size": 4}])
def test_shards_that_were_assigned_before(sizes):
    """Each rank has its own half of the shards: said before the first step."""

    def work(strategy):
        shards = [torch.arange(2) + 2 * shard for shard in range(strategy.worker_index, 8, 2)]
        source = Shards([[shard] for shard in shards] if not sizes else shards)
        with pytest.raises(tdi.MismatchError, match="same fingerprint of example 0 on all workers"):
            iter(audited(strategy, source, "file", **sizes))

    simulate(work, num_workers=2)


@pytest.mark.parametrize("first", [0, 20])
def test_examples_that_cannot_be_compared(monkeypatch, caplog, first):
    """They count by their class, and the log says so once, also late in the epoch."""
    monkeypatch.setattr(fingerprints, "_said", {})
    caplog.set_level(logging.WARNING, fingerprints.__name__)

    def make(_):
        examples = [*range(first), *(threading.Lock() for _ in range(first, 24))]
        keywords = {"global_batch_size": 4, "collate_fn": lambda some: torch.ones(len(some))}
        return stream_of(examples), keywords

    assert [[1.0] * 12] * 2 == played(2, make)
    (record,) = [one for one in caplog.records if one.name == fingerprints.__name__]
    assert "Objects of class lock cannot be compared between workers" in record.getMessage()


def test_objects_that_differ_are_noticed_without_an_audit():
    """In the first batches."""

    def work(strategy):
        order = list(map(Pixel, range(COUNT)))[:: 1 - 2 * strategy.worker_index]
        dataset = strategy.distribute_dataset(
            stream_of(order), global_batch_size=4, collate_fn=values
        )
        with pytest.raises(tdi.MismatchError, match="read the same stream"):
            list(dataset)

    simulate(work, num_workers=2)


@pytest.mark.slow
def test_nothing_is_watched_without_an_audit(monkeypatch):
    """Nor where a single worker reads."""
    monkeypatch.setattr(example_streams, "Witness", None)
    monkeypatch.setattr(ready_batches, "Witness", None)

    def work(strategy, kind):
        source, more = SOURCES[kind](list(range(COUNT)))
        return sum(len(step) for step in strategy.distribute_dataset(source, **more))

    for kind in IN_PROCESS:
        expected = COUNT - COUNT % 3 if kind == "all but the last" else COUNT
        assert expected == sum(simulate(partial(work, kind=kind), num_workers=2))
    assert list(range(COUNT)) == played(1, lambda _: SOURCES["examples"](list(range(COUNT))))[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_samplers_that_differ(fault):
    """Their orders are compared before the first step; one that all share may repeat."""

    def make(worker, culprit):
        order = list(range(COUNT))
        if worker >= culprit:
            FAULTS[fault](order, 21)
        order = [index % COUNT for index in order]
        return DataLoader(list(range(COUNT)), batch_size=4, sampler=order), {}

    def work(strategy):
        source, _ = make(strategy.worker_index, 1)
        with pytest.raises(tdi.MismatchError, match="order|number of batches"):
            iter(audited(strategy, source, "auto"))

    simulate(work, num_workers=2)
    if fault != "alters":
        outcomes = played(2, partial(make, culprit=0), policy="auto")
        assert [list, list] == list(map(type, outcomes))


@pytest.mark.parametrize("policy", ["off", "function"])
def test_what_each_worker_has_for_itself_is_not_compared(policy):
    """Workers may have different streams there."""

    def work(strategy):
        mine = stream_of([torch.full((2,), strategy.worker_index)] * 3)
        if policy == "off":
            dataset = audited(strategy, mine, policy)
        else:
            chosen = options(audit=True)
            dataset = strategy.distribute_datasets_from_function(lambda _: mine, options=chosen)
        return sum(len(step) for step in dataset)

    assert [6, 6] == simulate(work, num_workers=2)


def test_an_audit_on_some_workers_only():
    """It would wait at the end of the epoch for those that do not take part."""

    def work(strategy):
        dataset = strategy.distribute_dataset(
            torch.arange(8),
            global_batch_size=4,
            options=tdi.InputOptions(audit=not strategy.worker_index),
        )
        with pytest.raises(tdi.MismatchError, match="audit"):
            iter(dataset)

    simulate(work, num_workers=2)
