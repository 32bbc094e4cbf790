"""The inside of a process of ``LocalEngine``: makes its object, answers calls until it is ended.

    thread                does                                     shares
    main                  makes the object, takes connections      ``Made``, which does not change
    answer-calls          runs the calls of one connection         the object, as its class allows
    end-with-coordinator  waits for the coordinator's end, and     nothing
                          ends this process with all it has started

Nothing here ends by itself: a process is killed, by its coordinator or by the last thread.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import multiprocessing
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError, connection
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import cast

from torch_distinput import threads
from torch_distinput.coordinator.engines import outcome, wire
from torch_distinput.coordinator.engines.message_memory import message_memory
from torch_distinput.coordinator.engines.outcome import Made
from torch_distinput.coordinator.engines.process_state import begin_process


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessStart:
    """What a process begins with.

    Attributes:
        make: a pickled function that makes its object.
        folder: the coordinator's, with its sockets.
        environment: the coordinator's, which may have changed since its fork server began.
        start_method: by which the coordinator starts loader processes.
    """

    make: bytes
    folder: str
    environment: Mapping[str, str]
    start_method: str | None


def run_process(listener: socket.socket, start: ProcessStart) -> None:
    """Make the object, and answer calls; until then they wait in the listener."""
    _settle(start)
    made = outcome.make_object(start.make)
    while True:
        peer, _ = listener.accept()
        calls = Connection(peer.detach())
        threads.start_thread(_answer_calls, calls, made, name="answer-calls", stop=calls.close)


def _settle(start: ProcessStart) -> None:
    """Arrange that this process can be ended with all that it starts, and says where it was."""
    os.setpgid(0, 0)
    # The coordinator gets the same one, and decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = functools.partial(_end_with_coordinator, start.folder)
    threads.start_thread(watch, name="end-with-coordinator", stop=lambda: None)
    faulthandler.enable()
    gc.freeze()  # what the fork server has loaded is not to be collected after every call
    os.environ.clear()
    os.environ.update(start.environment)
    multiprocessing.set_start_method(start.start_method, force=True)  # it has that of its own start
    begin_process()


def _end_with_coordinator(folder: str) -> None:
    """Wait until the coordinator is gone, by whatever end, and do what it cannot do any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signs = [parent.sentinel]
    # A process that the coordinator has forked holds the other end of that pipe, and may live on.
    with suppress(OSError):
        signs.append(os.pidfd_open(cast(int, parent.pid)))
    connection.wait(signs)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _answer_calls(calls: Connection, made: Made) -> None:
    key = multiprocessing.current_process().authkey
    # The caller may leave at any time: what it has asked for is then of no use to anybody.
    with calls, suppress(EOFError, ConnectionError, AuthenticationError):
        deliver_challenge(calls, key)
        answer_challenge(calls, key)
        while True:
            call = wire.receive(calls.fileno())
            reply = outcome.answer(made, call, message_memory().copy)
            del call  # its memory may be used again while this waits
            wire.send(calls.fileno(), reply)
            del reply
