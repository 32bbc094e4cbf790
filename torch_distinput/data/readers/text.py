"""Lines of text: one example a line, without its line end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from torch_distinput.errors import SourceError

_BLOCK_BYTES = 1 << 20


def read_lines(file: IO[bytes], path: str) -> Iterator[list[str]]:
    r"""Yield the lines of a file in chunks, in order (``tf.data.TextLineDataset``).

    Lines end with ``\n`` or ``\r\n``; a last line without an end counts, an empty rest does not.
    """
    number = 0
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield _decoded(lines, path, number)
            number += len(lines)
    if rest:
        yield _decoded([rest], path, number)


def _decoded(lines: list[bytes], path: str, number: int) -> list[str]:
    """Decode all lines at once; only when that fails look for the one to blame."""
    try:
        text = b"\n".join(lines).decode()
    except UnicodeDecodeError:
        for offset, line in enumerate(lines):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                msg = f"{path}, line {number + offset + 1}: expected UTF-8 text, got {error}."
                raise SourceError(msg) from error
        raise
    return [line.removesuffix("\r") for line in text.split("\n")]
