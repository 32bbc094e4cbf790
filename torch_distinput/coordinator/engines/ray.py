"""Starts the coordinator's processes as actors of Ray, on one machine or on many.

    thread  writes                                   reads     guarded by
    any     ``_objects``, the state's ``is_closed``  the same  ``_lock``

Ray starts an actor again by itself, and repeats no call: what is retried is the coordinator's
choice.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast, final

from torch_distinput import threads
from torch_distinput.coordinator.engines import pickling
from torch_distinput.coordinator.engines.engine import RemoteObject
from torch_distinput.coordinator.engines.ray_actor import HostedObject
from torch_distinput.coordinator.engines.ray_object import RayObject, RayState
from torch_distinput.errors import ConfigurationError, UsageError

_CONNECT_SECONDS = 5.0
_OPTIONS = {"num_cpus": 0}


@final
class RayEngine:
    """Runs each object in an actor of Ray; needs ``pip install 'torch_distinput[ray]'``.

    Uses the Ray that is initialised in this process, else connects to a cluster, else starts a Ray
    on this machine; only what it has started or connected to ends with it. An actor computes with
    one thread unless ``num_cpus`` or ``OMP_NUM_THREADS`` say more.

    Args:
        address: of a cluster, as for ``ray.init``: "host:port" or "auto". Default: that of the
            environment's ``RAY_ADDRESS``, else a Ray of its own.
        actor_options: for ``ray.remote(...).options``, such as ``{"num_cpus": 4}`` or
            ``{"runtime_env": ...}``. Default: actors that need no CPU of their own.
        timeout: seconds that an actor which is started again may take until it answers.

    Raises:
        ImportError: Ray is not installed.
        ConfigurationError: there is no cluster at the address, or this process uses another one.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        actor_options: Mapping[str, Any] | None = None,
        timeout: float = 120.0,
    ) -> None:
        self._ray = _imported_ray()
        self._options = {**_OPTIONS, **(actor_options or {}), "max_task_retries": 0}
        self._timeout = timeout
        self._state = RayState()
        self._objects: dict[RemoteObject, tuple[bytes, bool]] = {}
        self._lock = threads.new_lock()
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            _connect(self._ray, address)
        else:
            _require_same(self._ray, address)

    def start(
        self, name: str, make: Callable[[], Any], *, restarts: bool, num_calls: int = 16
    ) -> RemoteObject:
        """Start an actor with the object ``make()`` in it; see :meth:`Engine.start`."""
        pickled = pickling.dumps(make, f"the object of {name}")
        with self._lock:
            if self._state.is_closed:
                msg = f"{name} was to be started by an engine that is closed. Make a new engine."
                raise UsageError(msg)
            # Calls wait in threads of the actor: for the staleness of others, for their turn.
            options = {"max_concurrency": num_calls, **self._options}
            options["max_restarts"] = -1 if restarts else 0
            actor = self._ray.remote(HostedObject).options(**options).remote()
            remote = RayObject(name, actor, self._state)
            remote.make(pickled)
            self._objects[remote] = (pickled, restarts)
        return remote

    def restart(self, remote: RemoteObject) -> None:
        """Return when a new object answers; see :meth:`Engine.restart`."""
        pickled, restarts = self._objects.get(remote, (b"", False))
        if not restarts:
            msg = (
                "Expected an object that this engine has started with restarts=True, got "
                f"{remote.name}. Start it so, or start another one."
            )
            raise UsageError(msg)
        cast(RayObject, remote).make_anew(pickled, self._timeout)

    def close(self) -> None:
        """End all actors and wait until Ray says so, and end Ray where this engine has begun it."""
        with self._lock:
            was_closed, self._state.is_closed = self._state.is_closed, True
        if was_closed or not self._ray.is_initialized():
            return
        actors = [cast(RayObject, remote).actor for remote in self._objects]
        for actor in actors:
            self._ray.kill(actor)
        for actor in actors:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(actor.identify.remote(), timeout=_CONNECT_SECONDS)
        if self._owns_ray:
            self._ray.shutdown()


def _imported_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        msg = (
            "Expected Ray to be installed, since the engine is 'ray', got no module of that name. "
            "Run pip install 'torch_distinput[ray]', or use engine='local' on one machine."
        )
        raise ImportError(msg) from error


def _require_same(ray: Any, address: str | None) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in {None, "auto", connected}:
        msg = (
            f"Expected no Ray, or that at {address}, to be initialised in this process, got one at "
            f"{connected}. Leave the address out to use it, or call ray.shutdown() first."
        )
        raise ConfigurationError(msg)


def _connect(ray: Any, address: str | None) -> None:
    """Initialise Ray, which itself asks for two minutes whether a cluster is there, and exits."""
    host, _, port = (address or os.environ.get("RAY_ADDRESS", "")).rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address)
    except (OSError, RuntimeError) as error:  # not there, or it does not let us in
        last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        msg = (
            f"Expected a Ray cluster at {address or os.environ.get('RAY_ADDRESS')}, got no "
            f"connection ({last_line}). Start one by `ray start --head`, or give the address of "
            "its head node, or none for a Ray on this machine."
        )
        raise ConfigurationError(msg) from error
