"""Lines of text: one example a line, without its line end."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.formats import find_format
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.packed_strings import PackedStrings, is_ascii, tensor_over

_PART_BYTES = 4 << 20
_SMALLEST_PART = 1 << 6
LINE_END = 0x0A
_PIECE_BYTES = 1 << 18
_DECODED_BYTES = 1 << 16
"""A block, its text and its lines fit into a core's cache together."""
_LONG_LINE = 512
"""From so many characters on, a call of its own for each line end pays."""
_WORD = 8
_ONE, _TOP = np.uint64(1), np.uint64(56)
_BYTES = np.uint64(0x0001020304050607)


def line_parts(file: InputFile) -> Sequence[Part]:
    """Cut a file of lines into byte ranges; how many lines are in each is not known."""
    if file.size is None:
        return (Part(),)
    size = max(_SMALLEST_PART, file.part_size(file.size, _PART_BYTES))
    bounds = [*range(0, file.size, size), file.size]
    return [Part(start=start, stop=stop, first_record=start) for start, stop in pairwise(bounds)]


def line_blocks(file: InputFile, part: Part) -> Iterator[bytes]:
    r"""Yield the lines that begin in a part, in blocks of whole lines that end with ``\n``.

    Only the last line of the file may lack its end.
    """
    return _blocks(file, part, CHUNK_BYTES, whole_lines=True)


def _blocks(file: InputFile, part: Part, size: int, *, whole_lines: bool) -> Iterator[bytes]:
    """Yield the lines that begin in a part; a block may end anywhere, or only with a line."""
    with file.open() as opened:
        if part.start:
            opened.seek(part.start - 1)
            _skip_line(opened)  # it began before the part
            position = opened.tell()
        else:
            position = 0
        while part.stop is None or position < part.stop:
            wanted = size if part.stop is None else min(size, part.stop - position)
            block = opened.read(wanted)
            if not block:
                return
            is_last, error = position + len(block) == part.stop, None
            if (whole_lines or is_last) and not block.endswith(b"\n"):
                try:
                    block += opened.readline()
                except Exception as broken:  # noqa: BLE001 - raised behind the lines before it
                    block, error = block[: block.rfind(b"\n") + 1], broken
            content = block if position else block.removeprefix(codecs.BOM_UTF8)
            if content:  # to whoever reads on, nothing is the end
                yield content
            if error is not None:
                raise error
            position += len(block)


def _skip_line(opened: IO[bytes]) -> None:
    while (piece := opened.readline(CHUNK_BYTES)) and not piece.endswith(b"\n"):
        pass


