"""A distributed dataset as a node of torchdata: what a pipeline behind it gets, and its states."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from functools import partial

import pytest
import torch
from torch.utils.data import IterableDataset
from torchdata import nodes

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.stateful_sources import Shuffled
from tests.distribute.street import options, write_files
from torch_distinput.integrations.torchdata import DistributedNode
from torch_distinput.testing import simulate

COUNT = 22


def listed(step):
    return step.tolist()


def indexed(strategy, folder):
    """Steps whose number is known: 6 of 4 examples, the last one of 2."""
    del folder
    numbers = torch.arange(COUNT)
    return strategy.distribute_dataset(numbers, global_batch_size=4, shuffle=True, seed=3)


def dealt(strategy, folder):
    """Files of 9, 1, 7 and 5 examples, dealt to workers, which vote."""
    files = tdi.FileDataset(str(folder / "*.txt"), shuffle_files=True).map(int)
    return strategy.distribute_dataset(files, global_batch_size=4)


@pytest.fixture
def folder(tmp_path):
    numbers = iter(range(COUNT))
    write_files(tmp_path, [list(itertools.islice(numbers, size)) for size in (9, 1, 7, 5)])
    return tmp_path


DATASETS = {"indexed": indexed, "dealt": dealt}
PIPELINES = {
    "alone": lambda node: nodes.Mapper(node, listed),
    "Prefetcher": lambda node: nodes.Mapper(nodes.Prefetcher(node, 3), listed),
    "Prefetcher, a snapshot in 2": lambda node: nodes.Prefetcher(
        nodes.Mapper(node, listed), 3, snapshot_frequency=2
    ),
    "both": lambda node: nodes.Prefetcher(nodes.ParallelMapper(node, listed, num_workers=2), 2),
    "Batcher": lambda node: nodes.Mapper(
        nodes.Batcher(node, 2, drop_last=False), lambda steps: [step.tolist() for step in steps]
    ),
}


def loader_of(dataset, pipeline):
    """It ends where an epoch ends, also where it goes on from the end of one."""
    root = PIPELINES[pipeline](DistributedNode(dataset))
    return nodes.Loader(root, restart_on_stop_iteration=False)


def play(strategy, make, pipeline, *, epochs, state=None):
    """What comes in each epoch, and the states at every stop of each."""
    loader = loader_of(make(strategy), pipeline)
    if state is not None:
        loader.load_state_dict(json.loads(state))
    steps, states = [], []
    for _ in range(epochs):
        own, stops = [], []
        iterator = iter(loader)
        stops.append(json.dumps(loader.state_dict()))
        for item in iterator:
            own.append(item)
            stops.append(json.dumps(loader.state_dict()))
        steps.append(own)
        states.append([*stops, json.dumps(loader.state_dict())])
    return steps, states


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("name", DATASETS)
def test_a_pipeline_goes_on_from_every_stop(name, pipeline, folder):
    """With the rest of the epoch and the whole next one; states are the same on all workers."""
    make = partial(DATASETS[name], folder=folder)
    played = simulate(partial(play, make=make, pipeline=pipeline, epochs=3), num_workers=2)
    assert played[0][1] == played[1][1]
    every = 1 if LONG or pipeline != "both" else 2  # its threads are waited for at each end
    for epoch, stops in enumerate(played[0][1][:2]):
        for stop, state in list(enumerate(stops))[::every]:
            rest = partial(play, make=make, pipeline=pipeline, epochs=2, state=state)
            expected = [[steps[epoch][stop:], steps[epoch + 1]] for steps, _ in played]
            assert expected == [steps for steps, _ in simulate(rest, num_workers=2)], (epoch, stop)


def taken(strategy, make, pipeline, *, stop=None, state=None):
    """The examples of one worker until a stop, and the state there."""
    loader = loader_of(make(strategy), pipeline)
    if state is not None:
        loader.load_state_dict(state)
    steps = list(itertools.islice(loader, stop))
    return [x for step in steps for x in step], loader.state_dict()


@pytest.mark.parametrize("pipeline", ["alone", "Prefetcher", "both"])
@pytest.mark.parametrize("name", DATASETS)
def test_another_number_of_workers_goes_on(name, pipeline, folder):
    """Two, then three, then one: each example once, though all nodes read ahead."""
    make = partial(DATASETS[name], folder=folder)
    delivered, state = [], None
    for num_workers, stop in ((2, 2), (3, 1), (1, None)):
        leg = partial(taken, make=make, pipeline=pipeline, stop=stop, state=state)
        results = simulate(leg, num_workers=num_workers)
        assert 1 == len({json.dumps(state) for _, state in results})
        delivered += [x for examples, _ in results for x in examples]
        state = results[0][1]
    assert list(range(COUNT)) == sorted(delivered)


def test_all_ranks_end_at_the_same_step(folder):
    """Zero rows come where a worker has no more data, also behind a node that reads ahead."""
    files = sorted(folder.glob("*.txt"))[:2]

    def work(strategy):
        dataset = strategy.distribute_dataset(
            tdi.FileDataset([str(file) for file in files]).map(int), global_batch_size=4
        )
        return list(loader_of(dataset, "Prefetcher"))

    first, second = simulate(work, num_workers=2)
    assert [[0, 1], [2, 3], [4, 5], [6, 7], [8]] == first
    assert [[], [9], [], [], []] == second


def test_each_reset_begins_the_next_epoch():
    """Or the one that was set."""
    dataset = indexed(tdi.OneDeviceStrategy("cpu"), None)
    loader = nodes.Loader(DistributedNode(dataset))
    first, second = ([step.tolist() for step in loader] for _ in range(2))
    dataset.set_epoch(0)
    assert (first, 1) == ([step.tolist() for step in loader], dataset.epoch)
    assert second == [step.tolist() for step in loader]


def stateful(strategy, folder):
    """A stream that keeps its place and its epoch itself."""
    del folder
    return strategy.distribute_dataset(Shuffled(), global_batch_size=4)


def read_on(node):
    """In a thread, whose epoch is closed before the others come to its end."""
    with contextlib.suppress(tdi.UsageError):
        list(node)


def wait_for_end(heartbeat):
    """Return when a thread waits for the other workers at the end of the data."""
    while not heartbeat.outside or "at the end of" not in heartbeat.outside.words:
        time.sleep(0.001)

@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("make", [indexed, dealt, stateful])
def test_an_epoch_may_be_left_while_threads_are_elsewhere(make, is_whole, goes_on, folder):
    """The next one is as it is without them; one worker may even wait at the end of the data."""
    have_read = threading.Barrier(2)

    def work(strategy):
        plain = make(strategy, folder)
        next(iter(plain))
        state = {DistributedNode.DATASET_KEY: plain.state_dict()} if goes_on else None
        expected = [[step.tolist() for step in plain] for _ in range(2)]
        node = DistributedNode(make(strategy, folder))
        node.reset(state)
        for _ in range(1 + 2 * strategy.worker_index):
            next(node)
        if is_whole and strategy.worker_index:
            threading.Thread(target=read_on, args=(node,)).start()
            wait_for_end(strategy._session.heartbeat)
        have_read.wait(60)
        loader = nodes.Loader(node)
        assert expected == [[step.tolist() for step in loader] for _ in range(2)]

    simulate(work, num_workers=2)


def test_a_loader_that_restarts_skips_the_empty_rest_of_an_epoch():
    """torchdata's default: what was saved behind the last step goes on with the next epoch."""
    one = tdi.OneDeviceStrategy("cpu")
    loader = nodes.Loader(DistributedNode(indexed(one, None)))
    list(loader)
    state = loader.state_dict()
    following = [step.tolist() for step in loader]
    other = nodes.Loader(DistributedNode(indexed(one, None)))
    other.load_state_dict(state)
    assert following == [step.tolist() for step in other]


