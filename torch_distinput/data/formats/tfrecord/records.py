"""TFRecord files: framed payloads with checksums, perhaps ``tf.train.Example`` messages."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import compress, pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats import sidecar_index
from torch_distinput.data.formats.framing import Scan, Scanner, walk
from torch_distinput.data.formats.reader import Part, Reader
from torch_distinput.data.formats.tfrecord.tf_example import (
    FOOTER_BYTES,
    HEADER_BYTES,
    Field,
    fields,
    parse_examples,
)
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError
from torch_distinput.packed_strings import PackedStrings, join_bytes, tensor_over

_FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES  # and the checksum of the payload
_MASK = 0xA282EAD8
_SEARCH_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class TFRecord(Reader):
    """Records of ``tf.data.TFRecordDataset``, uncompressed or compressed as a whole.

    A batch is a list of ``bytes``; with ``features`` it is a dict of the columns of
    ``tf.train.Example`` messages (``tf.io.parse_example``). All checksums are checked. After a
    damaged length, or a frame that is cut off, reading goes on at the next place where both
    checksums fit.

    Attributes:
        features: what to take from the examples, by name::

                {
                    "id": torch.int64,                # one number a row: int64 or float32
                    "image": (torch.float32, (28, 28)),  # this shape in each row
                    "weight": (torch.float32, (), 1.0),  # 1.0 where the feature is missing
                    "ids": (torch.int64, ...),        # any number of them: a jagged tensor
                    "raw": bytes,                     # a list, one item a row
                    "text": str,                      # the same, decoded from UTF-8
                    "tags": (str, ...),               # an array of lists
                }

            A missing feature of any number of values is an empty row; any other one without a
            default is an error. Text and bytes with a shape are NumPy arrays of objects.
        index: where to keep the places of the records, so that the next run need not walk over
            all frames to find them: ``"memory"``, not at all; ``"beside"``, next to each file as
            ``<file>.index.npz``; or the path or URL of a folder.
        packed: records, and features with one text or bytes a row, are packed strings; see
            :class:`FileDataset`.
    """

    features: Mapping[str, Any] | None = None
    index: str = "memory"
    packed: bool = False

    def __post_init__(self) -> None:
        """Refuse descriptions that mean nothing."""
        sidecar_index.check_index(self.index)
        if self.features is not None:
            fields(self.features)

    def with_packed_strings(self) -> TFRecord:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    @property
    def counted(self) -> bool:  # type: ignore[override]  # read-only, as the class is frozen
        """With a kept index."""
        return self.index != "memory"

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut between records, 4 MiB each at most."""
        return sidecar_index.index_parts(file, self.index, "tfrecord", _cuts)

    def read(self, file: InputFile, part: Part) -> Iterator[list[bytes] | PackedStrings]:
        """Yield payloads; where packed examples are to be made of them, whole frames.

        Frames are parsed where they lie. For lists payloads are as fast, and much faster behind a
        shuffle, which moves pointers.
        """
        crc, frames = _crc32c(), self.packed and self.features is not None
        with file.open() as opened:
            walked = walk(opened, _Frames(), start=part.start, stop=part.stop, report=file.bad)
            for window, base, bounds in walked:
                spans = pairwise(bounds.tolist())
                payloads: Any = (window[i + HEADER_BYTES : j - FOOTER_BYTES] for i, j in spans)
                if not frames:  # else each is let go at once: its memory is used again
                    payloads = list(payloads)
                stored = _uint32_at(window, bounds[1:] - FOOTER_BYTES)
                sound = _mask(list(map(crc, payloads))) == stored
                for number in np.flatnonzero(~sound).tolist():
                    reason = "the checksum of the payload does not fit: it is damaged"
                    file.bad(f"record at byte {base + bounds[number]}", reason)
                if frames and sound.any():
                    yield _choose_frames(window, bounds, sound)
                elif sound.any():
                    chosen = list(compress(payloads, sound.tolist()))
                    packed = self.packed
                    yield PackedStrings(*join_bytes(chosen), dtype=bytes) if packed else chosen

    def decode(self, records: list[bytes] | PackedStrings) -> Batch:
        """Parse examples, if the features are given: payloads in a list, or packed frames."""
        if self.features is None:
            return records
        return parse_examples(records, self._fields(), packed=self.packed)

    def _fields(self) -> Mapping[bytes, Field]:
        return fields(self.features or {})


def _choose_frames(
    window: bytes, bounds: NDArray[np.int64], sound: NDArray[np.bool_]
) -> PackedStrings:
    """Frames as they lie, unless one of them is damaged."""
    frames = PackedStrings(tensor_over(window), torch.from_numpy(bounds), dtype=bytes)
    return frames if sound.all() else frames[sound]


