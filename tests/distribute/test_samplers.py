"""Samplers of the user's: when they are iterated, and what they are told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import torch_distinput as tdi
from torch_distinput.data.user_sources import sampler as user_sampler
from torch_distinput.testing import simulate


class Rotating(Sampler):
    """Begins one further each time it is iterated."""

    def __init__(self, size=6):
        self.size = size
        self.first = 0

    def __len__(self):
        return self.size

    def __iter__(self):
        first, self.first = self.first, self.first + 1
        return iter([(first + place) % self.size for place in range(self.size)])


class Batches(Rotating):
    """The same in batches of two."""

    def __len__(self):
        return self.size // 2

    def __iter__(self):
        indices = list(super().__iter__())
        return iter([indices[place : place + 2] for place in range(0, self.size, 2)])


def loader_of(sampler):
    """A loader whose order is the sampler's."""
    if isinstance(sampler, Batches):
        return DataLoader(range(6), batch_sampler=sampler)
    return DataLoader(range(6), batch_size=2, sampler=sampler)


def firsts(make_sampler, between, workers=2):
    """The first example of each of three epochs, with something done between them."""

    def work(strategy):
        dataset = strategy.distribute_dataset(loader_of(make_sampler()))
        found = []
        for _ in range(3):
            between(dataset)
            found.append(next(iter(dataset)).tolist()[:1])
        return found

    return simulate(work, num_workers=workers)[0]


@pytest.mark.parametrize("make_sampler", [Rotating, Batches])
def test_an_epoch_is_sampled_when_it_begins(make_sampler):
    """Once, as a DataLoader does it."""
    assert [[0], [1], [2]] == firsts(make_sampler, lambda dataset: None)


def test_an_epoch_that_begins_again_is_sampled_again():
    """After a ``break``, or where set_epoch says the same number: as with a DataLoader."""
    assert [[0], [1], [2]] == firsts(Rotating, lambda dataset: dataset.set_epoch(0))


@pytest.mark.parametrize("make_sampler", [Rotating, Batches])
@pytest.mark.parametrize("ask", [len, tdi.DistributedDataset.state_dict], ids=["len", "state"])
def test_asking_changes_nothing(make_sampler, ask):
    """A length or a state that one rank asks for, to log or to save it."""
    asked = firsts(make_sampler, lambda d: ask(d) if d.strategy.worker_index == 0 else None)
    assert [[0], [1], [2]] == asked


@pytest.mark.parametrize("make_sampler", [Rotating, Batches])
def test_the_state_of_a_step_of_an_epoch_that_is_over(make_sampler):
    """One rank asks for it, in the next epoch: it names the order that was played."""

    def work(strategy):
        dataset = strategy.distribute_dataset(loader_of(make_sampler()))
        step, *_ = dataset.steps()
        early = step.state_dict()
        found = []
        for batch in dataset:
            late = step.state_dict() if strategy.worker_index == 0 else early
            found += batch.tolist()
        return found, next(iter(dataset)).tolist(), early == late

    assert [([1, 3, 5], [2], True), ([2, 4, 0], [3], True)] == simulate(work, num_workers=2)


def test_the_length_is_the_samplers():
    """Known before the first epoch; none where a sampler has none."""

    class Unknown(Rotating):
        __len__ = None

    def work(strategy):
        lengths = [
            len(strategy.distribute_dataset(loader_of(sampler)))
            for sampler in (Rotating(), Batches())
        ]
        with pytest.raises(TypeError, match="if it has a len"):
            len(strategy.distribute_dataset(loader_of(Unknown())))
        return lengths

    assert [[3, 3]] * 2 == simulate(work, num_workers=2)


class Once(Sampler):
    """It gives one iterator for all epochs."""

    def __init__(self, items):
        self.items = iter(items)

    def __iter__(self):
        return self.items


class OnceInBatches(Once, Batches):
    """The same of batches."""

    def __len__(self):
        raise NotImplementedError


class Stages(Sampler):
    """Its own iterator, which begins the next stage each time it is asked for one."""

    def __init__(self, rows):
        self.rows, self.stage = rows, -1

    def __iter__(self):
        self.stage, self.left = self.stage + 1, iter(self.rows)
        return self

    def __next__(self):
        return next(self.left) + self.stage


@pytest.mark.parametrize(
    ("kind", "rows"), [("sampler", range(3)), ("batch_sampler", [np.arange(2), np.array([2])])]
)
def test_a_sampler_that_is_its_own_iterator(kind, rows):
    """It is asked once an epoch, as in a DataLoader."""
    loader = DataLoader(torch.arange(6), **{kind: Stages(rows)})
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(loader)
    for stage in range(3):
        assert [stage, stage + 1, stage + 2] == torch.cat(list(dataset)).tolist()


