"""What the thread that pulls steps and the one that closes may do to each other."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from torch_distinput.cluster.step_broadcast import Kind, StepBroadcast
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.engine.broadcast_feed import SendingFeed
from torch_distinput.engine.feeds import Delivery

LIMIT = 5.0
NOTHING = torch.empty(0, dtype=torch.uint8)


class Channel:
    """Partners take what is sent when they are told to."""

    def __init__(self):
        self.is_taken = False
        self.num_sent = 0
        self.during_wait = lambda: None

    def start_broadcast(self, content):
        self.num_sent += 1
        return SimpleNamespace(wait=self._wait)

    def _wait(self, seconds):
        during_wait, self.during_wait = self.during_wait, lambda: None
        during_wait()
        return self.is_taken


@pytest.fixture
def channel():
    return Channel()


@pytest.fixture
def broadcast(channel):
    found = StepBroadcast(partners=None, heartbeat=None)
    found._channel = channel
    found.begin(0, timeout=1.0)
    return found


def test_a_second_message_is_refused_until_the_first_is_taken(broadcast, channel):
    broadcast.post(0, Kind.STEP, NOTHING)
    with pytest.raises(ChannelBrokenError, match="another thread has sent a message"):
        broadcast.post(0, Kind.CLOSED, NOTHING)
    channel.is_taken = True
    assert broadcast.is_taken(0, 0.0)
    broadcast.post(0, Kind.CLOSED, NOTHING)
    assert 2 == channel.num_sent


def test_a_collection_of_garbage_may_close_it_in_its_own_thread(broadcast, channel):
    """Inside of a wait, say: it neither waits for itself nor sends in the middle of a message."""
    feed = SendingFeed(Feed(), broadcast, 0, monitor=None, timeout=1.0)
    feed._line.post(Kind.STEP)
    channel.is_taken = True
    channel.during_wait = feed.close
    thread = threading.Thread(target=feed._line.settle, args=(1,), daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert 1 == channel.num_sent
    broadcast.begin(1, timeout=1.0)
    broadcast.post(1, Kind.STEP, NOTHING)


class Feed:
    """One step without examples."""

    origin = None

    def next(self, index):
        return Delivery(None, 1, None)

    def spec(self):
        return None

    def close(self):
        pass


@pytest.mark.parametrize("first", [Kind.STEP, Kind.CLOSED])
def test_closed_while_a_step_is_sent(first):
    """Neither the thread that reads ahead nor the one that closes gets an error."""
    sent = []

    def post(iteration, kind, content):
        if kind is Kind.STEP and first is Kind.CLOSED:
            sending.close()  # as the other thread does at this very moment
        if sent:
            raise ChannelBrokenError("another thread has sent a message")
        sent.append(kind)

    broadcast = SimpleNamespace(post=post, is_taken=lambda iteration, seconds: True)
    sending = SendingFeed(Feed(), broadcast, 0, monitor=None, timeout=1.0)
    sending.next(0)
    sending.close()
    assert [first] == sent
