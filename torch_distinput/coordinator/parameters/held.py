"""What one server holds of one ``Parameters``: shards, their optimizer, and what changed when.

    version    what was applied          shard 0 (rows of an embedding)   shard 1 (dense)
    1          gradients of rows 2, 5    rows 2, 5 changed at 1           all changed at 1
    2          gradients of row 5        row 5 changed at 2               all changed at 2

A client that has seen version 1 is sent row 5 of shard 0, and all of shard 1. No thread or lock
here: the server calls one method at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import nn

from torch_distinput.coordinator.parameters.optimizers import (
    OptimizerFn,
    changes_only_rows,
    check_sharded,
    make_optimizer,
    only_reads_gradients,
    takes_sparse,
)
from torch_distinput.coordinator.parameters.payload import SomeRows, Update, as_sparse
from torch_distinput.coordinator.parameters.placement import ParameterShard
from torch_distinput.errors import ConfigurationError

_MOST_RECENT = 256
"""Changes of rows that are kept one by one: more than there are workers, in most clusters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerPart:
    """What a server is to hold.

    Attributes:
        shards: by their index among all shards.
        values: of these shards, as they begin.
        frozen: the shards whose parameters have no ``requires_grad``.
        groups: per group of the optimizer the shards in it; a shard in none is not optimized.
        buffers: by name; only the first server has them.
    """

    shards: Mapping[int, ParameterShard]
    values: Mapping[int, torch.Tensor]
    frozen: frozenset[int]
    groups: tuple[tuple[int, ...], ...]
    buffers: Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What changed since a version, up to another."""

    version: int
    shards: dict[int, Update]
    buffers: dict[str, torch.Tensor]

    @property
    def is_copy(self) -> bool:
        """Whether it shares no memory with what is held."""
        only_rows = all(isinstance(update, SomeRows) for update in self.shards.values())
        return only_rows and not self.buffers


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldState:
    """Values and optimizer of a server's shards.

    Attributes:
        values: by the shard's index.
        states: what the optimizer keeps of each, by key.
        groups: the optimizer's groups without their parameters; empty without an optimizer.
        buffers: by name.
    """

    values: dict[int, torch.Tensor]
    states: dict[int, dict[str, Any]]
    groups: list[dict[str, Any]]
    buffers: dict[str, torch.Tensor]


@dataclass(kw_only=True, slots=True)
class _Held:
    """A shard as it is held.

    Attributes:
        parameter: its values.
        changed: the version at which all of it changed last.
        rows: if only some rows changed after that: when each did, or 0. (rows,)
        recent: the last of these changes, as (version, rows): few, where ``rows`` is long.
        recent_from: all changes after this version are among them.
    """

    parameter: nn.Parameter
    changed: int = 0
    rows: torch.Tensor | None = None
    recent: deque[tuple[int, torch.Tensor]] = field(default_factory=deque)
    recent_from: int = 0

    def note_all(self, version: int) -> None:
        """All of it has changed."""
        self.changed = self.recent_from = version
        self.rows = None
        self.recent.clear()

    def note_rows(self, version: int, indices: torch.Tensor) -> None:
        """These rows have changed."""
        if self.rows is None:
            self.rows = torch.zeros(len(self.parameter), dtype=torch.int64, device="cpu")
        self.rows[indices] = version
        self.recent.append((version, indices.clone()))  # or the whole message would be kept
        while self._is_recent_long():
            self.recent_from, _ = self.recent.popleft()

    def _is_recent_long(self) -> bool:
        """Whether it takes as long to go through the last changes as through all rows."""
        num_rows = sum(len(one) for _, one in self.recent)
        return len(self.recent) > _MOST_RECENT or num_rows > len(self.parameter) // 4

    def rows_after(self, seen: int) -> torch.Tensor:
        """Which rows have changed after a version, ascending; all of it has not."""
        if seen < self.recent_from and self.rows is not None:
            return (self.rows > seen).nonzero().view(-1)
        after = [indices for version, indices in self.recent if version > seen]
        if not after:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        rows: torch.Tensor = torch.unique(torch.cat(after))
        return rows


@final
@dataclass(slots=True)
class HeldParameters:
    """Shards of one ``Parameters``, and their optimizer."""

    part: ServerPart
    optimizer_fn: OptimizerFn
    version: int = 0
    _held: dict[int, _Held] = field(init=False)
    _buffers: dict[str, torch.Tensor] = field(init=False)
    _buffers_changed: int = field(init=False, default=0)
    _optimizer: torch.optim.Optimizer | None = field(init=False, default=None)
    _group_of: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Make parameters of the values, and the optimizer of those that are optimized."""
        self._held = {
            index: _Held(
                parameter=nn.Parameter(
                    value.clone(memory_format=torch.contiguous_format),
                    requires_grad=index not in self.part.frozen,
                )
            )
            for index, value in self.part.values.items()
        }
        self._buffers = {name: buffer.clone() for name, buffer in self.part.buffers.items()}
        self._group_of = {
            index: number for number, group in enumerate(self.part.groups) for index in group
        }
        self.part = replace(self.part, values={}, buffers={})  # which keep the message they came in
        if self._group_of:
            self._optimizer = self._make_optimizer()

    @property
    def only_reads_gradients(self) -> bool:
        """Whether :meth:`apply` writes to none of the gradients that it gets."""
        return self._optimizer is None or only_reads_gradients(self._optimizer)

    def apply(self, gradients: Mapping[int, Update], buffers: Mapping[str, torch.Tensor]) -> None:
        """One step of the optimizer with these gradients; shards without one are left out of it."""
        only_rows = {index: self._give(index, one) for index, one in gradients.items()}
        try:
            if self._optimizer is not None:
                self._optimizer.step()
        finally:
            self.version += 1
            for index, rows in only_rows.items():
                self._held[index].parameter.grad = None
                if rows is None:
                    self._held[index].note_all(self.version)
                else:
                    self._held[index].note_rows(self.version, rows.indices)
            self._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})
            if buffers:
                self._buffers_changed = self.version

    def changes(self, seen: int, whole: Collection[int]) -> Changes:
        """Return what changed after version ``seen``, and all of the shards ``whole``.

        Values and buffers are those that the next :meth:`apply` writes to; rows are copies.
        """
        updates = {
            index: self._changed(held, -1 if index in whole else seen)
            for index, held in self._held.items()
        }
        return Changes(
            version=self.version,
            shards={index: one for index, one in updates.items() if one is not None},
            buffers=self._buffers if self._buffers_changed > seen else {},
        )

    def copied_changes(self, seen: int, whole: Collection[int]) -> Changes | None:
        """Return what :meth:`changes` would, if that shares no memory with what is held."""
        has_more = whole or self._buffers_changed > seen
        if has_more or any(held.changed > seen for held in self._held.values()):
            return None
        changes = self.changes(seen, whole)
        return changes if changes.is_copy else None

    def state(self) -> HeldState:
        """Return everything, as it is: the next :meth:`apply` writes to it."""
        kept = self._optimizer.state if self._optimizer is not None else {}
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return HeldState(
            values={index: held.parameter.detach() for index, held in self._held.items()},
            states={
                index: dict(kept[held.parameter])
                for index, held in self._held.items()
                if held.parameter in kept
            },
            groups=[
                {key: value for key, value in group.items() if key != "params"} for group in groups
            ],
            buffers=self._buffers,
        )

    def load(self, state: HeldState) -> None:
        """Take over a state of the same shards."""
        self.version += 1
        for index, held in self._held.items():
            held.parameter.detach().copy_(state.values[index])
            held.note_all(self.version)
        self._buffers = {name: buffer.clone() for name, buffer in state.buffers.items()}
        self._buffers_changed = self.version
        if self._optimizer is not None:
            self._load_optimizer(self._optimizer, state)

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, state: HeldState) -> None:
        ours = optimizer.state_dict()["param_groups"]
        groups = [
            {**group, "params": own["params"]}
            for group, own in zip(state.groups, ours, strict=True)
        ]
        numbers = {
            index: number
            for held_group, own in zip(self.part.groups, ours, strict=True)
            for index, number in zip(held_group, own["params"], strict=True)
        }
        states = {numbers[index]: one for index, one in state.states.items() if index in numbers}
        optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _make_optimizer(self) -> torch.optim.Optimizer:
        names = {str(index): held.parameter for index, held in self._held.items()}
        optimizer, groups = make_optimizer(self.optimizer_fn, names)
        found = tuple(tuple(map(int, group)) for group in groups)
        if found != self.part.groups:
            shards = self.part.shards
            msg = (
                "Expected optimizer_fn to group the parameters on a server as it groups those of "
                f"the whole module, {self._words(self.part.groups)}, got {self._words(found)} for "
                f"{len(shards)} shards. Let it choose by the number of dimensions or requires_grad"
                " of each, not by its place in the list or the number of its rows."
            )
            raise ConfigurationError(msg)
        cut = [shard.name for shard in self.part.shards.values() if not shard.is_whole]
        check_sharded(optimizer, cut)
        return optimizer

    def _words(self, groups: tuple[tuple[int, ...], ...]) -> str:
        return str([[self.part.shards[index].name for index in group] for group in groups])

    def _give(self, index: int, gradient: Update) -> SomeRows | None:
        """Set a shard's gradient; return the rows if the optimizer will change no others."""
        parameter = self._held[index].parameter
        if not isinstance(gradient, SomeRows):
            parameter.grad = gradient
            return None
        parameter.grad = as_sparse(gradient, parameter.shape)
        optimizer, number = self._optimizer, self._group_of.get(index)
        if optimizer is None or number is None:
            return None
        group = optimizer.param_groups[number]
        if not takes_sparse(optimizer, group):
            parameter.grad = parameter.grad.to_dense()
            return None
        return gradient if changes_only_rows(optimizer, group) else None

    @staticmethod
    def _changed(held: _Held, seen: int) -> Update | None:
        values = held.parameter.detach()
        if held.changed > seen:
            return values
        indices = held.rows_after(seen)
        if not len(indices):
            return None
        if 2 * len(indices) > len(values):
            return values
        return SomeRows(indices=indices, values=values[indices])