@dataclass(frozen=True, slots=True)
class Text(Reader):
    r"""Lines of UTF-8 text (``tf.data.TextLineDataset``): a batch is a list of ``str``.

    Lines end with ``\n`` or ``\r\n``; a last line without an end counts, an empty rest does not.
    A byte order mark at the beginning of a file, and a ``\r`` at its end, belong to no line.

    Attributes:
        packed: a batch is packed strings instead; see :class:`FileDataset`.
    """

    packed: bool = False

    measure = "byte"

    def with_packed_strings(self) -> Text:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut at line ends."""
        return line_parts(file)

    def read(self, file: InputFile, part: Part) -> Iterator[list[str] | PackedStrings]:
        """Yield lines."""
        number = 0
        try:
            for lines in (_read_packed if self.packed else _read_lists)(file, part):
                yield lines
                number += len(lines)
        except UnicodeDecodeError:  # behind the lines so far: find those to blame
            good = islice(_decode_one_by_one(file, part), number, None)
            for found in _join(([line], len(line)) for line in good):
                yield PackedStrings.from_list(found, str) if self.packed else found


def _read_lists(file: InputFile, part: Part) -> Iterator[list[str]]:
    return _join(_cut_blocks(file, part))


def _join(pieces: Iterator[tuple[list[str], int]]) -> Iterator[list[str]]:
    """Join lists of lines, with their bytes, to chunks; those before an error come first."""
    lines: list[str] = []
    num_bytes = 0
    try:
        for found, size in pieces:
            lines += found
            num_bytes += size
            if lines and num_bytes >= CHUNK_BYTES:
                yield lines
                lines, num_bytes = [], 0
    except Exception:
        if lines:
            yield lines
        raise
    if lines:
        yield lines


def _cut_blocks(file: InputFile, part: Part) -> Iterator[tuple[list[str], int]]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    rest, has_returns, cut = "", False, _cut_short
    for block in _blocks(file, part, _DECODED_BYTES, whole_lines=False):
        text = decode(block)
        has_returns = has_returns or b"\r" in block
        found = cut(text)
        if len(found) == 1:
            rest += text  # CPython appends in place, however many blocks a line has
            continue
        cut = _cut_long if len(found) * _LONG_LINE < len(text) else _cut_short
        found[0] = rest + found[0]
        rest = found.pop()
        yield [line.removesuffix("\r") for line in found] if has_returns else found, len(block)
    decode(b"", final=True)
    if rest:
        yield [rest.removesuffix("\r")], len(rest)


def _cut_short(text: str) -> list[str]:
    """Lines, and what is behind the last line end."""
    return text.split("\n")


def _cut_long(text: str) -> list[str]:
    """The same. ``split`` looks at each character by itself, ``index`` at many together."""
    lines: list[str] = []
    start = 0
    try:
        while True:
            end = text.index("\n", start)
            lines.append(text[start:end])
            start = end + 1
    except ValueError:
        return [*lines, text[start:]]


def _read_packed(file: InputFile, part: Part) -> Iterator[PackedStrings]:
    for block in line_blocks(file, part):
        yield _pack(block)


def _pack(block: bytes) -> PackedStrings:
    """The lines of a block by their ends, without their ends.

    Raises:
        UnicodeDecodeError: for what is no UTF-8.
    """
    if not is_ascii(np.frombuffer(block, np.uint8)):
        block.decode()
    is_open = bool(block) and not block.endswith(b"\n")
    if b"\r" in block:
        block = (block.removesuffix(b"\r") if is_open else block).replace(b"\r\n", b"\n")
    ends = find_byte(np.frombuffer(block, np.uint8), LINE_END)
    offsets = np.zeros(len(ends) + 1 + is_open, np.int64)
    offsets[1 : len(ends) + 1] = ends - np.arange(len(ends))  # the ends before are left out
    lines = block.replace(b"\n", b"")
    offsets[-1] = len(lines)
    return PackedStrings(tensor_over(lines), torch.from_numpy(offsets))


def find_byte(
    content: NDArray[np.uint8], wanted: int, *, mask: int | None = None
) -> NDArray[np.int64]:
    """The places of a byte that is rare: first eight bytes at a time.

    Piece by piece, as fresh memory costs more than to look through it.

    Args:
        content: what to search.
        wanted: the byte.
        mask: the bits of the content to look at; None: all.
    """
    found = np.zeros(_PIECE_BYTES, np.bool_)
    words = found.view(np.uint64)
    places = [np.empty(0, np.int64)]
    for start in range(0, len(content), _PIECE_BYTES):
        piece = content[start : start + _PIECE_BYTES]
        masked = piece if mask is None else piece & np.uint8(mask)
        np.equal(masked, wanted, out=found[: len(piece)])
        found[len(piece) :] = False
        hits = np.flatnonzero(words != 0)
        values = words[hits]
        if (values & (values - _ONE)).any():  # two in one word
            word, byte = found.reshape(-1, _WORD)[hits].nonzero()
            hits = hits[word]
        else:  # 1 << 8 * byte, as memory is little-endian: so many bytes further, byte is on top
            byte = ((values * _BYTES) >> _TOP).view(np.int64)
        places.append(start + _WORD * hits + byte)
    return np.concatenate(places)


def count_byte(content: NDArray[np.uint8], wanted: int, *, mask: int) -> int:
    """How often a byte is there, of which only the bits of ``mask`` are looked at."""
    pieces = range(0, len(content), _PIECE_BYTES)
    cut = (content[start : start + _PIECE_BYTES] for start in pieces)
    return sum(int(np.count_nonzero((piece & np.uint8(mask)) == wanted)) for piece in cut)


def _decode_one_by_one(file: InputFile, part: Part) -> Iterator[str]:
    """The lines of a part but for the bad ones, which are told."""
    number = 0
    for block in line_blocks(file, part):
        for line in block.removesuffix(b"\n").split(b"\n"):
            number += 1
            try:
                yield line.decode().removesuffix("\r")
            except UnicodeDecodeError as error:
                after = f" after byte {part.start}" if part.start else ""
                name = find_format(file.path)
                cure = "Write the file anew in UTF-8" if name is None else f"Pass reader={name!r}"
                reason = f"expected UTF-8 text, got {error}. {cure}"
                file.bad(f"line {number}{after}", reason)
