"""One process's copy of a module whose parameters live on servers: pulled, pushed.

    thread           writes                        reads       guarded by
    any that calls   the module, what was seen     the same    _lock

A second thread that pulls waits for the first; what both then compute with is one module.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from torch_distinput import threads
from torch_distinput.coordinator.engines.engine import RemoteObject
from torch_distinput.coordinator.parameters.description import ModuleRecipe
from torch_distinput.coordinator.parameters.fan_out import FanOut, Request
from torch_distinput.coordinator.parameters.gate import ParameterStats
from torch_distinput.coordinator.parameters.held import Changes, HeldState
from torch_distinput.coordinator.parameters.identity import Caller, token_prefix
from torch_distinput.coordinator.parameters.local_module import LocalModule
from torch_distinput.coordinator.parameters.optimizer_state import (
    check_state,
    join_optimizer,
    split_optimizer,
)
from torch_distinput.coordinator.parameters.payload import (
    Packed,
    Update,
    cut_gradient,
    pack_tensors,
    read_tensors,
    unpack_tensors,
)
from torch_distinput.coordinator.parameters.server import Push
from torch_distinput.errors import ServerLostError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """The servers of some ``Parameters``.

    Attributes:
        key: what the servers know them by.
        servers: all of them, the first one first.
    """

    key: str
    servers: tuple[RemoteObject, ...]


@final
class Client:
    """Pulls and pushes of one process."""

    def __init__(
        self, connection: Connection, caller: Caller, recipe: ModuleRecipe, module: nn.Module
    ) -> None:
        self._key = connection.key
        self._caller = caller
        self._recipe = recipe
        self._local = LocalModule(recipe, module)
        self._fan_out = FanOut(connection.servers)
        self._num_servers = len(connection.servers)
        self._seen = [-1] * self._num_servers
        self._pulled: int | None = None
        self._is_in_line = False  # of server 0, where others may wait for the push
        self._lock = threads.new_rlock()

    def pull(self, device: torch.device | None) -> nn.Module:
        """Return the module with the servers' values and without gradients."""
        with self._lock:
            self._pulled, altered = None, self._local.altered()
            self._is_in_line = self._recipe.max_staleness is not None
            version, packed = self._fetch(altered)
            self._local.move(device)
            for server, one in packed.items():
                changes: Changes = read_tensors(one)
                self._local.write(changes)
                self._seen[server] = changes.version
            self._pulled = version
            return self._local.restore()

    def push(self, gradients: Mapping[str, torch.Tensor] | None) -> None:
        """Have the servers apply gradients, those of the module by default."""
        with self._lock:
            if self._pulled is None:
                msg = (
                    "Expected a pull before each push, got a push without one. Call pull(), "
                    "compute the gradients with the module it returns, then push() once."
                )
                raise UsageError(msg)
            parts = self._cut(self._local.collect(gradients))
            buffers = self._local.changed_buffers()
            self._send(parts, buffers, self._pulled)
            self._local.note_pushed(buffers)
            self._pulled, self._is_in_line = None, False

    def withdraw(self) -> None:
        """There will be no push after the last pull."""
        with self._lock:
            if self._is_in_line:
                self._fan_out.call(0, "withdraw", self._key, self._caller)
            self._pulled, self._is_in_line = None, False

    def release(self, worker: str) -> None:
        """Tell the servers that a worker died."""
        self._fan_out.call(0, "release", self._key, worker)

    def close(self) -> None:
        """Let all servers drop what they hold."""
        self._fan_out.call_all(
            [(server, "drop", (self._key,)) for server in range(self._num_servers)]
        )

    def stats(self) -> ParameterStats:
        """Ask what was done so far."""
        stats: ParameterStats = self._fan_out.call(0, "stats", self._key)
        return stats

    def state_dict(self) -> dict[str, Any]:
        """The state of the module and of the optimizer, whole, between two pushes."""
        with self._lock:
            self.withdraw()
            with self._hold(is_load=False):
                packed = self._fan_out.call_all(
                    [(server, "state", (self._key,)) for server in range(self._num_servers)]
                )
            states: list[HeldState] = [unpack_tensors(one) for one in packed]
            for one in states:
                self._local.write(Changes(version=-1, shards=dict(one.values), buffers=one.buffers))
            self._seen = [-1] * self._num_servers
            model = copy.deepcopy(self._local.restore().state_dict())
        kept = {index: one for state in states for index, one in state.states.items()}
        groups = next((state.groups for state in states if state.groups), [])
        return {"model": model, "optimizer": join_optimizer(self._recipe, kept, groups)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give all servers their parts of a state."""
        with self._lock:
            self.withdraw()
            states, groups = split_optimizer(self._recipe, check_state(state_dict)["optimizer"])
            values, buffers = self._local.load(state_dict["model"])
            packed = {}
            for server in range(self._num_servers):
                mine = self._recipe.indices(server)
                part = HeldState(
                    values={index: values[index] for index in mine},
                    states={index: states[index] for index in mine if index in states},
                    groups=groups,
                    buffers=buffers if server == 0 else {},
                )
                packed[server] = pack_tensors(part)
            with self._hold(is_load=True):
                self._fan_out.call_all(
                    [(server, "load", (self._key, one)) for server, one in packed.items()]
                )

    @contextmanager
    def _hold(self, *, is_load: bool) -> Iterator[None]:
        """Between two pushes; Ctrl-C, whenever it comes, leaves nobody held."""
        name, loaded = uuid.uuid4().hex, None
        try:
            self._fan_out.call(0, "hold", self._key, self._caller, name, is_load)
            loaded = False if is_load else None
            yield
            self._fan_out.call(0, "resume", self._key, name, is_load or None)
        except BaseException:
            with suppress(ServerLostError):
                self._fan_out.call(0, "resume", self._key, name, loaded)
            raise

    def _fetch(self, altered: Sequence[int]) -> tuple[int, dict[int, Packed]]:
        """Return the version, and what changed on each server."""
        whole: dict[int, list[int]] = {server: [] for server in self._servers()}
        for index in altered:
            whole[self._recipe.shards[index].server].append(index)
        requests: list[Request] = [
            (server, "pull", (self._key, self._seen[server], tuple(indices)))
            for server, indices in whole.items()
        ]
        requests[0] = (0, "pull", (*requests[0][2], self._caller))
        if self._recipe.max_staleness is None:
            replies = self._fan_out.call_all(requests)
        else:  # the others' values must not be older than the version that server 0 says
            first = self._fan_out.call(0, "pull", *requests[0][2])
            replies = [first, *self._fan_out.call_all(requests[1:])]
        packed = {server: reply[1] for server, reply in zip(whole, replies, strict=True)}
        return replies[0][0], packed

    def _servers(self) -> list[int]:
        """Server 0, and all others that hold something."""
        return sorted({0, *(shard.server for shard in self._recipe.shards)})

    def _cut(self, gradients: Mapping[str, torch.Tensor]) -> dict[int, dict[int, Update]]:
        """The gradients for each server, by the index of the shard."""
        parts: dict[int, dict[int, Update]] = {}
        for name, gradient in gradients.items():
            for index, update in cut_gradient(gradient, self._recipe.shards_of(name)):
                server = self._recipe.shards[index].server
                parts.setdefault(server, {})[index] = update
        return parts

    def _send(
        self,
        parts: Mapping[int, Mapping[int, Update]],
        buffers: Mapping[str, torch.Tensor],
        pulled: int,
    ) -> None:
        staged = {**parts, 0: parts.get(0, {})} if buffers else dict(parts)
        push = Push(
            token=token_prefix(self._caller.worker) + uuid.uuid4().hex,
            caller=self._caller,
            pulled=pulled,
            staged=tuple(staged),
        )
        packed = {
            server: pack_tensors((updates, buffers if server == 0 else {}))
            for server, updates in staged.items()
        }
        if self._num_servers == 1:
            self._fan_out.call(0, "commit", self._key, push, packed[0])
            return
        self._fan_out.call_all(
            [(server, "stage", (self._key, push.token, one)) for server, one in packed.items()]
        )
        self._fan_out.call(0, "commit", self._key, push)
