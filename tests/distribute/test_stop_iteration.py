"""A StopIteration that escapes from a user's function is an error with its place, never an end."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.street import stream_of, write_files
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.engine import streamed
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
        steps = iter(strategy.distribute_dataset(list(range(12)), global_batch_size=4))
        for _ in range(num_fetched):
            next(steps)
        with pytest.raises(tdi.SourceError, match=f"step {num_fetched}: .*ended before it"):
            next(steps)

    simulate(work, num_workers=1)


def test_counted_files_do_not_end_early(tmp_path, monkeypatch):
    """The plan knows how many records they have."""
    pattern = write_numbers(tmp_path, [range(9)])
    run = streamed.PreparedStream._start
    monkeypatch.setattr(
        streamed.PreparedStream, "_start", lambda *args: itertools.islice(run(*args), 1)
    )

    def work(strategy):
        files = tdi.FileDataset(pattern, reader=Numbers(counted=True))
        steps = iter(strategy.distribute_dataset(files, global_batch_size=4))
        next(steps)
        with pytest.raises(tdi.SourceError, match="step 1: .*ended before it"):
            next(steps)

    simulate(work, num_workers=1)
