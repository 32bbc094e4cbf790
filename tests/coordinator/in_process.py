"""Parameter servers and workers in this process: what travels between them is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch_distinput.coordinator.engines.engine import Lent, ProcessDiedError
from torch_distinput.coordinator.parameters import handle
from torch_distinput.coordinator.parameters.create import create_parameters
from torch_distinput.coordinator.parameters.handle import Parameters
from torch_distinput.coordinator.parameters.identity import Caller, as_caller
from torch_distinput.coordinator.parameters.server import ParameterServer

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
    handle._clients.clear()
    _objects.clear()


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
