"""Chunks read by a thread ahead of use, within a bound of bytes.

Who writes and reads what:

    thread                  writes                              reads           guarded by
    file-reader (one each)  chunks, held_bytes, ended, error    closed          changed
    who takes chunks        chunks, held_bytes, closed          ended, error    changed
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

from torch_distinput.data.batch import rows
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.threads import Condition, new_condition, start_thread

_HELD_BYTES = 8 << 20
"""What one thread reads ahead; one chunk is always allowed."""


@final
@dataclass(slots=True)
class _ChunkQueue:
    """What the two threads share."""

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


@final
class ReadAhead(Iterator[Chunk]):
    """Runs an iterator of chunks in a thread of its own, which starts now.

    The thread overlaps reading and decompressing, which release the interpreter's lock, with
    whatever the consumer does. It holds the queue and never this object, so that an abandoned one
    is collected and the thread leaves.
    """

    def __init__(self, start: Callable[[], Iterator[Chunk]]) -> None:
        """Take the function that starts the iterator; it is called in the thread."""
        self._queue = _ChunkQueue()
        start_thread(_read, self._queue, start, name="file-reader", stop=self._queue.close)
        self._finalizer = weakref.finalize(self, self._queue.close)
        self._finalizer.atexit = False  # threads end all at once

    def __next__(self) -> Chunk:
        """Return the next chunk; raise what the iterator raised."""
        queue = self._queue
        with queue.changed:
            queue.changed.wait_for(lambda: queue.chunks or queue.ended or queue.closed)
            if queue.chunks:
                chunk = queue.chunks.popleft()
                queue.held_bytes -= rows.num_bytes(chunk.data)
                queue.changed.notify_all()
                return chunk
            error, queue.error = queue.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Let the thread leave."""
        self._finalizer()


def _read(queue: _ChunkQueue, start: Callable[[], Iterator[Chunk]]) -> None:
    error: BaseException | None = None
    try:
        for chunk in start():
            if not _put(queue, chunk):
                return
    except BaseException as raised:  # noqa: BLE001 - raised again in the consumer's thread
        error = raised
    with queue.changed:
        queue.ended, queue.error = True, error
        queue.changed.notify_all()


def _put(queue: _ChunkQueue, chunk: Chunk) -> bool:
    """Put a chunk into the queue when there is room; False if nobody wants it any more."""
    size = rows.num_bytes(chunk.data)
    with queue.changed:
        queue.changed.wait_for(lambda: queue.closed or queue.has_room(size))
        if queue.closed:
            return False
        queue.chunks.append(chunk)
        queue.held_bytes += size
        queue.changed.notify_all()
    return True
