"""Compressed files, told by the end of their names: .gz, .bz2, .xz and .zst.

All four read files of several members or frames, and raise ``EOFError`` for a truncated one. What
stands behind the first one and is none is an error, but for zeros where a format has them. What was
decompressed before an error is handed over before it is raised.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import IO, cast, final

from torch_distinput.data.storage.compressed_streams import FailsForGood, Streams
from torch_distinput.errors import ConfigurationError

Decompress = Callable[[IO[bytes]], IO[bytes]]

_PIECE_BYTES = 1 << 16


def decompressor(path: str) -> Decompress | None:
    """Return what decompresses a file of this name; None if it is not compressed."""
    name = content_name(path).lower()
    names = (name, without_query(name))
    found = (open_ for end, open_ in _BY_SUFFIX.items() if any(n.endswith(end) for n in names))
    return next(found, None)


def without_query(url: str) -> str:
    """A link to the web without its query, which may be a signature; names elsewhere have ``?``."""
    is_link = url.rpartition("::")[2].startswith(("http://", "https://"))
    return url.partition("?")[0] if is_link else url


def content_name(path: str) -> str:
    """The name of what is read: of the member of an archive, behind a cache of the file."""
    return next((link for link in path.split("::") if "://" in link), path)


@final
class Decompressed(io.BufferedReader):
    """Closes the compressed file together with what decompresses it."""

    def __init__(self, raw: IO[bytes], decompress: Decompress) -> None:
        """Begin to decompress an open file."""
        self._compressed = raw
        try:
            super().__init__(FailsForGood(decompress(raw)))
        except BaseException:
            raw.close()
            raise

    def read(self, size: int | None = -1, /) -> bytes:
        """As any file; before an error, what there is: the next read raises it."""
        if size is None or size < 0:
            return super().read()
        pieces: list[bytes] = []
        try:
            while size and (piece := self.read1(min(size, _PIECE_BYTES))):
                pieces.append(piece)
                size -= len(piece)
        except Exception:
            if not pieces:
                raise
        return b"".join(pieces)

    def close(self) -> None:
        """Close both."""
        super().close()
        self._compressed.close()


def _gzip(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=cast("IO[bytes]", _Begun(file)), mode="rb"))


@final
class _Begun:
    """A file for gzip, which takes one without a byte for an empty one that was compressed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._is_new = True

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        if self._is_new and not data:
            msg = "Compressed file ended before its first byte"
            raise EOFError(msg)
        self._is_new = False
        return data


def _bz2(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", Streams(file, bz2.BZ2Decompressor))


def _xz(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", Streams(file, lzma.LZMADecompressor, padding=4))


def _zstd(file: IO[bytes]) -> IO[bytes]:
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return cast("IO[bytes]", import_module(module).ZstdFile(file))
    except ModuleNotFoundError as error:
        msg = "Reading .zst files needs a library: pip install 'torch_distinput[zstd]'."
        raise ConfigurationError(msg) from error


_BY_SUFFIX: Mapping[str, Decompress] = {".gz": _gzip, ".bz2": _bz2, ".xz": _xz, ".zst": _zstd}
