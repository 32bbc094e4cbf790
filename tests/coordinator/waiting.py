"""Functions that tests schedule on pretended workers, and a look at who waits for the queue."""

from __future__ import annotations

import functools
import threading

import torch

import torch_distinput as tdi
from tests.coordinator.simulated_engine import die

SECONDS = 100
"""A watchdog."""


def add(a, b=0):
    return a + b


def fail(text):
    raise ValueError(text)


def pass_through(gate, value=None):
    gate.wait()
    return value


def fail_behind(gate, text):
    gate.wait()
    raise ValueError(text)


def die_behind(gate):
    gate.wait()
    die()


def make_large():
    return torch.zeros(100_000)


def lose_server():
    raise tdi.ServerLostError("server 1 died: restore from a checkpoint")


def hold_once(coordinator):
    with coordinator._queue.hold():
        pass


class Waits:
    """Counts who has begun to wait for a change of the queue, in the thread that is watched."""

    def __init__(self, coordinator) -> None:
        self.queue = coordinator._queue
        self.thread = None
        self.begun = threading.Semaphore(0)
        for condition in (self.queue._changed, self.queue._has_work):
            condition.wait = functools.partial(self.note, condition.wait)
        self.has_timeout = False

    def note(self, wait, timeout=None) -> None:
        if threading.current_thread() is self.thread:
            self.begun.release()
        # Without a timeout: whoever waits is woken by what it waits for.
        wait(timeout if self.has_timeout else None)

    def watch(self, thread) -> None:
        self.thread = thread

    def expect(self) -> None:
        """Return when the thread waits: then the lock of the queue is free."""
        assert self.begun.acquire(timeout=SECONDS)
        with self.queue._lock:
            pass


def in_thread(pool, waits, function):
    """Call a function in another thread, and return when it waits for the queue."""
    ready = threading.Event()

    def call():
        waits.watch(threading.current_thread())
        ready.set()
        return function()

    result = pool.submit(call)
    waits.expect()
    return result
