"""Parameter servers and workers in this process: what travels between them is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from torch_distinput.coordinator.engines.engine import Lent, ProcessDiedError
from torch_distinput.coordinator.parameters import identity
from torch_distinput.coordinator.parameters import parameters as parameters_module
from torch_distinput.coordinator.parameters.create import create_parameters
from torch_distinput.coordinator.parameters.identity import Caller
from torch_distinput.coordinator.parameters.parameters import Parameters
from torch_distinput.coordinator.parameters.server import ParameterServer

_played: ContextVar[Caller | None] = ContextVar("played", default=None)
_objects: dict[int, Any] = {}
"""By number: a pickled remote object finds its own again, as a pickled address would."""


class InProcess:
    """A remote object here: arguments and results are pickled, and it can be declared dead."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._number = number

    @classmethod
    def of(cls, name: str, made: Any) -> InProcess:
        _objects[len(_objects)] = made
        return cls(name, len(_objects) - 1)

    @property
    def object(self) -> Any:
        return _objects[self._number]

    def kill(self) -> None:
        _objects[self._number] = None

    def call(self, method: str, *args: Any) -> Any:
        if self.object is None:
            raise ProcessDiedError(f"{self.name}: killed by signal 9")
        result = getattr(self.object, method)(*copied(args))
        lent = result.opened if isinstance(result, Lent) else nullcontext(result)
        with lent as value:
            if self.object is None:
                raise ProcessDiedError(f"{self.name}: killed by signal 9")
            return copied(value)


def copied(value: Any) -> Any:
    """What pickle makes of it; arrays can be written to, as buffers out of band are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(text, buffers=[bytearray(buffer.raw()) for buffer in buffers])


def start_servers(num_servers: int) -> tuple[InProcess, ...]:
    return tuple(InProcess.of(f"server {one}", ParameterServer()) for one in range(num_servers))


def forget_all() -> None:
    """Let go of all servers and clients, and of their threads."""
    parameters_module._clients.clear()
    _objects.clear()


@contextmanager
def as_caller(caller: Caller) -> Iterator[None]:
    """Be a worker, in this thread."""
    token = _played.set(caller)
    try:
        yield
    finally:
        _played.reset(token)


_find_caller = identity.current_caller
identity.current_caller = lambda: _played.get() or _find_caller()
"""For the whole process: several threads play workers at a time."""


class PlayedWorker:
    """A worker of its own: whatever it calls is called as from its process."""

    def __init__(self, parameters: Parameters, name: str, nonce: str = "first") -> None:
        self.caller = Caller(worker=name, nonce=nonce)
        self.parameters: Parameters = pickle.loads(pickle.dumps(parameters))

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with as_caller(self.caller):
                return getattr(self.parameters, method)(*args, **kwargs)

        return call


def start(
    num_servers: int, module_fn: Any, optimizer_fn: Any, **kwargs: Any
) -> tuple[Parameters, Sequence[InProcess]]:
    servers = start_servers(num_servers)
    return create_parameters(servers, module_fn, optimizer_fn, **kwargs), servers