def test_a_state_tells_what_the_consumer_has_got():
    """Not what a thread has read ahead of it, which is the rest of the epoch here."""
    node = DistributedNode(indexed(tdi.OneDeviceStrategy("cpu"), None))
    has_ended = threading.Event()

    def note_the_last(step):
        if len(step) == 2:
            has_ended.set()
        return step

    loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(node, note_the_last), 6))
    steps = iter(loader)
    next(steps)
    assert has_ended.wait(60)
    ahead = node.state_dict()["dataset"]["steps"]
    source = loader.state_dict()["root"]["snapshot"]["it_state"]["source"]
    assert (6, 1) == (ahead, source["dataset"]["steps"])


def test_a_step_comes_with_its_facts():
    """Those of the step itself, however many were read after it."""

    def work(strategy):
        node = DistributedNode(indexed(strategy, None), with_info=True)
        loader = nodes.Loader(nodes.Prefetcher(node, 3))
        return [(info.index, info.num_examples, len(step)) for step, info in loader]

    whole = [(index, 4, 2) for index in range(5)]
    assert [[*whole, (5, 2, 1)]] * 2 == simulate(work, num_workers=2)


def test_a_loss_of_a_step_that_a_thread_has_taken_needs_its_number():
    """What was delivered last may be a later step, of another size: here 3 examples, not 4."""

    def work(strategy):
        dataset = strategy.distribute_dataset(torch.arange(7.0), global_batch_size=4)
        loader = nodes.Loader(nodes.Prefetcher(DistributedNode(dataset, with_info=True), 2))
        with strategy.scope():
            (loss, info), _ = loader
            with pytest.raises(tdi.UsageError, match="in this thread. Pass num_examples="):
                tdi.compute_average_loss(loss)
            return float(tdi.compute_average_loss(loss, info.num_examples))

    assert [0.25, 1.25] == simulate(work, num_workers=2)


