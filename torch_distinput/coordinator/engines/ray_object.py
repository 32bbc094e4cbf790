"""A caller's end of an object in an actor of ``RayEngine``, in any process of the cluster.

    thread             writes                       reads  guarded by
    one that restarts  ``_process``                 any    one assignment: a call reads it once
    any                ``identity`` of a _Process,  any    each assignment is whole, and all write
                       when it is known                    the same
    one that closes    ``is_closed`` of the state   any    each assignment is whole

``ray`` is imported by whoever has started it.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any, final

from torch_distinput.coordinator.engines import outcome, wire
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.engines.outcome import RemoteTraceback
from torch_distinput.coordinator.engines.ray_actor import to_parts
from torch_distinput.coordinator.engines.wire import Frame

_PAUSE_SECONDS = 0.05
"""Between two questions whether an actor is back."""


@dataclass(eq=False, slots=True)
class RayState:
    """What an engine and its objects share: after ``close``, a call would start another Ray."""

    is_closed: bool = False


@final
@dataclass(eq=False, slots=True)
class _Process:
    """The process that has made the object.

    Attributes:
        made: what Ray said to the request to make it; None in processes that have not started it.
        identity: of the process; None until it is known, and where any process will do.
    """

    made: Any = None
    identity: bytes | None = None


@final
class RayObject:
    """An object in an actor of :class:`RayEngine`; see :class:`RemoteObject`.

    Attributes:
        name: who it is in messages, as in "worker 2".
        actor: Ray's handle.
    """

    def __init__(self, name: str, actor: Any, state: RayState | None = None) -> None:
        self.name = name
        self.actor = actor
        self._state = state or RayState()
        self._process = _Process()

    def __reduce__(self) -> tuple[Any, ...]:
        return (RayObject, (self.name, self.actor))

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and wait for the result."""
        process = self._process
        identity = process.identity or self._first_identity(process)
        parts = to_parts(wire.to_frame((method, args)))
        reply = self._get(self._submit("answer", identity, *parts))
        if not reply:
            raise ProcessDiedError(f"{self.name}: its process died, and Ray has started another")
        return outcome.result_of(self._to_frame(reply))

    def make(self, pickled: bytes) -> None:
        """Have the object made in the process that there is, without waiting for it."""
        self._process = _Process(made=self._submit("make", pickled))

    def make_anew(self, pickled: bytes, timeout: float) -> None:
        """Have it made in another process, and wait until it answers.

        Raises:
            ProcessDiedError: that process ended too, or did not answer in time.
            Exception: what ``make()`` raised.
        """
        deadline = time.monotonic() + timeout
        before = self._process.identity
        while (now := self._identify(deadline)) is None or before in {None, now}:
            if now is not None:  # nobody has ended it, or it is not known whether anybody has
                before = now
                self._ray.kill(self.actor, no_restart=False)
            time.sleep(_PAUSE_SECONDS)
        self.make(pickled)
        self._get(self._process.made, deadline)
        self.call("")

    @property
    def _ray(self) -> Any:
        return importlib.import_module("ray")

    def _first_identity(self, process: _Process) -> bytes | None:
        """Who has started an object calls that one, and no other; everybody else any."""
        if process.made is not None:
            process.identity = self._get(process.made)
        return process.identity

    def _to_frame(self, reply: bytes | list[Any]) -> Frame:
        """The frame of a reply, whose arrays may be behind a reference."""
        if isinstance(reply, bytes):
            return Frame(text=reply, arrays=())
        text, *arrays = reply
        if isinstance(arrays[0], self._ray.ObjectRef):
            arrays = self._get(arrays[0])
        return Frame(text=text, arrays=arrays)

    def _identify(self, deadline: float) -> bytes | None:
        """Which process of the actor answers; none while Ray starts one."""
        ref = self._submit("identify")
        try:
            identity: bytes = self._get(ref, deadline)
        except ProcessDiedError as error:
            if isinstance(error.__cause__, self._ray.exceptions.ActorUnavailableError):
                return None
            raise
        return identity

    def _submit(self, method: str, *args: Any) -> Any:
        if self._state.is_closed:
            raise ProcessDiedError(f"{self.name}: ended by close()")
        return getattr(self.actor, method).remote(*args)

    def _get(self, ref: Any, deadline: float | None = None) -> Any:
        errors = self._ray.exceptions
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.GetTimeoutError:
            raise ProcessDiedError(f"{self.name}: no answer within {seconds:g} s") from None
        except errors.RayActorError as error:
            said = " ".join(line for line in str(error).splitlines() if not line.startswith("\t"))
            raise ProcessDiedError(f"{self.name}: {said}") from error
        except errors.ObjectLostError as error:  # its process has died, and had sent a reference
            raise ProcessDiedError(f"{self.name}: what it sent is lost") from error
        except errors.RayTaskError as error:
            raise error.cause from RemoteTraceback(error.traceback_str)
