"""Reading over a network: in ranges, which are asked for again after a failure that may pass."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, cast, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.storage.retries import Retries, attempt, raise_failure
from torch_distinput.errors import ConfigurationError

_BUFFER_BYTES = 1 << 16
_SMALLEST_REQUEST = 1 << 18
_LARGEST_REQUEST = 4 << 20
"""Large enough that its bytes, not its latency, take the time."""


def count_requests(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the requests in which files of some sizes are read from one end to the other."""
    counts, before, request = np.zeros_like(sizes), 0, _SMALLEST_REQUEST
    while request < _LARGEST_REQUEST:
        counts += sizes > before
        before, request = before + request, 2 * request
    rest: NDArray[np.int64] = np.maximum(0, sizes - before)
    return counts - -rest // _LARGEST_REQUEST


def open_ranged(
    fetch: Callable[[int, int], bytes], size: int, *, path: str, retries: Retries
) -> IO[bytes]:
    """Open a file of ``size`` bytes of which ``fetch(start, stop)`` gets a range."""
    return cast("IO[bytes]", io.BufferedReader(_Ranged(fetch, size, path, retries), _BUFFER_BYTES))


def forward(opened: IO[bytes]) -> IO[bytes]:
    """A file that only goes forward, and returns fewer bytes than asked for only at its end."""
    return cast("IO[bytes]", io.BufferedReader(_Raw(opened), _BUFFER_BYTES))


def sized(opened: IO[bytes], size: int, *, path: str) -> IO[bytes]:
    """A seekable file whose end is an error before ``size`` bytes."""
    return cast("IO[bytes]", io.BufferedReader(_Sized(opened, size, path), _BUFFER_BYTES))


def check_copy(opened: IO[bytes], size: int, *, path: str) -> None:
    """Refuse a copy of a file, kept by fsspec, that has not the size of the file.

    Raises:
        EOFError: as where a file has changed.
    """
    found = opened.seek(0, io.SEEK_END)
    opened.seek(0)
    if found != size:
        opened.close()
        msg = (
            f"{path}: expected {size} bytes, as it was listed, got a copy of {found}. The file has "
            "changed since fsspec copied it, and fsspec does not copy it anew: empty the folder of "
            "the copies, or name another one (cache_storage in storage_options), and start again"
        )
        raise EOFError(msg)


class _Raw(io.RawIOBase):
    """What fsspec opens, which need not be a RawIOBase, as one."""

    def __init__(self, opened: IO[bytes]) -> None:
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._opened.read(len(buffer))
        except Exception as error:  # noqa: BLE001 - raised again
            raise_failure(error)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._opened.close()
        super().close()


@final
class _Sized(_Raw):
    """One that knows where it must end."""

    def __init__(self, opened: IO[bytes], size: int, path: str) -> None:
        super().__init__(opened)
        self._size = size
        self._path = path

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._opened.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._opened.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if not count and len(buffer) and (position := self.tell()) < self._size:
            msg = (
                f"{self._path}: expected {self._size} bytes, as it was listed, got {position}. The "
                "file has changed since it was listed: distribute it again"
            )
            raise EOFError(msg)
        return count


@final
class _Ranged(io.RawIOBase):
    """A seekable file made of requests, which grow while it is read from one end to the other."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], size: int, path: str, retries: Retries
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._path = path
        self._retries = retries
        self._position = 0
        self._ahead = memoryview(b"")  # what was fetched from the position on, and not read yet
        self._request = _SMALLEST_REQUEST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        position = max(0, base + offset)
        forward = position - self._position
        if 0 <= forward <= len(self._ahead):
            self._ahead = self._ahead[forward:]
        else:
            self._ahead, self._request = memoryview(b""), _SMALLEST_REQUEST
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        if not self._ahead:
            start = self._position
            stop = min(start + max(len(buffer), self._request), self._size)
            if start >= stop:
                return 0
            data = attempt(lambda: self._range(start, stop), self._retries)
            self._ahead = memoryview(data)  # its slices are no copies
            self._request = min(2 * self._request, _LARGEST_REQUEST)
        count = min(len(buffer), len(self._ahead))
        buffer[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        self._position += count
        return count

    def _range(self, start: int, stop: int) -> bytes:
        data = self._fetch(start, stop)
        if len(data) == self._size > stop - start:
            msg = (
                f"{self._path}: expected a server that sends ranges of a file, got the whole file. "
                "Write 'simplecache::' before the URL: the file is copied to this machine first."
            )
            raise ConfigurationError(msg)
        if len(data) != stop - start:
            msg = (
                f"{self._path}: expected {stop - start} bytes from {start} on, got {len(data)}. "
                "The file has changed, or the connection was cut."
            )
            raise EOFError(msg)
        return data
