"""Files of frames, a header and a payload each: walk them, and find the way back after damage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, final

from torch_distinput.data.formats.reader import CHUNK_BYTES

_SEEK_BYTES = 1 << 17
"""So much is read at a time where payloads are passed over: small ones cost no seek each."""
_PIECE_BYTES = 1 << 24

Report = Callable[[str, object], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What a scanner sees in a window.

    Attributes:
        found: the frames that end within the room, in the scanner's own form.
        following: where the frame after them begins, counted from the window's first byte.
        needed: how many bytes from there on must be in the window to go on.
        error: what is wrong with the frame that begins there; None if it is sound so far.
        after: where the frame behind that one begins; None if it must be searched for.
    """

    found: Any
    following: int
    needed: int
    error: str | None = None
    after: int | None = None


class Scanner(ABC):
    """Knows what the frames of one format look like."""

    header_bytes: int
    what: str

    @abstractmethod
    def scan(self, window: bytes, room: int) -> Scan:
        """Find the frames whose header is in the window, and that end within ``room`` bytes."""

    @abstractmethod
    def find(self, window: bytes, base: int, room: int | None) -> int | None:
        """The first place in a window where a frame begins for certain, after damage.

        ``base`` is the window's place in the file; ``room`` is what is left of the file from
        there on, if it is known.
        """


class Walked(NamedTuple):
    """Frames of one window; they are counted from its first byte."""

    window: bytes
    base: int
    found: Any


def walk(
    opened: IO[bytes],
    scanner: Scanner,
    *,
    start: int,
    stop: int | None,
    report: Report | None,
) -> Iterator[Walked]:
    """Yield the frames from one place of a file to another, window by window.

    Args:
        opened: the file, at its beginning.
        scanner: the format.
        start: where the first frame begins.
        stop: where the last one ends; None: at the end of the file.
        report: called for each damaged place, after which the walk goes on where a frame is found
            for certain. None: whoever walks wants the headers only, so that payloads are passed
            over (``stop`` must be known), and damage is left for others to report.
    """
    window = _Window(opened, start, stop, CHUNK_BYTES if report else _SEEK_BYTES)
    position, needed = start, scanner.header_bytes
    while window.move(position, needed):
        error, after = window.shortage(needed), None
        if error is None:
            room = len(window.data) if report or stop is None else stop - position
            scan = scanner.scan(window.data, room)
            if scan.found is not None:
                yield Walked(window.data, position, scan.found)
            after = None if scan.after is None else position + scan.after
            position, needed, error = position + scan.following, scan.needed, scan.error
        if error is not None:
            if report:
                report(f"{scanner.what} at byte {position}", error)
            after = _search(window, scanner, position + 1) if after is None else after
            if after is None:
                return
            position, needed = after, scanner.header_bytes


def _search(window: _Window, scanner: Scanner, position: int) -> int | None:
    while window.move(position, scanner.header_bytes):
        if window.shortage(scanner.header_bytes):
            return None
        room = None if window.stop is None else window.stop - position
        found = scanner.find(window.data, position, room)
        if found is not None:
            return position + found
        position += len(window.data) - scanner.header_bytes + 1
    return None


@final
class _Window:
    """Some bytes of a file in memory. Seeks only where bytes are left out."""

    def __init__(self, opened: IO[bytes], start: int, stop: int | None, size: int) -> None:
        self.data = b""
        self.stop = stop
        self._opened = opened
        self._base = start
        self._size = size
        self._error: Exception | None = None
        if start:
            opened.seek(start)

    def move(self, position: int, needed: int) -> bool:
        """Begin at ``position`` and hold ``needed`` bytes, fewer at the end; False: none left."""
        skipped = position - self._base
        kept = self.data[skipped:] if skipped else self.data
        gap = skipped - len(self.data)
        if gap > self._size and self.stop is not None:
            self._opened.seek(position)
        else:
            for _ in _pieces(self._opened, gap):
                pass
        wanted = max(needed - len(kept), self._size) if len(kept) < needed else 0
        if self.stop is not None:
            wanted = min(wanted, self.stop - position - len(kept))
        self.data = b"".join((kept, *self._read(wanted)))
        self._base = position
        if self._error is not None and len(self.data) < needed:
            raise self._error
        return bool(self.data)

    def _read(self, wanted: int) -> Iterator[bytes]:
        """Up to an error: the frames before it come first."""
        try:
            yield from _pieces(self._opened, wanted if self._error is None else 0)
        except Exception as error:  # noqa: BLE001 - raised where more is needed
            self._error = error

    def shortage(self, needed: int) -> str | None:
        if len(self.data) >= needed:
            return None
        return f"expected {needed} bytes, but the data ends after {len(self.data)}: it was cut off"


def _pieces(opened: IO[bytes], wanted: int) -> Iterator[bytes]:
    """Read so much, or all there is; a wrong number must not reserve memory it will not fill."""
    while wanted > 0 and (piece := opened.read(min(wanted, _PIECE_BYTES))):
        wanted -= len(piece)
        yield piece
