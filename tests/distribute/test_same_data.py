"""Under DATA all workers must hold the same dataset: a split one is found out at ``iter()``."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info, random_split

import torch_distinput as tdi
from tests.distribute.street import options
from torch_distinput import readers
from torch_distinput.data.sources import spot_check
from torch_distinput.testing import simulate


class Squares(Dataset):
    """Of some numbers; counts how often it was asked in this process."""

    def __init__(self, numbers):
        self.numbers = list(numbers)
        self.num_asked = 0

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        self.num_asked += get_worker_info() is None
        return torch.tensor(self.numbers[index] ** 2)


def outcome(make_source, *, policy="auto", num_workers=0, epochs=1):
    """For each of two workers what ``iter()`` raises, or how many examples it gets."""

    def work(strategy):
        source = make_source(strategy.worker_index)
        loader = isinstance(source, DataLoader)
        dataset = strategy.distribute_dataset(
            source,
            global_batch_size=None if loader else 4,
            num_workers=num_workers,
            options=options(auto_shard_policy=policy),
        )
        try:
            return sum(len(batch) for _ in range(epochs) for batch in dataset)
        except tdi.MismatchError as error:
            return str(error)

    return simulate(work, num_workers=2)


SPLIT = {
    "a list": lambda worker: list(range(worker, 20, 2)),
    "columns": lambda worker: torch.arange(20)[worker::2],
    "an array": lambda worker: np.arange(20)[worker::2],
    "a dataset": lambda worker: Squares(range(worker, 20, 2)),
    "a Subset": lambda worker: Subset(Squares(range(20)), range(worker, 20, 2)),
    "a loader": lambda worker: DataLoader(Squares(range(worker, 20, 2)), batch_size=4),
    "a shuffled loader": lambda worker: DataLoader(
        Squares(range(worker * 10, worker * 10 + 10)), batch_size=4, shuffle=True
    ),
    "a loader with batches": lambda worker: DataLoader(
        Squares(range(worker, 20, 2)), batch_sampler=[[0, 1, 2], [5, 4]]
    ),
    "an unseeded random_split": lambda worker: random_split(
        Squares(range(20)), [10, 10], torch.Generator().manual_seed(worker)
    )[0],
    "other lengths": lambda worker: Squares(range(worker, 21, 2)),
    "other classes": lambda worker: [Squares, Subset][worker](range(4), *[range(4)] * worker),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_dataset_that_was_split_by_rank(name):
    """Every rank raises before the first step; nobody has to ask for an audit."""
    for message in outcome(SPLIT[name]):
        assert "Expected the same" in message
        assert "by rank" in message


FILES = {
    "text": lambda path, numbers: path.write_text("".join(f"{n}\n" for n in numbers)),
    "jsonl": lambda path, numbers: path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers)),
    "npy": lambda path, numbers: np.save(f"{path}.npy", numbers),
}
RECIPES = {
    "plain": lambda files: files,
    "a filter, shuffled": lambda files: files.filter(bool).shuffle(2),
    "mixed": lambda files: tdi.mix({"a": files, "b": files}, weights=(1, 1), stop="all"),
}


@pytest.mark.parametrize("policy", ["auto", "data"])
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_files_in_a_folder_of_each_rank(tmp_path, kind, recipe, policy):
    """Of the same names and sizes: the first record tells, behind files without any."""
    for worker, start in enumerate((100, 200)):
        (tmp_path / str(worker)).mkdir()
        for number, count in enumerate((0, 3, 3) if kind != "npy" else (3, 3)):
            path = tmp_path / str(worker) / f"part-{number}"
            FILES[kind](path, np.arange(start + 3 * number, start + 3 * number + count))

    def make(worker):
        return RECIPES[recipe](tdi.FileDataset(str(tmp_path / str(worker) / "*"), reader=kind))

    for message in outcome(make, policy=policy):
        assert "Expected the same fingerprint of example 0" in message
        assert "files of its own, of the same names and sizes" in message


@dataclasses.dataclass(frozen=True)
class WithPath(readers.Reader):
    """Its records name the file, which lies elsewhere for each rank."""

    def read(self, file, part):
        del part
        with file.open() as opened:
            yield [f"{file.path}: {line.decode()}" for line in opened.read().splitlines()]


@pytest.mark.parametrize("reader", ["text", WithPath()])
def test_copies_of_files_are_the_same(tmp_path, reader):
    """As each machine may have on a disk of its own; a second epoch asks no more."""
    for worker in range(2):
        (tmp_path / str(worker)).mkdir()
        (tmp_path / str(worker) / "part-0").write_text("1\n2\n3\n")
        (tmp_path / str(worker) / "part-1").write_text("4\n5\n6\n7\n")
    files = [
        tdi.FileDataset(str(tmp_path / str(worker) / "*"), reader=reader) for worker in range(2)
    ]
    assert [6, 8] == outcome(files.__getitem__, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a list", "a dataset"])
def test_loader_processes_make_the_check(name):
    """It comes out the same there."""
    (message, _) = outcome(SPLIT[name], num_workers=1)
    assert "on worker 1 is not that of worker 0" in message


def test_a_dataset_is_read_where_its_files_are_opened():
    """A handle that the check had opened here would be shared by all loader processes."""
    shared = Squares(range(20))
    assert [10, 10] == outcome(lambda _: shared, num_workers=1)
    assert 0 == shared.num_asked


def test_what_nobody_else_has_is_no_matter_of_comparison():
    """Under OFF every rank plays its own; and so it does in dataset_fn."""
    assert [10, 10] == outcome(SPLIT["a dataset"], policy="off")


def test_the_check_is_made_once():
    """Each rank fetches an example of a batch twice, and then each as often as it is played."""

    def num_asked(epochs):
        shared = Squares(range(2))

        def work(strategy):
            dataset = strategy.distribute_dataset(shared, global_batch_size=2)
            return [len(list(dataset)) for _ in range(epochs)]

        simulate(work, num_workers=2)
        return shared.num_asked

    assert (2 * 2 + 2, 2 * 2 + 3 * 2) == (num_asked(1), num_asked(3))


class Noisy(Dataset):
    """Examples from a source of randomness."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.draw(index)


