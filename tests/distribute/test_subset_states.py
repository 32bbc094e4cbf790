"""A state names the part of a dataset that it is of: another part has other examples."""

from __future__ import annotations

import json
from collections import deque
from functools import partial

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

import torch_distinput as tdi
from tests.distribute.example_sources import Squares
from torch_distinput.testing import simulate


def half_of(kind, seed):
    """Half of a dataset, as random_split deals it."""
    generator = torch.Generator().manual_seed(seed)
    whole = TensorDataset(torch.arange(20)) if kind == "columns" else Squares(20)
    half, rest = random_split(whole, [10, 10], generator=generator)
    if kind == "loader":
        return DataLoader(half, batch_size=2)
    named = {"half": half, "rest": rest}
    return tdi.mix(named, weights=(1, 1)) if kind == "mixture" else half


def distributed(kind, seed):
    size = {} if kind == "loader" else {"global_batch_size": 2}
    return tdi.OneDeviceStrategy("cpu").distribute_dataset(half_of(kind, seed), **size)


def count_steps(kind, seed, state):
    """Those that are left."""
    dataset = distributed(kind, seed)
    dataset.load_state_dict(state)
    return sum(1 for _ in dataset)


@pytest.mark.parametrize("kind", ["columns", "examples", "loader", "mixture"])
def test_a_state_of_another_part(kind):
    """As of a random_split that nobody seeds; before the first step any part will do."""
    with iter(distributed(kind, 0)) as iterator:
        before = iterator.state_dict()
        next(iterator)
        state = iterator.state_dict()
    num_steps = 10 if kind == "mixture" else 5
    assert num_steps - 1 == count_steps(kind, 0, state)
    assert num_steps == count_steps(kind, 1, before)
    with pytest.raises(tdi.ConfigurationError, match="indices of the subset was"):
        count_steps(kind, 1, state)
    older = [fact for fact in state["recipe"] if "subset" not in fact[0]]
    assert num_steps - 1 == count_steps(kind, 1, {**state, "recipe": older})


REVERSED = Subset(Squares(8), [*range(8)][::-1])
LATER = Subset(Squares(9), range(1, 9))


class Documents(Squares):
    """Tokens."""

    def __getitem__(self, index):
        return torch.full((2,), index)


class Transformed(Subset):
    """The usual way to give a part of a random_split a transform."""

    def __getitem__(self, index):
        return -super().__getitem__(index)

    def __getitems__(self, indices):
        return [self[index] for index in indices]


CHANGES = {
    "a subclass": tuple(Transformed(Squares(9), part) for part in (range(1, 9), range(8))),
    "a subclass inside": tuple(
        Subset(Transformed(Squares(9), part), range(7)) for part in (range(1, 9), range(8))
    ),
    "stacked": tuple(StackDataset(part, Squares(8)) for part in (REVERSED, LATER)),
    "stacked by names": tuple(StackDataset(x=Squares(8), y=part) for part in (LATER, REVERSED)),
    "a subset, the whole": (REVERSED, Squares(8)),
    "the whole, a subset": (Squares(8), REVERSED),
    "a subset, columns": (Subset(TensorDataset(torch.arange(9)), range(1, 9)), torch.arange(8)),
    "columns, a subset": (torch.arange(8), Subset(TensorDataset(torch.arange(9)), range(1, 9))),
    "the other source": (
        tdi.mix({"a": REVERSED, "b": Squares(8)}, weights=(1, 1)),
        tdi.mix({"a": Squares(8), "b": REVERSED}, weights=(1, 1)),
    ),
    "one of many parts": (
        ConcatDataset([Subset(Squares(8), [1])] * 100),
        ConcatDataset([*[Subset(Squares(8), [1])] * 99, Subset(Squares(8), [2])]),
    ),
    "a part of another part": (Subset(REVERSED, [7, 6, 5]), Subset(LATER, [7, 6, 5])),
    "the beginning of another part": (Subset(REVERSED, range(5)), Subset(LATER, range(5))),
    "packed": tuple(
        tdi.pack(Subset(Documents(9), indices), tokens=None, length=2)
        for indices in ([*range(8)][::-1], range(1, 9))
    ),
    "beginnings of other lengths": (
        ConcatDataset([Subset(Squares(9), range(3)), Subset(Squares(9), range(5))]),
        ConcatDataset([Subset(Squares(9), range(5)), Subset(Squares(9), range(3))]),
    ),
    "the other part": (
        ConcatDataset([REVERSED, Squares(8)]),
        ConcatDataset([Squares(8), REVERSED]),
    ),
}


