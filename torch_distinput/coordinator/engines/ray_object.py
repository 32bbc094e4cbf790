"""A caller's end of an object in an actor of ``RayEngine``, in any process of the cluster.

    thread             writes                      reads  guarded by
    one that restarts  ``_made``, ``_identity``    any    each assignment is whole
    one that closes    ``is_closed`` of the state  any    each assignment is whole

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
from torch_distinput.coordinator.engines.ray_actor import to_frame_of, to_parts

_PAUSE_SECONDS = 0.05
"""Between two questions whether an actor is back."""


@dataclass(eq=False, slots=True)
class RayState:
    """What an engine and its objects share: after ``close``, a call would start another Ray."""

    is_closed: bool = False


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
        self._made: Any = None
        self._identity: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (RayObject, (self.name, self.actor))

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and wait for the result."""
        parts = to_parts(wire.to_frame((method, args)))
        reply = self._ask("answer", self._identity or self._first_identity(), *parts)
        if not reply:
            raise ProcessDiedError(f"{self.name}: its process died, and Ray has started another")
        return outcome.result_of(to_frame_of(reply))

    def make(self, pickled: bytes) -> None:
        """Have the object made in the process that there is, without waiting for it."""
        self._identity, self._made = None, self._submit("make", pickled)

    def make_anew(self, pickled: bytes, timeout: float) -> None:
        """Have it made in another process, and wait until it answers.

        Raises:
            ProcessDiedError: that process ended too, or did not answer in time.
            Exception: what ``make()`` raised.
        """
        deadline = time.monotonic() + timeout
        before = self._identity
        while (now := self._identify(deadline)) is None or before in {None, now}:
            if now is not None:  # nobody has ended it, or it is not known whether anybody has
                before = now
                self._ray.kill(self.actor, no_restart=False)
            time.sleep(_PAUSE_SECONDS)
        self.make(pickled)
        self._get(self._made, deadline)
        self.call("")

    @property
    def _ray(self) -> Any:
        return importlib.import_module("ray")

    def _first_identity(self) -> bytes | None:
        """Who has started an object calls that one, and no other; everybody else any."""
        if self._made is not None:
            self._identity = self._get(self._made)
        return self._identity

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

    def _ask(self, method: str, *args: Any) -> Any:
        return self._get(self._submit(method, *args))

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
        except errors.RayTaskError as error:
            raise error.cause from RemoteTraceback(error.traceback_str)