def cached_noise(_):
    """Drawn once, alike on all ranks."""
    rows = torch.rand(8, generator=torch.Generator().manual_seed(7))
    return Noisy(lambda index: rows[index])


def own_noise(worker):
    """From a generator that nobody else seeds."""
    own = np.random.default_rng(worker)
    return Noisy(lambda index: own.random() + index)


HONEST = {
    "torch's generator": lambda _: Noisy(lambda index: torch.rand(()) + index),
    "NumPy's generator": lambda _: Noisy(lambda index: np.random.rand() + index),
    "Python's generator": lambda _: Noisy(lambda index: random.random() + index),
    "a generator of its own": own_noise,
    "noise that is kept": cached_noise,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_random_examples_raise_no_alarm(name, num_workers):
    """Augmentation makes other examples each time, and on each rank."""
    assert [8, 8] == outcome(HONEST[name], num_workers=num_workers, epochs=2)


def test_random_examples_are_compared_all_the_same():
    """The generators are seeded alike for the check: what else differs shows."""
    (message, _) = outcome(lambda worker: Noisy(lambda _: torch.rand(()) + worker))
    assert "example" in message
    assert "on worker 1 is not that of worker 0" in message


def test_generators_are_put_back():
    """The check draws nothing from the user's random numbers."""

    def draw():
        return torch.rand(()).item(), np.random.rand(), random.random()

    def seed():
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    seed()
    expected = draw()
    seed()
    spot_check.SpotCheck((0, 1)).run(lambda indices: [draw() for _ in indices])
    assert expected == draw()


def test_a_coin_that_falls_alike_twice_raises_no_alarm():
    """Ranks that agree with themselves but not with each other look again, and often."""

    def coins(worker):
        falls = itertools.chain([worker] * 6, itertools.cycle([0, 1]))  # alike in the first check
        return Noisy(lambda index: torch.tensor(next(falls)))

    assert [4, 4] == outcome(coins)


def test_the_second_look_tells_no_other_epoch():
    """The dataset is at the epoch that is played."""

    class Coins(Noisy):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

    def work(strategy):
        falls = itertools.chain([strategy.worker_index] * 6, itertools.cycle([0, 1]))
        source = Coins(lambda index: torch.tensor(next(falls)))
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        dataset.set_epoch(5)
        iter(dataset)
        return source.epoch

    assert [5, 5] == simulate(work, num_workers=2)


def test_what_is_not_random_in_an_example_is_compared():
    """A split dataset whose images are augmented by a generator of its own shows by its labels."""

    def augmented(worker):
        noise = np.random.default_rng(worker)
        return Noisy(lambda index: (noise.random(), 2 * index + worker))

    (message, _) = outcome(augmented)
    assert "on worker 1 is not that of worker 0" in message


def test_folders_may_differ():
    """A path counts by its last part: nodes may have folders of their own."""
    assert [4, 4] == outcome(lambda worker: Noisy(lambda index: f"/local/{worker}/{index}.png"))
    (message, _) = outcome(lambda worker: Noisy(lambda index: f"/local/{2 * index + worker}.png"))
    assert "on worker 1 is not that of worker 0" in message


def test_generators_of_accelerators_are_left_alone(monkeypatch):
    """Nobody would put them back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    assert [4, 4] == outcome(HONEST["torch's generator"])
    assert [] == seeded


@pytest.mark.slow
def test_a_dataset_that_begins_slowly_is_named():
    """Its peers wait for the first example in iter(), and say what to do."""
    begun = threading.Event()

    def work(strategy):
        def slow(index):
            if strategy.worker_index == 0:
                begun.wait(60)
            return index

        dataset = strategy.distribute_dataset(
            Noisy(slow), global_batch_size=4, options=options(timeout=2.0)
        )
        try:
            list(dataset)
        except tdi.PeerTimeoutError as error:
            return str(error)
        except tdi.PeerFailedError:
            return ""
        finally:
            begun.set()
        return ""

    (_, said) = simulate(work, num_workers=2)
    assert "the first example of dataset 0 (Noisy)" in said
    assert "Raise InputOptions.timeout" in said


def test_an_example_that_raises_is_left_to_its_step():
    """The error has its place there, and is told to all ranks."""

    def work(strategy):
        def broken(index):
            raise KeyError(index)

        dataset = strategy.distribute_dataset(Noisy(broken), global_batch_size=4)
        steps = iter(dataset)
        with pytest.raises((tdi.SourceError, tdi.PeerFailedError), match="KeyError"):
            next(steps)

    simulate(work, num_workers=2)