def _cuts(file: InputFile) -> sidecar_index.Cuts:
    assert file.size is not None
    cuts: list[tuple[int, int]] = []
    start = count = 0
    enough = sidecar_index.cut_bytes(file)
    with file.open() as opened:
        walked = walk(opened, _Frames(), start=0, stop=file.size, report=None)
        for _, base, bounds in walked:
            places, first = base + bounds[:-1], 0
            while (cut := int(np.searchsorted(places, start + enough))) < len(places):
                if count + cut - first:
                    cuts.append((start, count + cut - first))
                    start, count, first = int(places[cut]), 0, cut
                else:  # what is damaged goes with what follows it
                    break
            count += len(places) - first
    if file.size and not count:
        msg = f"expected records, got {file.size} bytes in which none begins"
        raise ValueError(msg)
    return [*cuts, (start, count)] if file.size else []


@final
class _Frames(Scanner):
    """What is found are the bounds of adjacent frames: one more than there are frames."""

    header_bytes = HEADER_BYTES
    what = "record"

    def scan(self, window: bytes, room: int) -> Scan:
        length_at = struct.Struct("<Q").unpack_from
        position, found = 0, [0]
        last = min(len(window) - HEADER_BYTES, room)
        while position <= last:
            position += length_at(window, position)[0] + _FRAME_BYTES
            found.append(position)
        # The last may end outside, and any length may be wrong: now all are checked at once.
        error, needed = None, HEADER_BYTES
        sound = _lengths_fit(window, np.array(found[:-1], np.int64))
        if not sound.all():
            del found[int(sound.argmin()) + 1 :]
            error = "the checksum of the length does not fit"
        elif found[-1] > room:
            following = found.pop()
            needed = following - found[-1]
        bounds = np.array(found) if len(found) > 1 else None
        return Scan(found=bounds, following=found[-1], needed=needed, error=error)

    def find(self, window: bytes, base: int, room: int | None) -> int | None:
        del base
        num_places = len(window) - HEADER_BYTES + 1
        for first in range(0, num_places, _SEARCH_BYTES):
            places = np.arange(first, min(first + _SEARCH_BYTES, num_places))
            for place in places[_lengths_fit(window, places)].tolist():
                if _frame_fits(window, place, room):
                    return int(place)
        return None


def _frame_fits(window: bytes, place: int, room: int | None) -> bool:
    (length,) = struct.unpack_from("<Q", window, place)
    end = place + length + _FRAME_BYTES
    if end > len(window):  # not at hand yet; the payload is checked when it is read
        return room is None or end <= room
    (stored,) = struct.unpack_from("<I", window, end - 4)
    return bool(_mask([_crc32c()(window[place + HEADER_BYTES : end - 4])])[0] == stored)


def _lengths_fit(window: bytes, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the headers at these places have the right checksum; each place has 12 bytes.

    A checksum is linear: that of eight bytes is the sum (exclusive or) of what each byte adds.
    """
    data = np.frombuffer(window, np.uint8)
    crc, tables = _length_tables()
    total = np.full(len(places), crc, np.uint32)
    for number, table in enumerate(tables):
        total ^= table[data[places + number]]
    fits: NDArray[np.bool_] = _mask(total) == _uint32_at(window, places + 8)
    return fits


@functools.cache
def _length_tables() -> tuple[int, NDArray[np.uint32]]:
    """The checksum of eight zeros, and what other values of each byte add to it."""
    crc = _crc32c()
    zeros: int = crc(bytes(8))
    texts = [[bytes(i) + bytes([value]) + bytes(7 - i) for value in range(256)] for i in range(8)]
    return zeros, np.array([[crc(text) ^ zeros for text in row] for row in texts], np.uint32)


def _uint32_at(window: bytes, places: NDArray[np.int64]) -> NDArray[np.uint32]:
    data = np.frombuffer(window, np.uint8)
    values: NDArray[np.uint32] = data[places[:, None] + np.arange(4)].view("<u4")[:, 0]
    return values.astype(np.uint32, copy=False)


def _mask(crcs: Any) -> NDArray[np.uint32]:
    """As TFRecord stores checksums: rotated, and moved by a constant, modulo 2**32."""
    crc = np.asarray(crcs, np.uint32)
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(_MASK)


@functools.cache
def _crc32c() -> Any:
    try:
        return import_module("google_crc32c").value
    except ModuleNotFoundError as error:
        msg = "Reading TFRecord files needs a library: pip install 'torch_distinput[tfrecord]'."
        raise ConfigurationError(msg) from error