@pytest.mark.parametrize(
    "loader",
    [
        lambda: loader_of(Once(range(6))),
        lambda: loader_of(OnceInBatches([[0, 1], [2]])),
    ],
)
def test_a_sampler_that_is_used_up(loader):
    """Else each epoch after the first would be empty without a word."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(loader())
    assert list(dataset)
    with pytest.raises(tdi.SourceError, match="__iter__ of Once.* to start a new epoch"):
        list(dataset)


def test_an_epoch_goes_on_in_its_order():
    """A state that is loaded where it was saved: the sampler is not asked for another order."""

    def work(strategy):
        dataset = strategy.distribute_dataset(loader_of(Rotating()))
        whole = []
        for batch in (steps := iter(dataset)):
            whole += batch.tolist()
            state = steps.state_dict()
            break
        dataset.load_state_dict(state)
        return whole + [example for batch in dataset for example in batch.tolist()]

    assert [[0, 1, 2, 3, 4, 5]] == simulate(work, num_workers=1)


class Told(Sampler):
    """Begins where its epoch says."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __iter__(self):
        return iter([(self.epoch + place) % 6 for place in range(6)])


def test_a_sampler_is_told_the_epoch():
    """Also the one that set_epoch chooses; nobody has to remember it."""

    def work(strategy):
        dataset = strategy.distribute_dataset(loader_of(Told()))
        found = [next(iter(dataset)).tolist()[0] for _ in range(2)]
        dataset.set_epoch(5)
        return [*found, next(iter(dataset)).tolist()[0]]

    assert [0, 1, 5] == simulate(work, num_workers=2)[0]


class Epochs(Dataset):
    """Examples that tell which epoch their dataset knows of."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(self.epoch)


@pytest.mark.parametrize("keywords", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_dataset_is_told_the_epoch(keywords):
    """Also where loader processes that persist have datasets of their own."""

    def work(strategy):
        loader = DataLoader(Epochs(), batch_size=4, **keywords)
        dataset = strategy.distribute_dataset(loader)
        return [batch.tolist() for _ in range(3) for batch in dataset]

    assert [[[0, 0], [1, 1], [2, 2]]] * 2 == simulate(work, num_workers=2)


class Long(Rotating):
    """Says that it yields more than it does."""

    def __len__(self):
        return 9


class LongBatches(Batches):
    """The same of batches."""

    def __len__(self):
        return 9


class LongWithEmpty:
    """It counts lists without an index, which are no steps."""

    def __iter__(self):
        yield from ([0, 1], [], [2], [])

    def __len__(self):
        return 4


def test_empty_batches_are_no_items_of_a_length(caplog):
    one = tdi.OneDeviceStrategy("cpu")
    loader = DataLoader(torch.arange(3), batch_sampler=LongWithEmpty())
    steps = [step.tolist() for step in one.distribute_dataset(loader)]
    assert [[0, 1], [2]] == steps
    (told,) = [text for text in caplog.messages if "The len() of LongWithEmpty is 4" in text]
    assert "has yielded 2 items" in told


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_length_that_is_too_long_is_told(caplog, num_workers, batched):
    """No rank waits for what does not come."""
    user_sampler._warn_of_length.cache_clear()

    def work(strategy):
        loader = (
            DataLoader(torch.arange(6), batch_sampler=LongBatches())
            if batched
            else DataLoader(torch.arange(6), 2, sampler=Long())
        )
        dataset = strategy.distribute_dataset(loader)
        return [step.tolist() for _ in range(2) for step in dataset]

    for steps in simulate(work, num_workers=num_workers):
        assert 2 * 3 == len(steps)
    (told,) = [text for text in caplog.messages if "The len() of Long" in text]
    assert "is 9, and it has yielded" in told


class Drawn(Rotating):
    """Draws from a generator of its own."""

    def __init__(self, seed):
        super().__init__(6)
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        return iter(self.rng.permutation(self.size).tolist())


def test_why_an_order_that_is_drawn_differs_between_ranks():
    def work(strategy):
        iter(strategy.distribute_dataset(loader_of(Drawn(strategy.worker_index))))

    with pytest.raises(tdi.MismatchError, match="order from Drawn .*generator of its own"):
        simulate(work, num_workers=2)


def test_why_an_order_that_is_drawn_differs_after_a_restart():
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(loader_of(Drawn(0)))
    assert list(dataset)
    next(iter(dataset))
    again = strategy.distribute_dataset(loader_of(Drawn(0)))
    again.load_state_dict(dataset.state_dict())
    with pytest.raises(tdi.ConfigurationError, match="order of the sampler .*generator of its own"):
        iter(again)


class Drawing(Rotating):
    """Draws its order when it is told an epoch."""

    def set_epoch(self, epoch):
        self.order = torch.randperm(self.size).tolist()

    def __iter__(self):
        return iter(self.order)


def test_what_a_sampler_draws_in_set_epoch_is_the_seed_and_epoch_own():
    """Whatever the script has drawn before; and it draws the same afterwards."""

    def orders(script_seed):
        torch.manual_seed(script_seed)
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(loader_of(Drawing()), seed=3)
        played = [[int(row) for batch in dataset for row in batch] for _ in range(2)]
        return played, torch.rand(()).item()

    (first, drawn), (again, _) = orders(0), orders(1)
    assert first == again
    assert first[0] != first[1]
    torch.manual_seed(0)
    assert drawn == torch.rand(()).item()
