"""What batches and ids of this worker look like: the element spec, and batches without rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch_distinput.data.batch.leaf_kind import Order
from torch_distinput.data.batch.leaf_kinds import zero_row_maker
from torch_distinput.data.batch.spec import (
    merge_specs,
    name_kinds,
    name_texts,
    outline_of,
    spec_of,
    zero_rows,
)
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.steps.local_step import LocalStep, ReplicaBatch, take_apart
from torch_distinput.data.steps.padding import (
    Padding,
    make_blank,
    order_of,
    pad_batch,
    pad_spec,
)
from torch_distinput.data.stream.chunk import Ids
from torch_distinput.engine.same_data import name_change
from torch_distinput.errors import SourceError


class _EmptyBatch(NamedTuple):
    """What batches without rows are made of: functions that make leaves, and what they share."""

    makers: list[Callable[[], Any]]
    structure: Structure
    ids: Ids


class Shapes:
    """Learns from each real batch; a replica without data gets one like the last of them.

    Attributes:
        spec: of all batches until now.
        kinds: of the leaves of the first real batch; None before it. Written once, by whoever pulls
            steps, and read by the main thread.
    """

    def __init__(
        self,
        spec: Any,
        padding: Padding | None = None,
        check: Callable[[Any], None] = lambda _: None,
        *,
        has_one_kind: bool = False,
    ) -> None:
        """Start with a spec that is known already, or None; ``check`` hears that of batches.

        ``has_one_kind``: see :func:`name_change`.
        """
        self.spec = spec
        self.kinds: dict[str, str] | None = None
        self.texts: dict[str, str] = {}
        self.padding = padding
        self._has_one_kind = has_one_kind
        self._check = check
        self._look: Any = None
        self._last: Any = None
        self._empty: _EmptyBatch | None = None
        self._orders: list[Order] | None = None

    def complete(
        self, step: LocalStep, ask: Callable[[], Any], index: int
    ) -> list[ReplicaBatch]:
        """Note the real batches of a step, and give the other replicas one without rows."""
        if not step.is_alike or self._look is None:
            for part in step.parts:
                if part is not None:
                    self.observe(part, index)
        return [self.empty(ask) if part is None else part for part in step.parts]

    def observe(self, part: ReplicaBatch, index: int) -> None:
        """Note a real batch: the next zero-row batch gets its trailing sizes."""
        look = (part.structure, outline_of(part.leaves), part.ids.shape[1:])
        if look == self._look:
            return
        self._look, self._empty = look, None
        self._last = spec_of((part.batch, part.ids))
        self._orders = list(map(order_of, part.leaves))
        self._check_kinds(self._last[0], index)
        self.spec = self._last if self.spec is None else merge_specs(self.spec, self._last)
        for spec in (self._last, self.spec):
            self._check(spec[0])

    def empty(self, ask: Callable[[], Any]) -> ReplicaBatch:
        """Return a batch without rows, like the last real one on this worker.

        Before the first one it is like the spec, which ``ask`` finds out. Its leaves are new each
        time: the user may change their sizes in place, or need one for backward.
        """
        if self._empty is None:
            self._empty = self._make(ask)
        makers, structure, ids = self._empty
        return ReplicaBatch([make() for make in makers], structure, ids)

    def fill(
        self, parts: Sequence[ReplicaBatch]
    ) -> tuple[Sequence[ReplicaBatch], int | None]:
        """Fill up the batches of a step, if asked for, and add their masks; to how many rows."""
        if self.padding is None:
            return parts, None
        num_rows = self.padding.make_room(parts)
        return [self._fill(part, num_rows) for part in parts], num_rows

    def _check_kinds(self, spec: Any, index: int) -> None:
        """Refuse a batch of other kinds than before; keep those of the first one."""
        change, kinds = None, name_kinds(spec, of_examples=self._has_one_kind)
        if self.kinds is not None:
            change = name_change(self.kinds, kinds, has_one_kind=self._has_one_kind)
        elif self.spec is not None:  # perhaps of an earlier epoch, which may have had others
            change = name_change(name_kinds(self.spec[0]), name_kinds(spec), has_one_kind=False)
        if change is not None:
            msg = (
                f"Expected {change[0]}, as before, got {change[1]} in step {index}: the structure "
                "and types of a batch must not depend on which examples it holds. Give all "
                "examples the same columns and types (1.0 instead of 1; in JSON lines by the "
                "reader's columns=), or let a collate_fn return them."
            )
            raise SourceError(msg)
        if self.kinds is None:
            self.texts, self.kinds = name_texts(spec), kinds

    def _fill(self, part: ReplicaBatch, num_rows: int) -> ReplicaBatch:
        if len(part.ids):
            return pad_batch(part, num_rows)
        return make_blank(part, num_rows, self._latest[0], self._orders)

    @property
    def _latest(self) -> Any:
        return self.spec if self._last is None else self._last

    def _make(self, ask: Callable[[], Any]) -> _EmptyBatch:
        if self._latest is None:
            self.spec = ask()
        if self._latest is None:
            raise make_spec_error()
        self._check(self._latest[0])
        leaves, structure, ids = take_apart(*zero_rows(self._latest))
        return _EmptyBatch(list(map(zero_row_maker, leaves)), structure, ids)


def element_spec(part_spec: Any, padding: Padding | None) -> Any:
    """What a step looks like to the user, from the spec of a batch with its ids."""
    return part_spec[0] if padding is None else pad_spec(part_spec[0], padding.static_rows)


def make_spec_error() -> SourceError:
    """The error for a source that has shown no example to anybody."""
    msg = (
        "Expected at least one step to know the structure of a batch, got none from any worker: "
        "the source is empty, or drop_last left all of it out. Check the source, or leave "
        "drop_last out."
    )
    return SourceError(msg)
