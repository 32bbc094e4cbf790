"""Nodes and loaders of torchdata as sources: they are driven by torchdata's own protocol."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata import nodes

import torch_distinput as tdi
from tests.distribute.stateful_sources import COUNT, Keyed, Shuffled, mapped, order_of
from tests.distribute.test_source_states import check_every_stop, played


class Counted(nodes.BaseNode):
    """A node as torchdata's documentation describes one: it is never asked for more."""

    def __init__(self):
        super().__init__()
        self.epoch = -1

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.epoch, self.position = initial_state or (self.epoch + 1, 0)

    def next(self):
        if self.position == COUNT:
            raise StopIteration
        self.position += 1
        return order_of(self.epoch)[self.position - 1]

    def get_state(self):
        return [self.epoch, self.position]


def sampled():
    return nodes.SamplerWrapper(Keyed())


def weighted(stop_criteria):
    parts = {name: sampled() for name in "ab"}
    return nodes.MultiNodeWeightedSampler(
        parts, {"a": 1.0, "b": 3.0}, rank=0, world_size=1, stop_criteria=stop_criteria
    )


NODES = {
    "a node of the user's": Counted,
    "Loader over threads": lambda: nodes.Loader(mapped(Counted)),
    "Loader that ends": lambda: nodes.Loader(mapped(sampled), restart_on_stop_iteration=False),
    "Prefetcher, a snapshot in 3": lambda: nodes.Prefetcher(Counted(), 4, snapshot_frequency=3),
    "Prefetcher, no snapshot": lambda: nodes.Prefetcher(sampled(), 4, snapshot_frequency=0),
    "ParallelMapper of batches": lambda: nodes.ParallelMapper(
        sampled(), int, num_workers=2, prebatch=3
    ),
    "Unbatcher": lambda: nodes.Unbatcher(nodes.Batcher(Counted(), 3, drop_last=False)),
    "weighted, again and again": lambda: nodes.Prefetcher(
        weighted("CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"), 3
    ),
    "weighted, the first to end": lambda: nodes.Loader(weighted("FIRST_DATASET_EXHAUSTED")),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_goes_on_from_every_stop(name):
    """Also where what is read ahead of it is in threads of its own."""
    check_every_stop(partial(played, NODES[name], 1), every=3)


@pytest.mark.slow
def test_a_node_that_two_workers_read_ahead_of_use_goes_on_from_every_stop():
    """There it is driven by a thread of ours, beside those of its own."""
    check_every_stop(partial(played, lambda: nodes.Loader(mapped(Counted)), 2), every=3)


@pytest.mark.slow
def test_a_loader_of_batches_goes_on_from_every_stop():
    """Its elements are the global batches."""

    def loader():
        batches = nodes.Batcher(Counted(), 4, drop_last=False)
        return nodes.Loader(nodes.ParallelMapper(batches, torch.tensor, num_workers=2))

    check_every_stop(partial(played, loader, 1, batch_size=None))


def overtaking():
    return nodes.ParallelMapper(nodes.IterableWrapper(range(9)), int, num_workers=2, in_order=False)


@pytest.mark.parametrize("wrap", [lambda node: node, nodes.Loader])
@pytest.mark.parametrize("size", [2, None])
def test_nodes_whose_examples_overtake_each_other_are_refused(wrap, size):
    """A position in their order says nothing: after a restart some examples would be lost."""
    one = tdi.OneDeviceStrategy("cpu")
    with pytest.raises(tdi.ConfigurationError, match="ParallelMapper of 2 workers and in_order=Fa"):
        one.distribute_dataset(wrap(overtaking()), global_batch_size=size)


def test_one_thread_keeps_the_order():
    """There in_order=False changes nothing."""
    node = nodes.ParallelMapper(nodes.IterableWrapper(range(4)), int, num_workers=1, in_order=False)
    (step,) = tdi.OneDeviceStrategy("cpu").distribute_dataset(node, global_batch_size=4)
    assert [0, 1, 2, 3] == step.tolist()


@pytest.mark.parametrize(
    "make", [overtaking, lambda: DataLoader(Shuffled(), num_workers=2, in_order=False)]
)
def test_batches_of_a_function_that_overtake_each_other_are_warned_of(make, caplog):
    """They may be played: the order matters for states only."""
    with caplog.at_level(logging.WARNING):
        tdi.OneDeviceStrategy("cpu").distribute_datasets_from_function(lambda _: make())
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"batches of a {type(make()).__name__} with in_order=False" in said


LONG_COUNT = 100  # more than nodes read ahead


class Noting(nodes.BaseNode):
    """Counts, and notes at each reset how many threads of nodes behind it are still reading."""

    def __init__(self):
        super().__init__()
        self.at, self.num_reading = 0, []

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.num_reading.append(sum(thread.is_alive() for thread in self.readers()))
        self.at = 0 if initial_state is None else initial_state["at"]

    def readers(self):
        """Threads of torchdata that read from this node."""
        threads = [thread for thread in threading.enumerate() if hasattr(thread, "_args")]
        return [thread for thread in threads if thread._args[:1] == (self,)]

    def next(self):
        if self.at == LONG_COUNT:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def get_state(self):
        return {"at": self.at}


@pytest.mark.parametrize("goes_on", [False, True])
def test_threads_of_nodes_have_ended_when_an_epoch_begins(goes_on):
    """Of an epoch that was left they would take examples of the next one."""
    node, one = Noting(), tdi.OneDeviceStrategy("cpu")
    source = nodes.Prefetcher(nodes.ParallelMapper(node, int, num_workers=2), 2)
    dataset = one.distribute_dataset(source, global_batch_size=4)
    for _ in range(3):
        iterator = iter(dataset)
        next(iterator)
        assert node.readers()
        if goes_on:
            dataset.load_state_dict(dataset.state_dict())
    assert list(range(12 * goes_on, LONG_COUNT)) == [x for step in dataset for x in step.tolist()]
    assert {0} == set(node.num_reading)
