"""Workers connect before the first vote: who does not come is named, with what it does."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset

from torch_distinput.cluster.agreement.agreement_channel import AgreementChannel
from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.errors import PeerTimeoutError
from torch_distinput.testing import simulate


class Alone:
    """A communicator of two workers of whom one does not come."""

    rank, size = 0, 2

    def __init__(self, late) -> None:
        self.late = late

    def open_channel(self, *, timeout, gone):
        msg = "Expected all 2 workers at a topic"
        raise PeerTimeoutError(msg, self.late)


def start(late):
    """The error of an agreement that cannot begin, and what this worker is seen doing."""
    communicator = Alone(late)
    heartbeat = Heartbeat(communicator)
    channel = AgreementChannel(communicator, heartbeat)
    with pytest.raises(PeerTimeoutError) as caught:
        channel.start(iter(()), shared=False, introduce=str, counter=None, timeout=5.0)
    return caught.value, heartbeat.outside.words


def test_who_does_not_come_is_named_with_what_it_does():
    error, doing = start((1,))
    assert "begin voting within 5 s, but worker 1 did not come (worker 1: no sign" in str(error)
    assert (1,) == error.workers
    assert "waiting for the others to begin voting" == doing


def test_a_store_that_does_not_answer_is_no_worker():
    error, _ = start(())
    assert "Expected all 2 workers at a topic" == str(error)


def test_once_all_have_come_nothing_is_waited_for():
    def look(strategy):
        dataset = strategy.distribute_dataset(Stream(), global_batch_size=4)
        iter(dataset)
        return strategy._session.heartbeat.outside.words

    assert ["before the first step of iteration 0"] * 2 == simulate(look, num_workers=2)


class Stream(IterableDataset):
    """Of a length that nobody knows, so ranks vote."""

    def __iter__(self):
        return iter(torch.arange(20).split(1))
