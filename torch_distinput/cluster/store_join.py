"""Texts of all workers become one text in the store: each writes one and reads one.

    worker 0         worker 1         worker 2, the last to come         the store holds
    shows its text   shows its text   shows its text                     three texts
    waits            waits            reads all three, joins them        one more
    reads that one   reads that one   has it

So a meeting of W workers costs each of them the same whatever W is, but for the last one to come.
If that one dies with the texts in its hands, any other can do the same work again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch.distributed import Store  # type: ignore[attr-defined]

from torch_distinput.cluster.liveness.store_board import texts_of
from torch_distinput.communicator import Merge


@final
class StoreJoin:
    """One topic, as one worker sees it. Every call asks the store, and returns at once."""

    def __init__(self, store: Store, topic: str, *, rank: int, size: int, merge: Merge) -> None:
        """Ask nothing yet.

        Args:
            store: a client of the store.
            topic: not used before.
            rank: this worker's number.
            size: how many workers will come.
            merge: makes one text of theirs.
        """
        self._store = store
        self._topic = topic
        self._rank = rank
        self.size = size
        self._merge = merge
        self._joined = f"{topic}/joined"
        self._result: str | None = None
        self.written = [self._key(rank)]
        """The keys that this worker has made, and deletes when nobody needs them any more."""
        self.is_over = False
        """Whether this worker has the one text, or waits for it no more."""

    def show(self, text: str) -> None:
        """Show this worker's text; the last one to come joins them."""
        come = f"{self._topic}/come"
        self._store.set(self._key(self._rank), text)
        if self._store.add(come, 1) == self.size:
            self.written.append(come)
            self._join()

    def show_first(self, text: str) -> None:
        """Show a text for all workers, unless one has: the first of them is the one text."""
        self._result = self._store.compare_set(self._joined, "", text).decode()
        self.written = [self._joined] if self._result == text else []

    def is_joined(self) -> bool:
        """Whether the one text is there."""
        return self._result is not None or bool(self._store.check([self._joined]))

    def result(self) -> str:
        """The one text, which is there."""
        if self._result is None:
            (self._result,) = texts_of(self._store, [self._joined])
        return self._result

    def leave(self) -> None:
        """Wait no more; if that is before all have come, nobody may be the last to come."""
        if self._result is None:
            self.written.append(f"{self._topic}/come")
        self.is_over = True

    def find_missing(self, workers: Sequence[int] | None = None) -> list[int]:
        """Those among some workers (or all) that have not shown a text.

        By halves: where few are missing, that is a few questions for each of them.
        """
        asked = range(self.size) if workers is None else workers
        if not asked or self._store.check([self._key(worker) for worker in asked]):
            return []
        if len(asked) == 1:
            return list(asked)
        middle = len(asked) // 2
        return [*self.find_missing(asked[:middle]), *self.find_missing(asked[middle:])]

    def take_over(self) -> None:
        """Join the texts in place of the worker that should have; all texts are there.

        Others may come to the same conclusion at the same time, and one of them is enough.
        """
        turns = f"{self._topic}/turns"
        if (self._store.add(turns, 1) - 1) % self.size == 0:
            self.written.append(turns)
            self._join()

    def _join(self) -> None:
        keys = [self._key(worker) for worker in range(self.size)]
        self._result = self._merge(texts_of(self._store, keys))
        self._store.set(self._joined, self._result)
        self.written.append(self._joined)

    def _key(self, worker: int) -> str:
        return f"{self._topic}/{worker}"
