"""Runs of a simulated cluster by clocks that only delays move: they are found where they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.reports.measured import FakeClock
from torch_distinput import meter
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.distribute import iterator
from torch_distinput.meter import COLLATE, COPY, DECODE, SOURCE, YOUR_STEP
from torch_distinput.testing import simulate

NUM_WORKERS, NUM_STEPS = 3, 12
OPTIONS = tdi.InputOptions(trace=True)


@pytest.fixture
def clock(monkeypatch):
    found = FakeClock()
    monkeypatch.setattr(meter, "now", found)
    return found


class Delays:
    """Moves a clock by 10 ms a step where one rank is slow."""

    def __init__(self, clock, rank, station):
        self._clock, self._slow = clock, (rank, station)

    def at(self, station, seconds=0.010):
        """Called where something of a station is done."""
        self._clock.time += seconds * ((self._clock.rank, station) == self._slow)


class Examples(torch.utils.data.Dataset):
    """Each of the four examples of a rank's step takes a fourth of its time."""

    def __init__(self, delays):
        self._delays = delays

    def __len__(self):
        return 4 * NUM_WORKERS * NUM_STEPS

    def __getitem__(self, index):
        self._delays.at(SOURCE, 0.0025)
        return torch.tensor(index)


def train(dataset, strategy, clock, delays):
    """Your step takes 5 ms, and ends with an all-reduce where it is not what is looked at."""
    clock.rank = strategy.worker_index
    for _ in dataset:
        clock.time += 0.005
        delays.at(YOUR_STEP)
        if delays._slow[1] != YOUR_STEP:
            clock.time = max(strategy._session.communicator.gather_objects(clock.time))
    return strategy.report()


def indexed(delays, strategy):
    def collate(examples):
        delays.at(COLLATE)
        return collate_examples(examples)

    return strategy.distribute_dataset(
        Examples(delays), global_batch_size=12, collate_fn=collate, options=OPTIONS
    )


def check(reports, rank, station):
    """All ranks get one report, and it is right to the microsecond."""
    assert all(report == reports[0] for report in reports)
    times = reports[0].ranks[rank]
    assert {station: 10_000} == {
        name: round(seconds * 1e6) for name, seconds in times.waits.items() if seconds > 1e-9
    }
    verdict = reports[0].verdict
    assert ("input", rank, station) == (verdict.bound, verdict.rank, verdict.station)
    assert YOUR_STEP == verdict.others_wait_in


@pytest.mark.parametrize(
    ("rank", "station"), list(itertools.product(range(NUM_WORKERS), [SOURCE, COLLATE, COPY]))
)
def test_a_delay_is_found_where_it_is(clock, monkeypatch, rank, station):
    delays = Delays(clock, rank, station)

    class SlowCopies(iterator.Prefetcher):
        def __next__(self):
            step = super().__next__()
            delays.at(COPY)
            return step

    monkeypatch.setattr(iterator, "Prefetcher", SlowCopies)
    check(
        simulate(lambda s: train(indexed(delays, s), s, clock, delays), num_workers=NUM_WORKERS),
        rank,
        station,
    )


@pytest.mark.parametrize("rank", range(NUM_WORKERS))
def test_a_slow_map_of_files_is_decoding(clock, tmp_path, rank):
    delays = Delays(clock, rank, DECODE)
    for number in range(NUM_WORKERS):
        np.save(tmp_path / f"{number}.npy", np.arange(4 * NUM_STEPS))

    def slow(record):
        delays.at(DECODE, 0.0025)
        return record

    def work(strategy):
        files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy").map(slow)
        dataset = strategy.distribute_dataset(files, global_batch_size=12, options=OPTIONS)
        return train(dataset, strategy, clock, delays)

    check(simulate(work, num_workers=NUM_WORKERS), rank, DECODE)


