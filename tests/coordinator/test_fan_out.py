"""Several servers called at a time."""

from __future__ import annotations

import os
import signal
from queue import SimpleQueue

from torch_distinput.coordinator.parameters import fan_out as module
from torch_distinput.coordinator.parameters.fan_out import FanOut

SECONDS = 100
"""A watchdog of the child."""


class Echo:
    """Stands for a remote object."""

    name = "echo"

    def call(self, method, *args):
        return (method, *args)


def test_a_forked_child_calls_from_threads_of_its_own():
    fan_out = FanOut([Echo(), Echo()])
    requests = [(server, "pull", (server,)) for server in range(2)]
    expected = [("pull", 0), ("pull", 1)]
    assert expected == fan_out.call_all(requests)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os._exit(expected != fan_out.call_all(requests))
    _, status = os.waitpid(child, 0)
    assert 0 == status


def test_threads_that_come_at_once_share_the_one_of_a_server(monkeypatch):
    """Another thread makes its queue between the look and the making of this one."""
    started = []
    monkeypatch.setattr(module.threads, "start_thread", lambda *args, **_: started.append(args))
    fan_out, others = FanOut([Echo()]), []

    def new_queue():
        if not others:
            others.append(None)
            others.append(fan_out._queue(0))
        return SimpleQueue()

    monkeypatch.setattr(module, "SimpleQueue", new_queue)
    assert fan_out._queue(0) is others[1]
    assert 1 == len(started)
