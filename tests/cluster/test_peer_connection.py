"""Messages over one connection: tags, sizes, both ends sending, and how a wait ends."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.cluster.channels import peer_connection
from torch_distinput.cluster.channels.peer_connection import _HEADER, PeerConnection
from torch_distinput.communicator import ChannelBrokenError

LIMIT = 30.0
LARGE = 1 << 24
"""More than a socket takes at once, on both ways."""


def open_sockets():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


@pytest.fixture
def ends():
    connected = [PeerConnection(end) for end in open_sockets()]
    yield connected
    for end in connected:
        end.close()


def in_threads(*works):
    """What each call returns or raises; all run at a time."""
    found = [None] * len(works)

    def run(number):
        try:
            found[number] = works[number]()
        except ChannelBrokenError as error:
            found[number] = error

    threads = [
        threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return found


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200_000)), max_size=9))
def test_messages_of_a_tag_arrive_in_order_whoever_asks_first(messages):
    one, other = (PeerConnection(end) for end in open_sockets())
    for tag, content in messages:
        one.send(tag, content)
    for tag in (2, 0, 1):
        for sent in [content for its, content in messages if its == tag]:
            assert sent == other.receive(tag)
    one.close()
    other.close()


def test_both_ends_may_be_sending_more_than_a_socket_holds(ends):
    one, other = ends
    contents = [bytes([number]) * LARGE for number in range(2)]

    def exchange(end, mine):
        end.send(5, mine)
        end.send(5, b"behind it")
        return end.receive(5), end.receive(5)

    got = in_threads(lambda: exchange(one, contents[0]), lambda: exchange(other, contents[1]))
    assert [(contents[1], b"behind it"), (contents[0], b"behind it")] == got


def test_each_thread_gets_its_own_though_one_reads_for_all(ends):
    """Each waits for a tag, in two rounds; they are sent in another order."""
    one, other = ends
    tags = range(6)

    def receive(tag):
        return other.receive(tag), other.receive(tag)

    def send():
        for turn in b"ab":
            for tag in reversed(tags):
                one.send(tag, bytes([turn, tag]))

    *got, _ = in_threads(*(lambda tag=tag: receive(tag) for tag in tags), send)
    assert [(bytes([*b"a", tag]), bytes([*b"b", tag])) for tag in tags] == got


@pytest.mark.parametrize("who", [0, 1])
def test_all_who_wait_hear_that_it_was_shut_and_who_comes_later_too(ends, who):
    waiting = ends[1]

    def shut():
        while not waiting._is_read:
            os.sched_yield()
        ends[who].shut()

    *broken, _ = in_threads(*(lambda tag=tag: waiting.receive(tag) for tag in range(3)), shut)
    assert [ChannelBrokenError] * 3 == list(map(type, broken))
    with pytest.raises(ChannelBrokenError):
        waiting.receive(0)


def test_what_was_sent_before_the_end_is_received(ends):
    ends[0].send(1, b"last")
    ends[0].close()
    assert b"last" == ends[1].receive(1)
    with pytest.raises(ChannelBrokenError, match="closed"):
        ends[1].receive(1)


@pytest.mark.parametrize("length", [15, 16, 17, 40, 115])
def test_a_message_that_is_cut_off_is_none_for_whoever_asks(ends, length):
    """Its rest is not taken for another one."""
    message = _HEADER.pack(0, 100) + _HEADER.pack(1, 2) * 7
    ends[0]._socket.send(message[:length])
    ends[0].close()
    for tag in (0, 1, 1, 0):
        with pytest.raises(ChannelBrokenError):
            ends[1].receive(tag)


def test_without_a_thread_for_the_rest_of_a_message_the_connection_ends(ends, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(peer_connection, "start_thread", fail)
    with pytest.raises(ChannelBrokenError, match="new thread"):
        ends[0].send(0, bytes(LARGE))
    for connection in ends:
        with pytest.raises(ChannelBrokenError):
            connection.receive(0)


def test_who_sends_to_one_that_is_gone_hears_of_it(ends):
    """Also if the rest of a message was with another thread."""
    ends[1].close()
    with pytest.raises(ChannelBrokenError):
        while True:  # the first may still fit
            ends[0].send(0, bytes(LARGE))


def hold(go_on):
    go_on.wait(10 * LIMIT)  # the test is over by then


def test_a_forked_child_does_not_keep_the_connection_open():
    """The others must hear that this process has ended, though its children go on."""
    one, other = (PeerConnection(end) for end in open_sockets())
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    child = context.Process(target=hold, args=(go_on,))
    child.start()
    one._socket.close()  # as the end of a process does
    try:
        (broken,) = in_threads(lambda: other.receive(0))
    finally:
        go_on.set()
    assert isinstance(broken, ChannelBrokenError)
    child.join(LIMIT)
    assert not child.exitcode
    other.close()


def test_a_connection_that_nobody_holds_is_closed():
    one, other = (PeerConnection(end) for end in open_sockets())
    del one
    with pytest.raises(ChannelBrokenError, match="closed"):
        other.receive(0)
    other.close()
