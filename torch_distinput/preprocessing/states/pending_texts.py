"""Texts that wait to be counted, many at once: pyarrow counts them faster than a dict of Python.

    texts, joined    a b . a b . c .        NUL is between them and at the end
    for pyarrow      ab. ab. c.             each with its NUL: nothing is moved
    counted          ab 2, c 1              the tokens of all batches, once each

A dict waits for memory at each token, as its tokens are objects of their own. Only distinct tokens
become entries of one here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.packed_strings import PackedStrings

_MOST_BYTES = 1 << 24

_Strings = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Their bytes, one string behind the other, and where each begins and the last one ends."""


@final
class PendingTexts:
    """Texts of some batches."""

    def __init__(self) -> None:
        """Begin without any."""
        self._num_bytes = 0
        self._joined: list[_Strings] = []
        self._packed: list[_Strings] = []

    @property
    def is_full(self) -> bool:
        """Whether they are to be counted before more come."""
        return self._num_bytes >= _MOST_BYTES

    def add(self, texts: list[Any]) -> bool:
        """Add texts; False, and nothing is added, if it cannot be done.

        That is so without pyarrow, for values that are no ``str``, and for texts with NUL or with
        what is no UTF-8.
        """
        if not texts or not _has_arrow():
            return False
        try:
            joined = ("\0".join(texts) + "\0").encode()
        except (TypeError, UnicodeEncodeError):
            return False
        memory = np.frombuffer(joined, np.uint8)
        ends = np.flatnonzero(memory == 0)
        if len(ends) != len(texts):
            return False
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.add(ends, 1, out=offsets[1:])
        self._put(self._joined, (memory, offsets))
        return True

    def add_packed(self, strings: PackedStrings) -> bool:
        """Add a copy of packed strings; False if one is missing, or without pyarrow."""
        if strings.missing is not None or not len(strings) or not _has_arrow():
            return False
        data, offsets = strings.to("cpu").tensors()  # offsets from 0
        # What a batch lies in may be written over. To copy it with torch would start threads.
        self._put(self._packed, (data.numpy().copy(), offsets.numpy().copy()))
        return True

    def take_counts(self) -> Iterator[tuple[list[str], list[int]]]:
        """Yield tokens and how often each occurred, and have none any more."""
        joined, packed = self._joined, self._packed
        self._num_bytes, self._joined, self._packed = 0, [], []
        if joined:
            content, _, counts = _count(joined)
            tokens = content.decode().split("\0")
            tokens.pop()  # what is behind the last NUL
            yield tokens, counts
        if packed:
            content, ends, counts = _count(packed)
            pieces = zip([0, *ends], ends, strict=False)
            yield [content[i:j].decode("utf-8", "surrogateescape") for i, j in pieces], counts

    def _put(self, chosen: list[_Strings], strings: _Strings) -> None:
        chosen.append(strings)
        self._num_bytes += sum(array.nbytes for array in strings)


def _count(parts: list[_Strings]) -> tuple[bytes, list[int], list[int]]:
    """The bytes of distinct strings one behind the other, their ends, and their counts."""
    arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    kind = arrow.large_binary()
    arrays = [
        arrow.Array.from_buffers(
            kind, len(offsets) - 1, [None, arrow.py_buffer(offsets), arrow.py_buffer(memory)]
        )
        for memory, offsets in parts
    ]
    found = compute.value_counts(arrow.chunked_array(arrays, kind))
    values, counts = found.field(0), found.field(1).to_numpy()
    _, offsets, memory = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[1 : len(values) + 1]
    content = b"" if memory is None else memory.to_pybytes()  # no string may have any bytes
    return content[: ends[-1]], ends.tolist(), counts.tolist()


@cache
def _has_arrow() -> bool:
    try:
        import_module("pyarrow.compute")
    except ImportError:
        return False
    return True
