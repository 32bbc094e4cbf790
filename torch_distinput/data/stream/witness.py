"""What a worker saw of a stream that all workers read; an audit compares it at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, final

from torch_distinput.data.batch.fingerprint import Digest, say_unchecked
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.plan.progress.checksum import MOST_WINDOWS, Reading, join_windows

if TYPE_CHECKING:
    from torch_distinput.data.stream.chunk import Chunk


@final
class Witness:
    """Takes fingerprints of all items of a stream, as they are read, in constant memory.

    Windows of so many items each are told apart, so that it can be said where streams begin to
    differ: one item each, and twice as many whenever there are too many windows.
    """

    def __init__(self, unit: str, first: int, row: int) -> None:
        """Watch from some item on.

        Args:
            unit: what an item is, for a message.
            first: the running number of the first item.
            row: the running number of its first row.
        """
        self._unit = unit
        self._first = first
        self._row = row
        self._count = 0
        self._width = 1
        self._windows: tuple[int, ...] = ()
        self._digest = Digest()
        self._has_ended = self._has_told = False

    def watch(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Pass examples on, after a look at them: nobody has changed them yet."""
        for example in examples:
            self._see(example, 1)
            yield example
        self._has_ended = True

    def watch_batches(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same for batches that are there already."""
        for chunk in chunks:
            self._see(chunk.data, chunk.num_rows)
            yield chunk
        self._has_ended = True

    def notes(self) -> ReadReport | None:
        """Tell, once all was seen, what it was; and only once."""
        if not self._has_ended or self._has_told:
            return None
        self._has_told = True
        if self._count % self._width:
            self._close_window()
        reading = Reading(
            unit=self._unit,
            first=self._first,
            count=self._count,
            stop=self._row,
            width=self._width,
            windows=self._windows,
        )
        return ReadReport(reading=reading)

    def _see(self, item: Any, num_rows: int) -> None:
        self._digest.add(item)
        self._count += 1
        self._row += num_rows
        if not self._count % self._width:
            self._close_window()

    def _close_window(self) -> None:
        number, unchecked = self._digest.taken()
        for name in unchecked:
            say_unchecked(name)
        self._digest = Digest()
        self._windows = (*self._windows, number)
        if len(self._windows) == MOST_WINDOWS:
            self._windows, self._width = join_windows(self._windows), 2 * self._width
