"""The object in a server's process: shards of several ``Parameters``, pushes, pulls.

A push reaches its servers in two steps, so that it is applied on all of them or on none, also if
the worker dies in between:

    worker ---- stage(gradients) ----> server 1     kept under a token, not applied
           ---- stage(gradients) ----> server 0
           ---- commit(token) -------> server 0 --- apply(token) ---> server 1
                                       applies its own at the same time

Server 0 commits one push at a time: all servers apply the same pushes in the same order.

    thread           writes                          reads           guarded by
    each call        values, optimizer, the version  the same        lock of its _Served
                     staged gradients                the same        one operation on a dict
                     whether it is broken            the same        the turn of the gate
    create, drop     _served, _chiefs                these           one operation on a dict
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from torch_distinput import threads
from torch_distinput.coordinator.engines.engine import Lent, RemoteObject
from torch_distinput.coordinator.parameters.description import ModuleRecipe
from torch_distinput.coordinator.parameters.fan_out import FanOut, Request
from torch_distinput.coordinator.parameters.gate import Gate, Gates, ParameterStats
from torch_distinput.coordinator.parameters.held import HeldParameters
from torch_distinput.coordinator.parameters.identity import Caller, token_prefix
from torch_distinput.coordinator.parameters.payload import (
    Packed,
    pack_tensors,
    read_tensors,
    unpack_tensors,
)
from torch_distinput.errors import ServerLostError, UsageError, again, let_go

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """What a worker tells server 0 of a push.

    Attributes:
        token: names it; unique.
        caller: whose it is.
        pulled: the version at the pull.
        staged: the servers that were sent gradients of it.
    """

    token: str
    caller: Caller
    pulled: int
    staged: tuple[int, ...]


@dataclass(kw_only=True, slots=True)
class _Served:
    """One ``Parameters`` on this server; gradients and buffers are staged under tokens."""

    held: HeldParameters
    lock: Any = field(default_factory=threads.new_lock)
    staged: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def lend(self, of: Callable[[HeldParameters], T]) -> Iterator[T]:
        """What is asked of the shards, which nobody changes inside."""
        with self.lock:
            yield of(self.held)


@dataclass(kw_only=True, slots=True)
class _Chief:
    """What server 0 has besides."""

    recipe: ModuleRecipe
    gate: Gate
    fan_out: FanOut
    peers: tuple[int, ...]
    broken: Exception | None = None

    def check(self) -> None:
        if isinstance(self.broken, ServerLostError):
            raise again(self.broken)
        if self.broken is not None:
            msg = (
                "Expected every push, and every state, to be applied on all servers, but one ended "
                f"with {type(self.broken).__name__}: {self.broken}. The parameters are no longer "
                "those of a whole number of steps: restore from a checkpoint (load_state_dict)."
            )
            raise UsageError(msg)


@final
class ParameterServer:
    """Holds shards of parameters, and applies what is pushed."""

    def __init__(self) -> None:
        self._served: dict[str, _Served] = {}
        self._chiefs: dict[str, _Chief] = {}
        self._gates = Gates()

    def create(
        self,
        key: str,
        packed: Packed,
        optimizer_fn: bytes,
        recipe: ModuleRecipe | None = None,
        servers: Sequence[RemoteObject] = (),
    ) -> None:
        """Hold the shards of a :class:`ServerPart`; with a recipe, be server 0 of these servers."""
        held = HeldParameters(read_tensors(packed), pickle.loads(optimizer_fn))  # noqa: S301 - our coordinator's
        self._served[key] = _Served(held=held)
        if recipe is not None:
            self._chiefs[key] = _Chief(
                recipe=recipe,
                gate=Gate(recipe.max_staleness, self._gates),
                fan_out=FanOut(servers),
                peers=tuple(range(1, len(servers))),
            )

    def register(self, key: str, caller: Caller) -> ModuleRecipe:
        """A process begins to use the parameters: return how to make the module."""
        chief = self._chief(key)
        if caller.worker is not None:
            self.release(key, caller.worker)
        chief.gate.register(caller)
        return chief.recipe

    def pull(
        self, key: str, seen: int, whole: tuple[int, ...], caller: Caller | None = None
    ) -> Lent | tuple[int, Packed]:
        """Lend a version and the :class:`Changes` after ``seen``, with all of the shards ``whole``.

        With a caller, wait first until it may pull; the version is that before. Where only some
        rows have changed, which are copies, they are the caller's: nobody copies them once more.
        """
        version = -1
        if caller is not None:
            chief = self._chief(key)
            version = chief.gate.admit(caller)
            chief.check()
        served = self._find(key)
        with served.lock:
            rows = served.held.copied_changes(seen, whole)
        if rows is not None:
            return version, pack_tensors(rows)
        changes = served.lend(lambda held: (version, pack_tensors(held.changes(seen, whole))))
        return Lent(opened=changes)

    def stage(self, key: str, token: str, packed: Packed) -> None:
        """Keep gradients and buffers until they are applied."""
        served = self._find(key)
        take = read_tensors if served.held.only_reads_gradients else unpack_tensors
        served.staged[token] = take(packed)

    def commit(self, key: str, push: Push, packed: Packed | None = None) -> None:
        """Apply a push on all servers, when its turn has come."""
        chief = self._chief(key)
        if packed is not None:
            self.stage(key, push.token, packed)
        try:
            with chief.gate.push(push.caller, push.pulled):
                chief.check()
                self._apply_all(key, push)
        except BaseException:
            with suppress(ServerLostError):
                self._discard_all(key, push.token)
            raise

    def apply(self, key: str, token: str, is_staged: bool) -> None:
        """Apply what was staged under a token; only server 0 says so."""
        served = self._find(key)
        gradients, buffers = served.staged.pop(token) if is_staged else ({}, {})
        with served.lock:
            served.held.apply(gradients, buffers)

    def discard(self, key: str, prefix: str) -> None:
        """Forget what was staged under tokens that begin so; only server 0 says so."""
        staged = self._find(key).staged
        for token in [token for token in list(staged) if token.startswith(prefix)]:
            staged.pop(token, None)

    def release(self, key: str, worker: str) -> None:
        """A worker died: nobody waits for its push, and what it staged is forgotten."""
        self._chief(key).gate.release(worker)
        self._discard_all(key, token_prefix(worker))

    def withdraw(self, key: str, caller: Caller) -> None:
        """A closure has ended without a push."""
        self._chief(key).gate.withdraw(caller)

    def hold(self, key: str, caller: Caller, name: str, is_load: bool) -> None:
        """Wait for the push under way; apply no other until :meth:`resume`, also if this raises."""
        chief = self._chief(key)
        chief.gate.hold(caller, name)
        if not is_load:
            chief.check()

    def resume(self, key: str, name: str, loaded: bool | None = None) -> None:
        """End a hold; ``loaded`` is whether all of a state was, or None if none was."""
        chief = self._chief(key)
        if loaded is not None:
            unfinished = chief.broken or UsageError("load_state_dict() was not finished")
            chief.broken = None if loaded else unfinished
        chief.gate.resume(name)

    def state(self, key: str) -> Lent:
        """Lend the packed :class:`HeldState`."""
        return Lent(opened=self._find(key).lend(lambda held: pack_tensors(held.state())))

    def load(self, key: str, packed: Packed) -> None:
        """Take over a :class:`HeldState`."""
        served, state = self._find(key), unpack_tensors(packed)
        with served.lock:
            served.held.load(state)

    def drop(self, key: str) -> None:
        """Hold these no longer; calls that wait raise."""
        self._served.pop(key, None)
        chief = self._chiefs.pop(key, None)
        if chief is not None:
            chief.gate.close()

    def stats(self, key: str) -> ParameterStats:
        """Count pulls and pushes."""
        return self._chief(key).gate.stats()

    def _apply_all(self, key: str, push: Push) -> None:
        chief = self._chief(key)
        requests: list[Request] = [
            (peer, "apply", (key, push.token, peer in push.staged)) for peer in chief.peers
        ]
        try:
            chief.fan_out.call_all(
                requests, meanwhile=lambda: self.apply(key, push.token, 0 in push.staged)
            )
        except Exception as error:
            let_go(error)
            chief.broken = error
            raise

    def _discard_all(self, key: str, prefix: str) -> None:
        chief = self._chief(key)
        chief.fan_out.call_all(
            [(peer, "discard", (key, prefix)) for peer in chief.peers],
            meanwhile=lambda: self.discard(key, prefix),
        )

    def _find(self, key: str) -> _Served:
        return self._known(self._served, key)

    def _chief(self, key: str) -> _Chief:
        return self._known(self._chiefs, key)

    @staticmethod
    def _known(known: Mapping[str, T], key: str) -> T:
        found = known.get(key)
        if found is None:
            msg = (
                f"Expected parameters that were created on this server, got {key!r}, which is none "
                f"of its {len(known)}. Use them with the strategy that has created them, before "
                "they are closed."
            )
            raise UsageError(msg)
        return found
