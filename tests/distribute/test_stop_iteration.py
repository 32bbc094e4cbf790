"""A StopIteration that escapes from a user's function is an error with its place, never an end."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch.utils.data import IterableDataset

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.street import Shards, options, stream_of, write_files
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.distribute.steps.distributed_steps import DistributedSteps
from torch_distinput.engine import streamed_input
from torch_distinput.engine.feeds import FailedSteps
from torch_distinput.testing import simulate


def collate(examples):
    """``next`` without a default, on an iterator that is empty."""
    numbers = [int(example) for example in examples]
    if 11 in numbers:
        next(iter(()))
    return torch.tensor(numbers)


class Asked(list):
    """Fetches many examples at once."""

    def __getitems__(self, indices):
        if 11 in indices:
            raise StopIteration
        return [self[index] for index in indices]


def sources(folder):
    """Of each kind, with a function that fails at example 11 of 16."""
    pattern = write_files(folder, [range(8), range(8, 16)])
    return {
        "list": (list(range(16)), collate),
        "columns": (torch.arange(16), collate),
        "getitems": (Asked(range(16)), None),
        "stream": (stream_of(range(16)), collate),
        "files": (tdi.FileDataset(pattern), collate),
        "map": (tdi.FileDataset(pattern).map(lambda line: collate([line])), None),
        "filter": (tdi.FileDataset(pattern).filter(lambda line: len(collate([line]))), None),
    }


@pytest.mark.parametrize("num_loaders", [0, 1, 2])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "name", ["list", "columns", "getitems", "stream", "files", "map", "filter"]
)
def test_it_is_told_to_all(tmp_path, name, workers, num_loaders):
    """Every rank raises; none believes that the epoch has ended."""
    source, collate_fn = sources(tmp_path)[name]

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=4, collate_fn=collate_fn, num_workers=num_loaders
        )
        with pytest.raises((tdi.SourceError, tdi.PeerFailedError), match="raised StopIteration"):
            for _ in dataset:
                pass
            strategy.reduce("sum", 1)  # where a rank that has no failure of its own hears of it

    if name in ("list", "columns", "getitems"):
        workers = 1  # nobody votes there: a peer hears at its next call
    simulate(work, num_workers=workers)


@pytest.mark.parametrize("num_fetched", [0, 1, 2])
def test_a_planned_epoch_does_not_end_early(monkeypatch, num_fetched):
    """Whatever the cause: here what fetches the batches stops without a word."""
    run = TaskLoader.run
    monkeypatch.setattr(
        TaskLoader, "run", lambda *args: itertools.islice(run(*args), num_fetched)
    )

    def work(strategy):
        dataset = strategy.distribute_dataset(
            list(range(12)), global_batch_size=4, num_threads=1
        )
        steps = iter(dataset)
        for _ in range(num_fetched):
            next(steps)
        with pytest.raises(tdi.SourceError, match=f"step {num_fetched}: .*ended before it"):
            next(steps)

    simulate(work, num_workers=1)


def test_counted_files_do_not_end_early(tmp_path, monkeypatch):
    """The plan knows how many records they have."""
    pattern = write_numbers(tmp_path, [range(9)])
    run = streamed_input.PreparedStream._start
    monkeypatch.setattr(
        streamed_input.PreparedStream, "_start", lambda *args: itertools.islice(run(*args), 1)
    )

    def work(strategy):
        files = tdi.FileDataset(pattern, reader=Numbers(counted=True))
        steps = iter(strategy.distribute_dataset(files, global_batch_size=4))
        next(steps)
        with pytest.raises(tdi.SourceError, match="step 1: .*ended before it"):
            next(steps)

    simulate(work, num_workers=1)


class OneFewer(Numbers):
    """A reader that counts a record less than it then reads."""

    def parts(self, file):
        """All in one."""
        (part,) = super().parts(file)
        return [dataclasses.replace(part, num_records=part.num_records - 1)]


def test_counted_files_do_not_go_on(tmp_path):
    """Nor are records left out that nobody has counted."""
    files = tdi.FileDataset(
        write_numbers(tmp_path, [range(9)]), reader=OneFewer(counted=True, records_per_part=9)
    )
    steps = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=4)
    with pytest.raises(tdi.SourceError, match="Expected 8 records, .* but there are more"):
        list(steps)


def stop(*_, **__):
    """An end, for whoever takes it for one."""
    raise StopIteration


def stop_at(place, value=None):
    """A function that stops at the call of that number."""
    calls = iter(range(1000))
    return lambda item: stop() if next(calls) == place else value or item


class StopsInState(IterableDataset):
    """Its state cannot be had."""

    position = 0

    def __iter__(self):
        for self.position in range(9):
            yield self.position

    def state_dict(self):
        """After some examples."""
        return {"at": self.position} if self.position < 5 else stop()

    def load_state_dict(self, state):
        """Never called."""


class StopsInShard(Shards):
    """It cannot be dealt out."""

    shard = stop


class StopsInEpoch(IterableDataset):
    """It cannot be told the epoch."""

    set_epoch = stop

    def __iter__(self):
        return iter(range(9))


def stops_when_called():
    """No generator function: it stops before it returns an iterator."""
    stop()


def stops_within():
    """A generator in which something else ends."""
    yield from range(5)
    next(iter(()))


class StopsInIter(IterableDataset):
    """It cannot be started."""

    __iter__ = stop


SOURCES = {
    "a state": (StopsInState, 2),
    "a shard": (lambda: StopsInShard([[1, 2], [3, 4]]), 2),
    "set_epoch": (StopsInEpoch, 2),
    "a call": (lambda: stops_when_called, 2),
    "a call for batches": (lambda: stops_when_called, None),
    "a generator": (lambda: stops_within, 2),
    "iter": (StopsInIter, 2),
    "iter of batches": (StopsInIter, None),
}


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [(name, 1) for name in SOURCES if name != "a shard"] + [(name, 2) for name in SOURCES],
)  # one worker has all shards, and asks for none
def test_a_source_that_raises_stop_iteration(name, num_workers):
    """It is an error, on all workers, wherever it is not ``__next__`` of the source itself."""
    make, size = SOURCES[name]

    def work(strategy):
        dataset = strategy.distribute_dataset(make(), global_batch_size=size)
        own_or_heard = (tdi.SourceError, tdi.PeerFailedError)  # whichever comes first
        with pytest.raises(own_or_heard, match="StopIteration|StopsIn"):
            list(dataset)

    simulate(work, num_workers=num_workers)


class StoppingReader(tdi.readers.Reader):
    """Lines; it stops where it is told to."""

    def __init__(self, where):
        self.where = where

    def read(self, file, part):
        """One chunk after another."""
        if self.where == "read":
            stop()
        return self._chunks(file)

    def _chunks(self, file):
        with file.open() as lines:
            for number, line in enumerate(lines):
                if self.where == "chunks" and number == 2:
                    stop()
                yield [line.decode()]


class StoppingDecoder(StoppingReader):
    """It decodes, too."""

    def decode(self, records):
        """Not all."""
        return stop() if "3\n" in records else records


FILES = {
    "map": lambda paths: tdi.FileDataset(paths).map(stop_at(3)),
    "a map before a filter": lambda paths: tdi.FileDataset(paths).map(stop_at(3)).filter(bool),
    "filter": lambda paths: tdi.FileDataset(paths).filter(stop_at(3)),
    "map, shuffled": lambda paths: tdi.FileDataset(paths).map(stop_at(3)).shuffle(4),
    "map, interleaved": lambda paths: tdi.FileDataset(paths).interleave(2).map(stop_at(3)),
    "read": lambda paths: tdi.FileDataset(paths, reader=StoppingReader("read")),
    "chunks": lambda paths: tdi.FileDataset(paths, reader=StoppingReader("chunks")),
    "decode": lambda paths: tdi.FileDataset(paths, reader=StoppingDecoder("")),
}


@pytest.mark.parametrize("policy", ["file", "data"])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("name", FILES)
def test_user_code_in_files_that_raises_stop_iteration(tmp_path, name, policy, threads):
    """Maps, filters and readers: an error with its place, never the end of a file or of all."""
    paths = write_files(tmp_path, [range(5), range(5, 10)])
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        FILES[name](paths), global_batch_size=2, num_workers=threads,
        options=options(auto_shard_policy=policy),
    )  # fmt: skip
    with pytest.raises(tdi.SourceError, match=r"f000\d.txt"):
        list(dataset)


def test_steps_that_could_not_be_started_do_not_end_early():
    """What the start raised is told as an error of the first step."""
    with pytest.raises(tdi.SourceError, match="StopIteration at its start"):
        next(FailedSteps(StopIteration()))


def test_steps_that_cannot_begin_do_not_end_the_loop():
    """``iter()`` is called in their first ``next()``, where a StopIteration would be the end."""

    class Stopped:
        def __iter__(self):
            raise StopIteration

    with pytest.raises(RuntimeError, match="got StopIteration"):
        list(DistributedSteps(Stopped()))
