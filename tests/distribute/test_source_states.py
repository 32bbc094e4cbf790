"""Sources with a state of their own: every epoch goes on from every stop, as torchdata tests it."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.stateful_sources import (
    BATCHES,
    COUNT,
    EXAMPLES,
    Forgetful,
    OwnIterator,
    Shuffled,
    Told,
    order_of,
)
from tests.distribute.street import options, shown, stream_of
from torch_distinput.testing import simulate


def played(make, num_workers, *, state=None, epochs, batch_size=4, policy="auto", processes=0):
    """Per worker and epoch the steps, and the states at every stop of each epoch."""

    def work(strategy):
        dataset = strategy.distribute_dataset(
            make(),
            global_batch_size=batch_size,
            num_workers=processes,
            options=options(auto_shard_policy=policy),
        )
        return play_epochs(strategy, dataset, epochs, state)

    return simulate(work, num_workers=num_workers)


def play_epochs(strategy, dataset, epochs, state):
    """The steps of each epoch, and the states at every stop."""
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    steps, states = [], []
    for _ in range(epochs):
        iterator = iter(dataset)
        stops = [json.dumps(dataset.state_dict())]
        own = []
        for step in iterator:
            own.append(shown(strategy, step))
            stops.append(json.dumps(dataset.state_dict()))
        steps.append(own)
        states.append([*stops, json.dumps(dataset.state_dict())])
    return steps, states


def check_every_stop(play, every=1, **elsewhere):
    """Each state is the same on all workers, and the rest of its epoch and the next one follow."""
    results = play(epochs=3)
    assert len({json.dumps(states) for _, states in results}) == 1
    whole = [steps for steps, _ in results]
    for epoch, stops in enumerate(results[0][1][:2]):
        for stop in range(0, len(stops), every):
            tails = [steps for steps, _ in play(epochs=2, state=stops[stop], **elsewhere)]
            expected = [[steps[epoch][stop:], steps[epoch + 1]] for steps in whole]
            assert expected == tails, (epoch, stop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        (name, num_workers)
        for name in [*EXAMPLES, *BATCHES]
        for num_workers in (1, 2)
        if "processes" not in name or num_workers == 1  # none is forked beside threads that work
    ],
)
def test_every_stop_of_later_epochs(name, num_workers):
    """A save before the first resume point of an epoch resumes that epoch, and no other."""
    if name in EXAMPLES:
        play = partial(played, EXAMPLES[name], num_workers)
    else:
        play = partial(played, BATCHES[name], num_workers, batch_size=None)
    waits = not LONG and ("threads" in name or "processes" in name)  # theirs, at each end
    check_every_stop(play, every=(3 if waits else 1) if num_workers == 1 else 3)


@pytest.mark.parametrize(
    "name", ["a generator", "no state before the first example", "state on both"]
)
def test_every_stop_by_a_token_budget(name):
    """A batch may begin behind rows that are read with those before it."""
    budget = tdi.TokenBudget(4, length=lambda example: 1 + int(example) % 2)
    check_every_stop(partial(played, EXAMPLES[name], 1, batch_size=budget), every=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "threads"])
def test_loader_processes_change_nothing(name):
    """Neither the order of any epoch nor what follows a state: here, and in a process."""
    here, there = (partial(played, EXAMPLES[name], 1, processes=n) for n in (0, 1))
    ((whole, states),) = here(epochs=2)
    ((same, said),) = there(epochs=2)
    assert whole == same
    for one, other in ((states, here), (states, there), (said, here)):
        for stop in (0, 1, -1):
            ((tail, _),) = other(epochs=1, state=one[1][stop])
            assert [whole[1][stop:] if stop >= 0 else []] == tail


def left_half_way(strategy, dataset):
    """Two epochs; a third one that is left, one that is whole, and the state at its first stop."""
    for _ in range(2):
        list(dataset)
    iterator = iter(dataset)
    beginning = shown(strategy, next(iterator))
    iterator = iter(dataset)
    state = json.dumps(dataset.state_dict())
    return beginning, [shown(strategy, step) for step in iterator], state


def test_a_worker_whose_batches_begin_in_a_later_step():
    """With fewer examples in a batch than replicas, each worker tells its places all the same."""

    def work(strategy):
        chosen = options(auto_shard_policy="off", rebatch="cycle")
        dataset = strategy.distribute_dataset(Shuffled(), global_batch_size=1, options=chosen)
        return [[x for step in dataset for x in step.tolist()] for _ in range(3)]

    assert [[order_of(epoch) for epoch in range(3)]] * 2 == simulate(work, num_workers=2)


def test_epochs_of_one_batch():
    """There is no place in them but the beginning; states do not grow all the same."""
    play = partial(played, Shuffled, 1, batch_size=COUNT + 1)
    check_every_stop(play)
    ((_, states),) = play(epochs=9)
    assert len(states[2][0]) == len(states[8][0])


class Counted(IterableDataset):
    """It counts its epochs when they begin: what it says before the first is not true."""

    def __init__(self):
        self.epoch, self.place, self.goes_on = -1, 0, False

    def __iter__(self):
        if not self.goes_on:
            self.epoch, self.place = self.epoch + 1, 0
        self.goes_on = False
        while self.place < COUNT:
            self.place += 1
            yield (7 * self.epoch + self.place) % COUNT

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place, self.goes_on = state["epoch"], state["place"], True


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_source_that_counts_when_it_begins(num_workers):
    """A state of its first epoch does not load what it said before."""
    check_every_stop(partial(played, Counted, num_workers))


KNOW_EPOCHS = {"SamplerWrapper", "threads over a sampler", "weighted"}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_epochs_that_are_left_have_orders_of_their_own(num_workers):
    """What a source says of the epoch that was left does not win over the epoch to play."""

    def work(strategy):
        dataset = strategy.distribute_dataset(Told(), global_batch_size=num_workers)
        firsts = [strategy.gather(next(iter(dataset))).tolist()[0] for _ in range(3)]
        dataset.set_epoch(9)
        steps = iter(dataset)
        state = dataset.state_dict()
        other = strategy.distribute_dataset(Told(), global_batch_size=num_workers)
        other.load_state_dict(state)
        return firsts, [strategy.gather(next(one)).tolist()[0] for one in (steps, iter(other))]

    assert ([1, 2, 3], [10, 10]) == simulate(work, num_workers=num_workers)[0]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_epoch_that_was_left_begins_again(name, num_workers):
    """From its beginning, whatever was read ahead, and so after a restart.

    Sources that know epochs play the next one's order, as they do without us.
    """

    def work(strategy):
        dataset = strategy.distribute_dataset(
            EXAMPLES[name](), global_batch_size=4, options=options(auto_shard_policy="off")
        )
        beginning, whole, state = left_half_way(strategy, dataset)
        assert (name in KNOW_EPOCHS) == (beginning != whole[0])
        assert COUNT <= len([x for step in whole for batch in step for x in batch])
        other = strategy.distribute_dataset(
            EXAMPLES[name](), global_batch_size=4, options=options(auto_shard_policy="off")
        )
        other.load_state_dict(json.loads(state))
        assert whole == [shown(strategy, step) for step in other]

    simulate(work, num_workers=num_workers)


@pytest.mark.parametrize("make", [Shuffled, OwnIterator, Forgetful])
@pytest.mark.parametrize("num_asked", [0, 1, 5])
def test_a_pass_set_aside_takes_no_epoch(make, num_asked):
    """The next epochs have the orders they would have had, after none, some or all of one."""

    def play(is_looked_at):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(make(), global_batch_size=4)
        list(itertools.islice(dataset if num_asked else (), num_asked))
        if is_looked_at:
            with dataset.set_aside():
                list(dataset)
        return [[step.tolist() for step in dataset] for _ in range(2)]

    assert play(is_looked_at=False) == play(is_looked_at=True)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "processes"), [(1, 0), (2, 0), (1, 2)])
def test_loaders_of_a_function_that_shuffle(num_workers, processes):
    """An order that is drawn when an epoch begins goes on in every epoch, from its first step."""

    def make(strategy):
        return strategy.distribute_datasets_from_function(
            lambda context: StatefulDataLoader(
                range(100 * context.input_pipeline_id, 100 * context.input_pipeline_id + COUNT),
                batch_size=2, shuffle=True, num_workers=processes,
            )
        )  # fmt: skip

    def work(strategy, state=None):
        return play_epochs(strategy, make(strategy), 2 if state is None else 1, state)

    results = simulate(work, num_workers=num_workers)
    assert len({json.dumps(states) for _, states in results}) == 1
    for epoch, stops in enumerate(results[0][1]):
        for stop in range(1, len(stops), 1 if not processes else 3):
            tails = simulate(partial(work, state=stops[stop]), num_workers=num_workers)
            assert [steps[epoch][stop:] for steps, _ in results] == [s for (s,), _ in tails]


def test_a_source_is_started_once():
    """Also where it goes on from a state, and it is loaded once."""
    one = tdi.OneDeviceStrategy("cpu")
    first, second = OwnIterator(), OwnIterator()
    dataset = one.distribute_dataset(first, global_batch_size=4)
    next(iter(dataset))
    other = one.distribute_dataset(second, global_batch_size=4)
    other.load_state_dict(dataset.state_dict())
    next(iter(other))
    assert (1, 1) == (first.calls, second.calls)


def test_epochs_played_to_their_end_load_nothing():
    """Only what was left, or is continued, needs ``load_state_dict`` to be right."""

    class Plain(Shuffled):
        def __init__(self):
            self.load_state_dict = lambda state: pytest.fail(f"{state} was loaded")

    for size in (1, 4, COUNT):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Plain(), global_batch_size=size)
        epochs = [[x for step in dataset for x in step.tolist()] for _ in range(3)]
        assert [order_of(epoch) for epoch in range(3)] == epochs


def test_what_a_state_holds_of_a_source():
    """Our number, the source's own words for there, and those for the beginning of the epoch."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(Shuffled(), global_batch_size=4)
    list(itertools.islice(iter(dataset), 2))
    *_, (kind, *values) = dataset.state_dict()["streams"][0][2]
    own = dict(values)
    assert ("source", 4) == (kind, own["example"])
    assert {"position": 4, "epoch": 0} == json.loads(own["state"])
    assert {"position": 0, "epoch": 0} == json.loads(own["beginning"].removeprefix("new:"))


def test_a_source_without_a_state_cannot_go_on_from_one():
    """The error names it."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(Shuffled(), global_batch_size=4)
    list(itertools.islice(iter(dataset), 2))
    other = one.distribute_dataset(stream_of(range(COUNT)), global_batch_size=4)
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(tdi.SourceError, match="a state of its own.*got generator"):
        next(iter(other))


def test_streams_that_end_at_once():
    """Epoch after epoch."""

    class Empty(Shuffled):
        def __iter__(self):
            self.epoch += 1
            yield from ()

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Empty(), global_batch_size=4)
    assert [[], [], []] == [list(dataset) for _ in range(3)]
    dataset.load_state_dict(dataset.state_dict())
    assert [] == list(dataset)