@pytest.mark.parametrize(
    "recipe",
    [
        lambda files, slow: files.map(slow),
        lambda files, slow: files.filter(lambda record: slow(record) is not None),
        lambda files, slow: files.map(slow).shuffle(4),
        lambda files, slow: files.map(slow).filter(lambda record: record >= 0),
    ],
)
def test_what_is_done_to_records_is_decoding_before_the_cut_and_after_it(clock, tmp_path, recipe):
    """Each step is a file of four records, so that the first step is not all there is."""
    clock.rank = 0
    delays = Delays(clock, 0, DECODE)
    for number in range(NUM_STEPS):
        np.save(tmp_path / f"{number:02}.npy", np.arange(4))

    def slow(record):
        delays.at(DECODE, 0.0025)
        return record

    files = recipe(tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy"), slow)
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(files, global_batch_size=4, options=OPTIONS)
    assert NUM_STEPS == len(list(dataset))
    waits = strategy.report().ranks[0].waits
    assert waits[DECODE] > 0
    assert 0 == waits[SOURCE] == waits[COLLATE]


@pytest.mark.parametrize("rank", range(NUM_WORKERS))
def test_a_slow_step_is_yours(clock, rank):
    delays = Delays(clock, rank, YOUR_STEP)
    reports = simulate(
        lambda s: train(indexed(delays, s), s, clock, delays), num_workers=NUM_WORKERS
    )
    verdict = reports[0].verdict
    assert ("your step", rank) == (verdict.bound, verdict.rank)
    assert 15_000 == round(reports[0].ranks[rank].own_step * 1e6)


def tensors(strategy, **keywords):
    """A dataset of plain columns."""
    return strategy.distribute_dataset(torch.arange(96), global_batch_size=12, **keywords)


def test_one_rank_reports_itself():
    """Of eight steps the first is left out, and the last one has not ended."""
    steps = iter(tensors(tdi.OneDeviceStrategy("cpu"), options=OPTIONS))
    assert 8 == len(list(steps))
    assert [(0, 6)] == [(times.rank, times.num_steps) for times in steps.report().ranks]


@pytest.mark.parametrize("show", [lambda dataset: dataset, tdi.progress])
def test_steps_that_are_values_are_reported_too(show):
    """While they are played and after them; before the first there is nothing to say."""
    steps = show(tensors(tdi.OneDeviceStrategy("cpu"), options=OPTIONS)).steps()
    with pytest.raises(tdi.UsageError, match="report.. needs steps"):
        steps.report()
    assert [2] == [steps.report().ranks[0].num_steps for step in steps if step.index == 3]
    assert 6 == steps.report().ranks[0].num_steps


def test_steps_that_are_values_end_when_they_are_closed():
    """What was closed must not pass for the end of the data."""
    steps = tensors(tdi.OneDeviceStrategy("cpu")).steps()
    next(steps)
    steps.close()
    with pytest.raises(tdi.UsageError, match="closed"):
        next(steps)


def test_a_report_is_of_the_newest_epoch():
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = tensors(strategy, options=OPTIONS)
    for _ in range(2):
        for step, _ in enumerate(dataset):
            if step == 3:
                assert 2 == strategy.report().ranks[0].num_steps
    assert 6 == strategy.report().ranks[0].num_steps


@pytest.mark.parametrize("loader", [{"num_workers": 1}, {"num_threads": 2}])
def test_what_is_made_elsewhere_says_what_it_took(loader):
    """Examples come home with the seconds of reading and of collating them."""
    strategy = tdi.OneDeviceStrategy("cpu")
    source = [torch.tensor(number) for number in range(96)]
    steps = iter(
        strategy.distribute_dataset(source, global_batch_size=12, options=OPTIONS, **loader)
    )
    assert list(range(96)) == [int(number) for batch in steps for number in batch]
    work = steps.report().ranks[0].work
    assert work["source"] > 0
    assert work["collate"] > 0


@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}, {"num_workers": 2}, {"num_threads": 2}])
def test_files_say_what_reading_mapping_and_collating_took(tmp_path, loader):
    """Of every way to read them: here, in one process, in two stages, in threads."""
    np.save(tmp_path / "0.npy", np.arange(96))
    files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy")
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        files.map(lambda record: record + 1), global_batch_size=12, options=OPTIONS, **loader
    )
    steps = iter(dataset)
    assert list(range(1, 97)) == [int(number) for batch in steps for number in batch]
    work = steps.report().ranks[0].work
    assert all(work[station] > 0 for station in (SOURCE, DECODE, COLLATE))


@pytest.mark.parametrize("options", [OPTIONS, tdi.InputOptions()])
def test_measuring_changes_nothing_that_is_delivered(options):
    """A mixture with a sampler's order of its own, and ready batches, with and without."""
    strategy = tdi.OneDeviceStrategy("cpu")
    mixed = tdi.mix({"a": list(range(30)), "b": torch.arange(100, 130)}, weights=[1, 1])
    ready = torch.utils.data.DataLoader(Numbers(), batch_size=4)
    played = [
        [batch.tolist() for batch in strategy.distribute_dataset(source, options=options, **size)]
        for source, size in ((mixed, {"global_batch_size": 5}), (ready, {}))
    ]
    assert [4, 4, 2] == [len(batch) for batch in played[1]]
    assert {*range(30), *range(100, 130)} == {number for batch in played[0] for number in batch}


class Numbers(torch.utils.data.IterableDataset):
    """Ten examples in order."""

    def __iter__(self):
        return iter(range(10))


def test_what_is_not_measured_has_no_report():
    steps = iter(tensors(tdi.OneDeviceStrategy("cpu")))
    with pytest.raises(tdi.UsageError, match=r"Pass options=InputOptions\(trace=True\)"):
        steps.report()


def test_a_rank_without_measurements_is_named_on_all_ranks():
    def refused(strategy):
        options = tdi.InputOptions(trace=strategy.worker_index == 0)
        assert 8 == len(list(tensors(strategy, options=options)))
        with pytest.raises(tdi.UsageError, match="got none on rank 1"):
            strategy.report()

    simulate(refused, num_workers=2)


def test_numbers_to_log_are_plain():
    strategy = tdi.OneDeviceStrategy("cpu")
    assert 8 == len(list(tensors(strategy, options=OPTIONS)))
    numbers = strategy.report().scalars()
    assert {
        *("input/step_ms", "input/bound_rank", "input/source_share", "input/decode_share"),
        *("input/collate_share", "input/agreement_share", "input/copy_share"),
        "input/your_step_share",
    } == set(numbers)
    assert all(isinstance(number, (int, float)) for number in numbers.values())
