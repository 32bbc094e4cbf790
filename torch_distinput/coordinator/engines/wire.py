"""One frame over a connection: a pickle, and beside it the arrays in it, which nobody copies.

    | bytes of the text, number of arrays | bytes of each array | text | array | array | ...

There is one frame under way on a connection at a time, so the first read may take as much as there
is: a small frame is one call of the system on either side.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from torch_distinput.coordinator.engines import pickling
from torch_distinput.coordinator.engines.message_memory import message_memory

_HEAD = struct.Struct("<QQ")
_AHEAD_BYTES = 1 << 16
_MOST_PARTS = 512
"""In one call of the system: POSIX allows 1024 on Linux, and 16 at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A value on its way to another process.

    Attributes:
        text: its pickle, of protocol 5.
        arrays: contents of what was left out of the pickle, each a vector of bytes.
    """

    text: bytes | memoryview
    arrays: Sequence[Any]


def to_frame(value: Any) -> Frame:
    """Return the frame of a value; its arrays share memory with it until it is sent.

    Raises whatever pickle does for a value that cannot be pickled.
    """
    try:
        return _pickled(value, pickle)
    except Exception:  # something without a name in a module: it takes longer by value
        if (module := pickling.by_value()) is pickle:
            raise
        return _pickled(value, module)


def _pickled(value: Any, module: Any) -> Frame:
    arrays: list[pickle.PickleBuffer] = []
    text = module.dumps(value, protocol=5, buffer_callback=arrays.append)
    return Frame(text=text, arrays=[array.raw() for array in arrays])


def to_value(frame: Frame) -> Any:
    """Return the value, whose arrays are those of the frame."""
    return pickle.loads(frame.text, buffers=frame.arrays)  # noqa: S301 - from our own process


def send(file: int, frame: Frame) -> None:
    """Write a frame to a connection, given by its file descriptor.

    Raises:
        ConnectionError: the other side is gone.
    """
    sizes = [len(array) for array in frame.arrays]
    head = _HEAD.pack(len(frame.text), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    parts = [memoryview(part) for part in (head, frame.text, *frame.arrays) if len(part)]
    while parts:
        parts = _left(parts, os.writev(file, parts[:_MOST_PARTS]))


def _left(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is still to be written, or read, after so many bytes."""
    for index, end in enumerate(accumulate(map(len, parts))):
        if end > done:
            return [parts[index][len(parts[index]) - (end - done) :], *parts[index + 1 :]]
    return []


def receive(file: int) -> Frame:
    """Read a frame.

    Raises:
        EOFError: the other side is gone.
        ConnectionError: the other side is gone, and with it what was on its way.
    """
    ahead = memoryview(os.read(file, _AHEAD_BYTES))
    head, ahead = _take(file, ahead, _HEAD.size)
    text_size, num_arrays = _HEAD.unpack(head)
    sizes, ahead = _take(file, ahead, 8 * num_arrays)
    text, ahead = _take(file, ahead, text_size)
    arrays = message_memory().take(struct.unpack(f"<{num_arrays}Q", sizes))
    _fill(file, arrays, ahead)
    return Frame(text=text, arrays=arrays)


def _take(file: int, ahead: memoryview, size: int) -> tuple[memoryview, memoryview]:
    """The next bytes of a connection, and what of those read already comes after them."""
    if size <= len(ahead):
        return ahead[:size], ahead[size:]
    whole = np.empty(size, dtype=np.uint8)
    _fill(file, [whole], ahead)
    return memoryview(whole), memoryview(b"")  # type: ignore[arg-type]


def _fill(file: int, arrays: Sequence[Any], ahead: memoryview) -> None:
    """Write into arrays what was read already, and read the rest of them."""
    parts = [memoryview(array) for array in arrays if len(array)]
    while parts and len(ahead):
        num_here = min(len(parts[0]), len(ahead))
        parts[0][:num_here] = ahead[:num_here]
        parts, ahead = _left(parts, num_here), ahead[num_here:]
    while parts:
        if not (num_read := os.readv(file, parts[:_MOST_PARTS])):
            msg = "the other side closed the connection"
            raise EOFError(msg)
        parts = _left(parts, num_read)
