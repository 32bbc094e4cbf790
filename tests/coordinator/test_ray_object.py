"""A caller's end of an actor: orders of calls that real actors take only now and then."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from tests.coordinator.waiting import SECONDS
from torch_distinput.coordinator.engines import wire
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.engines.ray_object import RayObject


class ActorError(Exception):
    """For all that Ray has."""


class PretendedActor:
    """Answers with the identity of its process, of which there may be several in a row."""

    def __init__(self):
        self.identity = b"first"
        self.make = SimpleNamespace(remote=lambda _: lambda: self.identity)
        self.answer = SimpleNamespace(remote=lambda *args: lambda: self._answer(*args))
        self.lost_reply = False

    def _answer(self, identity, text, *arrays):
        if identity not in {None, self.identity}:
            return b""
        if self.lost_reply:
            return [b"", Reference()]
        return bytes(wire.to_frame((self.identity,)).text)


class Reference:
    """To what its process took with it."""

    def __call__(self):
        raise LostError


class LostError(Exception):
    pass


@pytest.fixture
def ray(monkeypatch):
    """References are functions here, and to get one is to call it."""
    errors = dict.fromkeys(["GetTimeoutError", "RayActorError", "RayTaskError"], ActorError)
    exceptions = SimpleNamespace(**errors, ObjectLostError=LostError)
    made = SimpleNamespace(
        get=lambda reference, timeout: reference(), exceptions=exceptions, ObjectRef=Reference
    )
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def test_a_call_that_began_before_a_restart_leaves_those_after_it_alone(ray, pool):
    """It learns late which process it was for: that is not the one that is there now."""
    actor = PretendedActor()
    remote = RayObject("worker 0", actor)
    remote.make(b"")
    get, asks, goes_on = ray.get, threading.Event(), threading.Event()

    def get_slowly(reference, timeout):
        identity = get(reference, timeout)
        if not asks.is_set():
            asks.set()
            assert goes_on.wait(SECONDS)
        return identity

    ray.get = get_slowly
    early = pool.submit(remote.call, "pid")
    assert asks.wait(SECONDS)
    actor.identity = b"second"
    remote.make(b"")
    goes_on.set()
    with pytest.raises(ProcessDiedError, match="worker 0: its process died"):
        early.result(SECONDS)
    assert b"second" == remote.call("pid")


def test_what_a_process_that_died_had_sent_is_its_death(ray):
    actor = PretendedActor()
    remote = RayObject("server 0", actor)
    remote.make(b"")
    actor.lost_reply = True
    with pytest.raises(ProcessDiedError, match="server 0: what it sent is lost"):
        remote.call("pull")
