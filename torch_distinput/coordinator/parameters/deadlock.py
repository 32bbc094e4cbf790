"""Finds calls at the gates of a server that wait for each other, which would be for ever.

    worker 0    has pulled A    waits to pull B, for a push of worker 1
    worker 1    has pulled B    waits to pull A, for a push of worker 0

Whoever does not wait computes, and will push or end: nobody waits for it in vain. So those that
wait for nobody else are not stuck, nor are those that wait for these, and so on. Who is left is
stuck.

No thread or lock here: gates call this with the lock that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

from torch_distinput.coordinator.parameters.identity import Caller

CanGoOn: TypeAlias = Callable[[Collection[Caller]], bool]
"""Whether a call could go on if only these callers kept their pulls."""


@final
class WaitingCalls:
    """The calls that wait at any gate of a server."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Caller, CanGoOn]] = {}

    @contextmanager
    def waiting(self, caller: Caller, can_go_on: CanGoOn) -> Iterator[None]:
        """While inside, a call of this caller waits."""
        key = object()
        self._calls[key] = (caller, can_go_on)
        try:
            yield
        finally:
            del self._calls[key]

    def find_stuck(self) -> set[Caller]:
        """Return the callers that wait in vain."""
        stuck = {caller for caller, _ in self._calls.values()}
        while True:
            left = {
                caller
                for caller, can_go_on in self._calls.values()
                if caller in stuck and not can_go_on(stuck)
            }
            if left == stuck:
                return stuck
            stuck = left
