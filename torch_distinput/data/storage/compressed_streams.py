"""Compressed streams that stand one after another in a file, read as one; and what errors do."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, Protocol, cast, final


class Decompressor(Protocol):
    """What ``bz2`` and ``lzma`` have for one stream."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing left of what it was given."""

    @property
    def unused_data(self) -> bytes:
        """What came behind the end of the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Go on with the next bytes."""


@final
class FailsForGood(io.RawIOBase):
    """What a decompressor gives, until its first error, which then comes with each read.

    Some decompressors go on behind damage, with anything. Each read is one call of theirs: when
    they are asked for more, they drop what they have at an error.
    """

    def __init__(self, inner: IO[bytes]) -> None:
        """Take what decompresses; it is closed together with this."""
        self._inner = cast(Any, inner)
        self._error: Exception | None = None

    def readable(self) -> bool:
        """It is all that it can do."""
        return True

    def seekable(self) -> bool:
        """As what decompresses."""
        return bool(self._inner.seekable())

    def readinto(self, buffer: Any) -> int:
        """Read what the next bytes of the file give."""
        if self._error is not None:
            raise self._error
        try:
            return cast("int", self._inner.readinto1(buffer))
        except Exception as error:
            self._error = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another place."""
        return cast("int", self._inner.seek(offset, whence))

    def close(self) -> None:
        """Close both."""
        self._inner.close()
        super().close()


@final
class Streams(io.RawIOBase):
    """All streams of a file; one that is damaged is an error wherever it stands.

    The readers of the standard library take a later stream that they cannot decode for garbage
    behind the data, and end there without a word.
    """

    def __init__(
        self, file: IO[bytes], decompressor: Callable[[], Decompressor], *, padding: int = 0
    ) -> None:
        """Begin to read.

        Args:
            file: the compressed file; it stays open.
            decompressor: makes what decompresses one stream.
            padding: zeros may stand behind a stream, a multiple of so many; 0: none may.
        """
        self._file = file
        self._new = decompressor
        self._padding = padding
        self._begin()

    def readable(self) -> bool:
        """It is all that it can do."""
        return True

    def seekable(self) -> bool:
        """As the file; what is passed over is decompressed all the same."""
        return self._file.seekable()

    def readinto(self, buffer: Any) -> int:
        """Read what the next bytes of the file give."""
        with memoryview(buffer) as view, view.cast("B") as content:
            found = self._decompress(len(content))
            content[: len(found)] = found
        self._position += len(found)
        return len(found)

    readinto1 = readinto

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on from another place: a place before this one is reached from the beginning."""
        if whence == io.SEEK_END:
            while self.read(io.DEFAULT_BUFFER_SIZE):
                pass
        target = max(0, offset + (0 if whence == io.SEEK_SET else self._position))
        if target < self._position:
            self._file.seek(0)
            self._begin()
        while (left := target - self._position) and self.read(min(left, io.DEFAULT_BUFFER_SIZE)):
            pass
        return self._position

    def _begin(self) -> None:
        self._stream = self._new()
        self._position = 0
        self._ended = False

    def _decompress(self, size: int) -> bytes:
        while size and not self._ended:
            if self._stream.eof:
                content = self._following()
                if not content:
                    self._ended = True
                    break
                self._stream = self._new()
            else:
                content = self._more() if self._stream.needs_input else b""
                if self._stream.needs_input and not content:
                    msg = "Compressed file ended before the end-of-stream marker was reached"
                    raise EOFError(msg)
            found = self._stream.decompress(content, size)
            if found:
                return found
        return b""

    def _following(self) -> bytes:
        """The beginning of the next stream; nothing at the end of the file."""
        content, zeros = self._stream.unused_data or self._more(), 0
        while self._padding and content.startswith(b"\0"):
            stream = content.lstrip(b"\0")
            zeros += len(content) - len(stream)
            content = stream or self._more()
        if self._padding and zeros % self._padding:
            msg = (
                f"expected zeros behind a compressed stream in multiples of {self._padding}, got "
                f"{zeros}. Write the file anew"
            )
            raise OSError(msg)
        return content

    def _more(self) -> bytes:
        return self._file.read(io.DEFAULT_BUFFER_SIZE)
