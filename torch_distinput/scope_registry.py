"""What is made inside ``Strategy.scope()``: the scope compares it across ranks when it ends.

A layer and a strategy know nothing of each other but this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Fingerprinted(Protocol):
    """What a scope compares, or replicates."""

    def fingerprint(self) -> str:
        """A digest of configuration and state."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""


class _Local(threading.local):
    """Per thread, as scopes are: simulated workers are threads."""

    made: list[Fingerprinted] | None = None


_local = _Local()


def add(thing: Fingerprinted) -> None:
    """Note what has just been made, if a scope is open in this thread."""
    if _local.made is not None:
        _local.made.append(thing)


@contextmanager
def collected() -> Iterator[list[Fingerprinted]]:
    """Collect what is made in this thread; an inner scope keeps its own."""
    before = _local.made
    made: list[Fingerprinted] = []
    _local.made = made
    try:
        yield made
    finally:
        _local.made = before
