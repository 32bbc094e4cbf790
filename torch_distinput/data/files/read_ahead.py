"""Chunks read by a thread ahead of use, within a bound of bytes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch_distinput.data.batch import rows
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.threads import Condition, new_condition, start_thread

_HELD_BYTES = 8 << 20
"""What one thread reads ahead; one chunk is always allowed."""


@dataclass(slots=True)
class _Shelf:
    """What the two threads share; every field is guarded by ``changed``."""

    changed: Condition = field(default_factory=new_condition)
    chunks: deque[Chunk] = field(default_factory=deque)
    held_bytes: int = 0
    ended: bool = False
    error: BaseException | None = None
    closed: bool = False

    def has_room(self, size: int) -> bool:
        return not self.chunks or self.held_bytes + size <= _HELD_BYTES

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.chunks.clear()
            self.changed.notify_all()


class ReadAhead(Iterator[Chunk]):
    """Runs an iterator of chunks in a thread of its own, which starts now.

    The thread overlaps reading and decompressing, which release the interpreter's lock, with
    whatever the consumer does. It holds the shelf and never this object, so that an abandoned one
    is collected and the thread leaves.
    """

    def __init__(self, start: Callable[[], Iterator[Chunk]]) -> None:
        """Take the function that starts the iterator; it is called in the thread."""
        self._shelf = _Shelf()
        start_thread(_read, self._shelf, start, name="reader", stop=self._shelf.close)
        self._finalizer = weakref.finalize(self, self._shelf.close)
        self._finalizer.atexit = False  # threads end all at once

    def __next__(self) -> Chunk:
        """Return the next chunk; raise what the iterator raised."""
        shelf = self._shelf
        with shelf.changed:
            shelf.changed.wait_for(lambda: shelf.chunks or shelf.ended or shelf.closed)
            if shelf.chunks:
                chunk = shelf.chunks.popleft()
                shelf.held_bytes -= rows.num_bytes(chunk.data)
                shelf.changed.notify_all()
                return chunk
            error, shelf.error = shelf.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Let the thread leave."""
        self._finalizer()


def _read(shelf: _Shelf, start: Callable[[], Iterator[Chunk]]) -> None:
    error: BaseException | None = None
    try:
        for chunk in start():
            if not _put(shelf, chunk):
                return
    except BaseException as raised:  # noqa: BLE001 - raised again in the consumer's thread
        error = raised
    with shelf.changed:
        shelf.ended, shelf.error = True, error
        shelf.changed.notify_all()


def _put(shelf: _Shelf, chunk: Chunk) -> bool:
    """Lay a chunk on the shelf when there is room; False if nobody wants it any more."""
    size = rows.num_bytes(chunk.data)
    with shelf.changed:
        shelf.changed.wait_for(lambda: shelf.closed or shelf.has_room(size))
        if shelf.closed:
            return False
        shelf.chunks.append(chunk)
        shelf.held_bytes += size
        shelf.changed.notify_all()
    return True
