"""What batches and ids of this worker look like: the element spec, and batches without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_distinput.data import rows
from torch_distinput.data.element_spec import look_of, merged, spec_of, zero_rows
from torch_distinput.data.local_step import Part, part_of
from torch_distinput.errors import SourceError


class Shapes:
    """Learns from each real batch; a replica without data gets one like the last of them."""

    def __init__(self, spec: Any) -> None:
        """Start with a spec that is known already, or None."""
        self.spec = spec
        self._look: Any = None
        self._last: Any = None
        self._empty: Part | None = None

    def observe(self, part: Part) -> None:
        """Note a real batch: the next zero-row batch gets its trailing sizes."""
        look = (part.structure, look_of(part.leaves), part.ids.shape[1:])
        if look == self._look:
            return
        self._look, self._empty = look, None
        self._last = spec_of((part.batch, part.ids))
        self.spec = self._last if self.spec is None else merged(self.spec, self._last)

    def empty(self, ask: Callable[[], Any]) -> Part:
        """Return a batch without rows, like the last real one on this worker.

        Before the first one it is like the spec, which ``ask`` finds out. Its leaves are new each
        time: the user may change their sizes in place, or need one for backward.
        """
        if self._empty is None:
            self._empty = self._made(ask)
        leaves, structure, ids = self._empty
        return Part([rows.empty_leaf(leaf) for leaf in leaves], structure, ids)

    def _made(self, ask: Callable[[], Any]) -> Part:
        if self._last is None and self.spec is None:
            self.spec = ask()
        spec = self._last if self._last is not None else self.spec
        if spec is None:
            raise no_spec()
        return part_of(*zero_rows(spec))


def no_spec() -> SourceError:
    """The error for a source that has shown no example to anybody."""
    msg = (
        "Expected at least one step to know the structure of a batch, got none from any worker: "
        "the source is empty, or drop_last left all of it out."
    )
    return SourceError(msg)
