"""What a watch sees of loaders, and that they deliver what they would without it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.inspect.doctor.loaders import Augmented, Numbers, Stream, sampled
from torch_distinput import OneDeviceStrategy
from torch_distinput.inspect.doctor.watching.loader_watch import (
    EnoughSeenError,
    LoaderWatch,
    watching,
)
from torch_distinput.inspect.doctor.watching.records import LoaderRecord, RankRecord, SeenEpoch
from torch_distinput.inspect.doctor.watching.timing import list_times


def watched(play: Any, *, steps: int = 1000, num_ranks: int = 1) -> tuple[LoaderRecord, ...]:
    """What is seen of the loaders that a function iterates."""
    watch = LoaderWatch(num_ranks=num_ranks, steps=steps)
    with watching(watch):
        play()
    return watch.records()


def epochs_of(loader: Any, number: int = 1) -> tuple[SeenEpoch, ...]:
    (record,) = watched(lambda: [list(loader) for _ in range(number)])
    return record.epochs


@pytest.mark.parametrize("processes", [0, 2])
def test_the_indices_are_those_that_were_delivered(processes: int) -> None:
    """Not those that were drawn ahead for the loader processes."""
    loader = DataLoader(Numbers(20), 4, num_workers=processes)

    def play() -> None:
        iterator = iter(loader)
        next(iterator), next(iterator)

    (record,) = watched(play)
    (epoch,) = record.epochs
    assert (2, 8, False) == (epoch.batches, epoch.rows, epoch.has_ended)
    assert tuple(range(8)) == epoch.indices


def test_processes_that_persist_begin_a_new_epoch() -> None:
    loader = DataLoader(Numbers(6), 2, num_workers=1, persistent_workers=True)
    epochs = epochs_of(loader, 2)
    assert [tuple(range(6))] * 2 == [epoch.indices for epoch in epochs]
    assert [True, True] == [epoch.has_ended for epoch in epochs]


def test_a_stateful_loader_is_seen_too() -> None:
    (epoch,) = epochs_of(StatefulDataLoader(Numbers(6), 2))
    assert (3, tuple(range(6))) == (epoch.batches, epoch.indices)


def test_a_stream_is_counted_by_its_rows() -> None:
    (epoch,) = epochs_of(DataLoader(Stream(7), 2))
    assert (4, 7, ()) == (epoch.batches, epoch.rows, epoch.indices)


def test_examples_without_batches_are_counted() -> None:
    (epoch,) = epochs_of(DataLoader(Numbers(3), batch_size=None))
    assert (3, 3, (0, 1, 2)) == (epoch.batches, epoch.rows, epoch.indices)


def test_what_is_evaluated_is_told_from_what_is_trained() -> None:
    loader = DataLoader(Numbers(3))
    with torch.no_grad():
        (epoch,) = epochs_of(loader)
    assert not epoch.trains
    assert epochs_of(loader)[0].trains


def test_a_step_takes_what_it_takes_also_in_short_epochs(monkeypatch) -> None:
    """As many steps are timed as are waited for: no batch is asked for behind the last one."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def play() -> None:
        nonlocal now
        for _ in range(3):
            for _ in DataLoader(Numbers(4), 2):
                now += 1.0

    records = watched(play)
    assert [1.0] * 3 == [epoch.step_seconds for record in records for epoch in record.epochs]
    (said,) = (text for text in list_times([0], records) if "for the step" in text)
    assert "takes 1 s for the step" in said


def test_enough_is_enough_also_over_several_epochs() -> None:
    loader, seen = DataLoader(Numbers(3)), list[Any]()

    def play() -> None:
        for _ in range(3):
            seen.extend(batch for batch in loader)

    with pytest.raises(EnoughSeenError):
        watched(play, steps=5)
    assert 5 == len(seen)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_watch_changes_nothing_of_what_is_delivered(processes: int) -> None:
    def play() -> list[Any]:
        torch.manual_seed(3)
        np.random.seed(3)
        loader = DataLoader(Augmented(12), 4, shuffle=True, num_workers=processes)
        batches = [batch.tolist() for _ in range(2) for batch in loader]
        return [batches, torch.rand(1).item(), np.random.rand(), type(iter(loader))]

    expected, found = play(), []
    watched(lambda: found.extend(play()), num_ranks=2)
    assert expected == found


