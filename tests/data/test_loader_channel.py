"""Messages between the main process and a loader process."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.loader.channel import ChannelClosed, ProcessChannel

LARGE = 3 << 20
"""Bytes that no socket holds."""


def pair():
    """Both ends."""
    first, second = Pipe()
    return ProcessChannel(first), ProcessChannel(second)


@given(st.lists(st.integers(0, 70_000), max_size=5))
def test_messages_arrive_whole_and_in_order(sizes):
    """However many are on their way, and of whatever length."""
    here, there = pair()
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    sender = threading.Thread(target=lambda: [here.send(message) for message in messages])
    sender.start()
    assert messages == [there.receive() for _ in messages]
    sender.join()


def test_both_ends_may_send_what_no_socket_holds():
    """An end that cannot write on takes in what the other one writes."""
    here, there = pair()
    got = []

    def talk(channel, letter):
        channel.send(letter * LARGE)
        channel.send(letter)
        got.extend([channel.receive(), channel.receive()])

    threads = [
        threading.Thread(target=talk, args=pair, daemon=True)
        for pair in ((here, b"a"), (there, b"b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted([b"a", b"b", b"a" * LARGE, b"b" * LARGE]) == sorted(got)


def test_what_was_sent_before_the_end_arrives():
    """Then there is nothing more."""
    here, there = pair()
    here.send(b"last")
    here.close()
    assert b"last" == there.receive()
    with pytest.raises(ChannelClosed):
        there.receive()


def test_nobody_reads():
    """Sending says so, also to a process that has ended with messages unread."""
    here, there = pair()
    here.send(b"unread")
    there.close()
    with pytest.raises(ChannelClosed):
        for _ in range(3):
            here.send(b"x" * LARGE)


def test_half_a_message_is_none():
    """Its sender was killed while it wrote."""
    first, second = Pipe()
    there = ProcessChannel(second)
    os.write(first.fileno(), b"\0\0\0\0\0\0\0\5abc")
    first.close()
    with pytest.raises(ChannelClosed):
        there.receive()


def test_a_time_limit():
    """It is an error, unless somebody knows whether to wait on."""
    here, there = pair()
    with pytest.raises(TimeoutError):
        there.receive(0.001)
    answers = iter([False, True])
    with pytest.raises(ChannelClosed):
        there.receive(0.001, lambda: next(answers))
    here.send(b"late")
    assert b"late" == there.receive(0.001)