def test_an_error_reaches_the_consumer_as_what_it_is():
    """Through the thread of a node: the source's on its rank, one about a peer on the others."""

    def work(strategy):
        def play():
            yield from torch.arange(6).split(1)
            if strategy.worker_index == 1:
                raise OSError("disk")
            yield torch.zeros(1)

        dataset = strategy.distribute_datasets_from_function(lambda _: play)
        with pytest.raises(tdi.DistinputError, match="disk") as caught:
            list(nodes.Loader(nodes.Prefetcher(DistributedNode(dataset), 2)))
        return caught.type

    assert [tdi.PeerFailedError, tdi.SourceError] == simulate(work, num_workers=2)


def test_close_frees_a_thread_that_waits_for_another_worker():
    """And tells its consumer why there is no step."""
    released = threading.Event()

    def work(strategy):
        def play():
            if strategy.worker_index == 1:
                assert released.wait(60)
            yield torch.zeros(1)

        node = DistributedNode(strategy.distribute_datasets_from_function(lambda _: play))
        steps = iter(nodes.Loader(nodes.Prefetcher(node, 2)))
        node.close()
        with pytest.raises(tdi.UsageError, match="closed by close"):
            next(steps)
        released.set()

    simulate(work, num_workers=2)


class Held(IterableDataset):
    """A stream whose second example takes a while; it notes whether it is started meanwhile."""

    def __init__(self):
        self.is_inside, self.entered, self.released = False, threading.Event(), threading.Event()
        self.starts = []

    def __iter__(self):
        self.starts.append(self.is_inside)
        yield 0
        self.is_inside = True
        self.entered.set()
        assert self.released.wait(60)
        self.is_inside = False
        yield 1


class Announced:
    """A lock that lets go of what is held where the main thread asks for it."""

    def __init__(self, held):
        self.held, self.lock = held, threading.Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.held.released.set()
        self.acquire()

    def __exit__(self, *_):
        self.release()


def test_a_source_is_started_again_when_nobody_is_inside_of_it():
    """A source with a state of its own would lose an example otherwise."""
    held = Held()
    one = tdi.OneDeviceStrategy("cpu")
    node = DistributedNode(one.distribute_dataset(held, global_batch_size=1))
    node._run.reading = Announced(held)
    steps = iter(nodes.Loader(nodes.Prefetcher(node, 2)))
    held.released.clear()
    assert 0 == next(steps)
    assert held.entered.wait(60)
    node.reset()
    assert next(node) in (0, 1)  # nobody has stopped the other thread, which may come first again
    assert [False, False] == held.starts


def test_padded_and_several_replicas():
    """A node hands steps on as they are."""
    mirrored = tdi.MirroredStrategy(["cpu", "cpu"])
    dataset = mirrored.distribute_dataset(
        torch.arange(3), global_batch_size=2, options=options(partial_batch="pad")
    )
    last = list(nodes.Loader(nodes.Prefetcher(DistributedNode(dataset), 2)))[-1]
    batch, mask = last
    assert [[2], [0]] == [part.tolist() for part in batch]
    assert [[True], [False]] == [part.tolist() for part in mask]