def test_nothing_of_the_watch_is_left() -> None:
    before = dict(vars(_BaseDataLoaderIter))
    loader = DataLoader(Numbers(3))
    attributes = dict(vars(loader))
    watched(lambda: list(loader))
    assert before == vars(_BaseDataLoaderIter)
    assert attributes == vars(loader)


def test_reading_and_collating_are_timed_in_loader_processes() -> None:
    (record,) = watched(lambda: list(DataLoader(Numbers(64), 32, num_workers=1)))
    assert record.fetch_seconds is not None
    assert record.collate_seconds is not None
    assert 0 < record.collate_seconds < 1
    assert 0 < record.fetch_seconds < 1


class Random(Numbers):
    """Draws from the global generator of NumPy."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + np.random.randint(10)


def seed_alike(_: int) -> None:
    np.random.seed(0)


@pytest.mark.slow
@pytest.mark.parametrize(("init", "expected"), [(seed_alike, ("NumPy",)), (None, ())])
def test_processes_that_are_seeded_alike_are_found(init, expected) -> None:
    loader = DataLoader(Random(16), 2, num_workers=2, worker_init_fn=init)
    (record,) = watched(lambda: list(loader))
    assert expected == record.alike


@pytest.mark.slow
def test_generators_that_nobody_draws_from_are_no_matter() -> None:
    loader = DataLoader(Numbers(16), 2, num_workers=2, worker_init_fn=seed_alike)
    (record,) = watched(lambda: list(loader))
    assert () == record.alike


def test_the_place_is_the_line_that_iterates() -> None:
    (record,) = watched(lambda: list(DataLoader(Numbers(3))))
    assert record.place.startswith("test_watch.py:")


def test_a_record_can_be_written_and_read() -> None:
    dataset = TensorDataset(torch.arange(10))
    batches = BatchSampler(DistributedSampler(dataset, 2, 1), 2, False)
    loaders = watched(
        lambda: [
            list(sampled(Augmented(9), 2)),
            list(DataLoader(dataset, batch_sampler=batches)),
            list(DataLoader(Stream(9), 2)),
        ],
        num_ranks=2,
    )
    assert 3 == len(loaders)
    record = RankRecord(
        rank=1, num_ranks=2, outcome="ran to the end", was_stopped=False, loaders=loaders
    )
    assert record == RankRecord.from_json(record.to_json())


def test_a_loader_that_cannot_be_looked_at_delivers_as_before(caplog) -> None:
    loader = DataLoader(Numbers(4))
    batches: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_distinput.inspect.doctor.watching.loader_watch.look_at", fail)
        assert () == watched(lambda: batches.extend(loader))
    assert 4 == len(batches)
    assert "DataLoader is not watched: ZeroDivisionError" in caplog.text


def fail(_: object) -> None:
    raise ZeroDivisionError


def test_batches_that_cannot_be_taken_apart_have_no_digests() -> None:
    class Odd:
        keys = None

    (epoch,) = watched(
        lambda: list(DataLoader(Stream(4), 2, collate_fn=lambda _: Odd())), num_ranks=2
    )[0].epochs
    assert ((), ()) == epoch.digests


@pytest.mark.parametrize("dataset", [Stream(9), Numbers(9)])
def test_loaders_that_this_package_drives_are_not_watched(dataset) -> None:
    """Every rank may read all of a stream there, and each gets its part."""
    strategy = OneDeviceStrategy("cpu")
    distributed = strategy.distribute_dataset(DataLoader(dataset, 3))
    batches: list[Any] = []
    assert () == watched(lambda: batches.extend(distributed), num_ranks=2)
    assert 3 == len(batches)