def begun(source, other):
    """Two datasets, and a state of the first one behind its first step."""
    one, other = (
        tdi.OneDeviceStrategy("cpu").distribute_dataset(each, global_batch_size=2)
        for each in (source, other)
    )
    with iter(one) as iterator:
        next(iterator)
        return one, other, iterator.state_dict()


def refused(one, other):
    """A state of the one goes on with it, and not with the other."""
    one, other, state = begun(one, other)
    one.load_state_dict(state)
    assert len(str(dict(state["recipe"])["indices of the subset"])) < 300
    with pytest.raises(tdi.ConfigurationError, match="indices of the subset was"):
        other.load_state_dict(state)
        iter(other)


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_in_the_place_of_another(change):
    refused(*CHANGES[change])


def goes_on(one, other, num_steps=4):
    """A state of the one goes on with the other."""
    _, other, state = begun(one, other)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert sum(1 for _ in other) == num_steps - 1


def test_selections_of_hugging_face():
    """Their indices are gone when they are saved, say: what has none may be any part."""
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [*range(8)]})
    refused(whole.shuffle(seed=1), whole.shuffle(seed=2))
    goes_on(whole.shuffle(seed=1), whole.shuffle(seed=1).flatten_indices())
    goes_on(whole.shuffle(seed=1).flatten_indices(), whole.shuffle(seed=1))

    def play(strategy):
        mine = whole.shuffle(seed=1)
        mine = mine.flatten_indices() if strategy.worker_index else mine
        dataset = strategy.distribute_dataset(mine, global_batch_size=4)
        return [x for batch in dataset for x in batch["x"].tolist()]

    assert [*range(8)] == sorted(x for part in simulate(play, num_workers=2) for x in part)


def test_selections_of_hugging_face_beside_others():
    """What is not told of the one says nothing of the other."""
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [*range(8)]})
    shuffled, applied = whole.shuffle(seed=1), whole.shuffle(seed=1).flatten_indices()
    goes_on(Subset(shuffled, [*range(1, 8), 0]), Subset(applied, [*range(1, 8), 0]))
    goes_on(applied, ConcatDataset([Subset(shuffled, [3, 2, 1, 0]), Subset(shuffled, range(4, 8))]))
    refused(Subset(shuffled, [*range(1, 8), 0]), Subset(applied, [*range(8)][::-1]))
    for many in (1, 20):
        first, same, other = (
            ConcatDataset([one, *[whole] * many])
            for one in (shuffled, whole.shuffle(seed=1), whole.shuffle(seed=2))
        )
        if many == 1:
            refused(first, other)
            refused(*(tdi.mix({"a": one, "b": whole}, weights=(1, 1)) for one in (first, other)))
        else:  # so many are not named one by one
            goes_on(first, other, num_steps=21 * 4)
        goes_on(first, same, num_steps=(1 + many) * 4)


def test_the_whole_in_another_dress():
    rows = [torch.tensor(x) for x in range(8)]
    goes_on(rows, torch.arange(8))
    goes_on(torch.arange(8), rows)
    goes_on(rows, Subset(rows, range(8)))
    goes_on(Subset(rows, [*range(8)]), TensorDataset(torch.arange(8)))


@pytest.mark.parametrize("before", [8, 9])
def test_a_beginning_of_a_dataset_that_has_grown(before):
    """Whatever its length is now, the same examples are at the same places."""
    goes_on(Subset(Squares(before), range(8)), Subset(Squares(20), range(8)))
    goes_on(Subset(Squares(20), range(8)), Subset(Squares(before), range(8)))


@pytest.mark.parametrize("before", [8, 9])
def test_a_beginning_of_several_of_which_the_last_has_grown(before):
    def part(length):
        return Subset(ConcatDataset([REVERSED, Squares(length)]), range(16))

    goes_on(part(before), part(20), num_steps=8)
    goes_on(part(20), part(before), num_steps=8)


