"""Several servers called at a time."""

from __future__ import annotations

import os
import signal

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
