"""Strings as spans of one memory, and from there as rows of one width.

    memory    a b . c d e       what is between the strings belongs to none of them
    starts    0     3
    lengths   2     3           -1 for None

All text is UTF-8. Bytes that are no UTF-8 are kept: as a ``str`` they are surrogate escapes
(``os.fsdecode`` does the same).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_distinput.packed_strings import PackedStrings

MISSING = -1
"""The length of a string that is not there."""

NARROW = 64
"""Strings of so many bytes are padded all at once, also where most of them are shorter."""

_BLOCK_BYTES = 1 << 24
_WORD = 8
# The first 0 to 8 bytes of a word, which is little-endian on every machine that torch runs on.
_FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], np.uint64).view(np.int64)


class ByteRows(NamedTuple):
    """Strings, one for each row.

    Attributes:
        memory: uint8 ``(bytes,)``.
        starts: int64 ``(rows,)``, where each begins.
        lengths: int64 ``(rows,)``, in bytes; -1 for None.
    """

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of_packed(strings: PackedStrings) -> ByteRows:
        """The rows of packed strings, without a copy where they are in host memory."""
        own = strings.to("cpu")
        offsets = own.offsets.numpy()
        lengths = np.diff(offsets)
        if own.missing is not None:
            lengths[own.missing.numpy()] = MISSING
        return ByteRows(np.ascontiguousarray(own.data.numpy()), offsets[:-1], lengths)

    def longest(self) -> int:
        """Bytes of the longest string."""
        return int(self.lengths.max(initial=0))

    def take(self, rows: NDArray[np.int64]) -> ByteRows:
        """Some of the rows, in the same memory."""
        return ByteRows(self.memory, self.starts[rows], self.lengths[rows])

    def leave_room(self, width: int) -> ByteRows:
        """The same rows in a memory that has ``width`` bytes from the start of each on."""
        room = len(self.memory) - int(self.starts.max(initial=0))
        if room >= width:
            return self
        more = np.zeros(width - room, np.uint8)
        return self._replace(memory=np.concatenate([self.memory, more]))

    def pad(self, width: int) -> NDArray[np.uint8]:
        """Rows of ``width`` bytes, rounded up to whole words; zero behind the end of each string.

        A window of that width is copied from the start of each string on, as one item of NumPy's;
        then what does not belong to the string is taken out, for all rows or all words at once.
        """
        num_words = max(1, -(-width // _WORD))
        memory = self.leave_room(num_words * _WORD).memory
        windows: NDArray[np.void] = np.ndarray(
            len(memory) - num_words * _WORD + 1, f"V{num_words * _WORD}", memory, strides=(1,)
        )
        words = windows[self.starts].view(np.int64).reshape(len(self.starts), num_words)
        rows = words.view(np.uint8)
        if num_words <= len(rows):
            for place in range(num_words):
                bytes_left = self.lengths - place * _WORD
                words[:, place] &= _FIRST_BYTES.take(bytes_left, mode="clip")
        else:
            for row, length in zip(rows, self.lengths.tolist(), strict=True):
                row[max(length, 0) :] = 0
        return rows

    def split_by_length(self) -> Iterator[NDArray[np.int64]]:
        """Yield rows in blocks that take little more than their strings' bytes when padded."""
        by_length = np.argsort(self.lengths, kind="stable")
        ordered = self.lengths[by_length]
        first = 0
        while first < len(ordered):
            width = 2 * max(int(ordered[first]), NARROW // 2)
            last = int(np.searchsorted(ordered, width, side="right"))
            last = min(last, first + max(1, _BLOCK_BYTES // width))
            yield by_length[first:last]
            first = last


def join_texts(texts: Sequence[str | None]) -> ByteRows:
    """The rows of texts.

    Raises:
        TypeError: for what is neither ``str`` nor None.
        ValueError: for a surrogate that stands for no byte.
    """
    return join_plain(texts) or _join_each(texts)


def join_plain(texts: Sequence[object]) -> ByteRows | None:
    """The rows of texts, without a look at each; None if one is no ``str``, or is not plain.

    NUL comes between them, which is searched for afterwards: three times as fast as to encode
    each text and to ask for its length.
    """
    try:
        joined = "\0".join(texts).encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return None
    memory = np.frombuffer(joined, np.uint8)
    separators = np.flatnonzero(memory == 0)
    if len(separators) != len(texts) - 1:  # a text has one, or there is none
        return None
    starts, stops = np.empty((2, len(texts)), np.int64)
    starts[0], stops[-1] = 0, len(memory)
    np.add(separators, 1, out=starts[1:])
    stops[:-1] = separators
    return ByteRows(memory, starts, stops - starts)


def _join_each(texts: Sequence[str | None]) -> ByteRows:
    encoded = [b"" if text is None else to_bytes(text) for text in texts]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    starts = lengths.cumsum() - lengths
    if None in texts:
        lengths[[text is None for text in texts]] = MISSING
    return ByteRows(np.frombuffer(b"".join(encoded), np.uint8), starts, lengths)


def to_str(value: bytes) -> str:
    """Decode UTF-8, and keep bytes that are none."""
    return value.decode("utf-8", "surrogateescape")


def to_bytes(value: str) -> bytes:
    """Undo :func:`to_str`.

    Raises:
        ValueError: for a surrogate that stands for no byte.
    """
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        msg = (
            f"Expected text that UTF-8 can express, got {value!r:.80}: {error.reason}. Replace "
            "them before: text.encode('utf-8', 'replace').decode()."
        )
        raise ValueError(msg) from None