def test_a_state_that_is_made_in_a_later_epoch():
    """It has the indices of its own; also the state of an epoch before any was begun here."""
    part = Subset(Squares(20), [*range(8)][::-1])
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(part, global_batch_size=2)
    kept = next(dataset.steps())
    part.indices = [*range(8, 16)]
    next(iter(dataset))
    part.indices = [*range(8)][::-1]
    first, later = kept.state_dict(), dataset.state_dict()
    for indices, state in ((range(8, 16), later), ([*range(8)][::-1], first)):
        part = Subset(Squares(20), range(12, 20))
        other = tdi.OneDeviceStrategy("cpu").distribute_dataset(part, global_batch_size=2)
        part.indices = [*indices]
        other.load_state_dict(state)
        assert [x * x for x in indices][2:4] == next(iter(other)).tolist()
        other = tdi.OneDeviceStrategy("cpu").distribute_dataset(Squares(8), global_batch_size=2)
        other.load_state_dict(state)
        with pytest.raises(tdi.ConfigurationError, match="indices of the subset"):
            iter(other)


def test_indices_that_are_others_in_each_epoch():
    """As of a curriculum: a state is of those of its epoch."""
    part = Subset(Squares(20), [*range(8)][::-1])
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(part, global_batch_size=2)
    list(dataset)
    part.indices = [*range(8, 16)]
    with iter(dataset) as iterator:
        next(iterator)
        state = iterator.state_dict()
    for indices, message in (([*range(8, 16)], None), ([*range(8)][::-1], "indices of the subset")):
        other = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            Subset(Squares(20), indices), global_batch_size=2
        )
        other.load_state_dict(state)
        if message is None:
            assert [100, 121] == next(iter(other)).tolist()
        else:
            with pytest.raises(tdi.ConfigurationError, match=message):
                iter(other)


class Named(Squares):
    """Its examples have names, numbers that are no places, or keys."""

    def __getitem__(self, name):
        if isinstance(name, Key):
            name = name.name
        return super().__getitem__(round(name * 100) if isinstance(name, float) else int(name[1:]))


class Key:
    """Its ``repr`` is another one in each process."""

    def __init__(self, name):
        self.name = name


def test_a_part_by_names():
    names = [f"x{number}" for number in range(9)]
    refused(Subset(Named(9), names[:8]), Subset(Named(9), names[1:]))
    goes_on(Subset(Named(9), names[1:]), Subset(Named(9), names[1:]))
    keys, others = ([Key(name) for name in names] for _ in range(2))
    refused(Subset(Named(9), keys[:8]), Subset(Named(9), keys[1:]))
    goes_on(Subset(Named(9), keys[1:]), Subset(Named(9), others[1:]))
    numbers = [number / 100 for number in range(9)]
    refused(Subset(Named(9), numbers[:8]), Subset(Named(9), numbers[1:]))


class Rows(Squares):
    """As of np.argwhere: an index is a row of one."""

    def __getitem__(self, index):
        return super().__getitem__(int(index[0]))


class Without(Subset):
    """It does all by itself."""

    def __init__(self):
        pass

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Chosen(Without):
    """Its indices are none, or no sequence."""

    def __init__(self, indices=None):
        self.indices = indices


class Asked(Without):
    @property
    def indices(self):
        raise NotImplementedError


class Late(ConcatDataset):
    """It opens its parts when it is asked."""

    datasets = None  # type: ignore[assignment]
    __init__, __len__, __getitem__ = Without.__init__, Without.__len__, Without.__getitem__


def test_subsets_of_other_kinds():
    indices = torch.arange(1, 9)[:, None]
    goes_on(Subset(Rows(9), indices.numpy()), Subset(Rows(9), indices.numpy()))
    refused(Subset(Rows(9), indices.numpy()), Subset(Rows(9), indices.numpy()[::-1]))
    for make in (Late, Without, Chosen, Asked, partial(Chosen, {1}), partial(Chosen, {"odd": [1]})):
        goes_on(make(), make())


def test_indices_that_cannot_be_sliced():
    goes_on(Subset(Squares(9), deque(range(1, 9))), Subset(Squares(9), torch.arange(1, 9)))


class Endless(Squares):
    """Of which only a part can be played."""

    def __len__(self):
        raise NotImplementedError


def test_a_part_of_what_has_no_length():
    goes_on(Subset(Endless(8), range(8)), Subset(Endless(8), range(8)))
