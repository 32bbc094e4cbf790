"""The wire format of ``tf.train.Example``: in lockstep over many messages, and one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.packed_strings import join_bytes

_Ints = NDArray[np.int64]

BYTES, FLOATS, INTS = 1, 2, 3
"""The field numbers of ``tf.train.Feature``, used as kinds; 0: the record has no such feature."""

_LEN = 2  # the wire type of what has a length
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_END = b"\0"
_NEVER = 1 << 62
"""Longer than any message: makes a length that is out of range fail every check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where the values of the wanted features are; arrays of shape (features, records).

    Attributes:
        plain: for each record, whether the lockstep walk understood it.
        kinds: see :data:`BYTES`.
        starts: where a packed list of numbers, or a list of bytes with its headers, begins.
        stops: where it ends.
        items: for each feature, where the items of its lists of bytes are, row by row.
    """

    plain: NDArray[np.bool_]
    kinds: _Ints
    starts: _Ints
    stops: _Ints
    items: Sequence[Items]


@dataclass(frozen=True, slots=True)
class Items:
    """Bytes within all rows that have them; ``counts``: of each row, -1 where it is malformed."""

    starts: _Ints
    stops: _Ints
    counts: _Ints


@final
class Lanes:
    """Messages, one a lane, that are walked together.

    Args:
        data: has them in it; its last byte is of none, so that it can be looked at instead of what
            lies behind.
        starts: where they begin.
        stops: where they end.
    """

    def __init__(self, data: NDArray[np.uint8], starts: _Ints, stops: _Ints) -> None:
        self.data = data
        self._starts = starts
        self._stops = stops

    @staticmethod
    def joined(messages: Sequence[bytes]) -> Lanes:
        """Messages that lie apart."""
        data, offsets = join_bytes([*messages, _END])
        bounds = offsets.numpy()
        return Lanes(data.numpy(), bounds[:-2], bounds[1:-1])

    def messages(self) -> list[bytes]:
        """All of them, taken out."""
        spans = zip(self._starts.tolist(), self._stops.tolist(), strict=True)
        return [self.data[start:stop].tobytes() for start, stop in spans]

    def features(self, wanted: Iterable[bytes]) -> Places:
        """Find the wanted features in all records."""
        numbers = {name: number for number, name in enumerate(wanted)}
        spans = np.full((2, len(numbers), len(self._starts)), -1, np.int64)
        plain = self._walk_entries(numbers, spans)
        kinds = np.zeros(spans.shape[1:], np.int64)
        items = []
        for number in range(len(numbers)):
            rows = np.flatnonzero(spans[0, number] >= 0)
            start, stop = spans[:, number, rows]
            kind, start, sound = self._lists(start, stop)
            plain[rows[~sound]] = False
            kinds[number, rows], spans[0, number, rows] = kind, start
            texts = kind == BYTES
            found = self._items(start[texts], stop[texts])
            plain[rows[texts][found.counts < 0]] = False
            items.append(found)
        starts, stops = spans
        return Places(plain=plain, kinds=kinds, starts=starts, stops=stops, items=items)

    def _walk_entries(self, numbers: Mapping[bytes, int], spans: _Ints) -> NDArray[np.bool_]:
        """Fill in where the Feature messages are; return which records are plain."""
        plain = np.ones(len(self._starts), np.bool_)
        rows = np.flatnonzero(self._starts < self._stops)  # an empty message has no features
        at, stop, sound = self._message(self._starts[rows], self._stops[rows], 0x0A)
        sound &= stop == self._stops[rows]
        while rows.size:
            if not sound.all():
                plain[rows[~sound]] = False
                rows, at, stop = rows[sound], at[sound], stop[sound]
            more = at < stop
            if not more.all():
                rows, at, stop = rows[more], at[more], stop[more]
            entry, entry_stop, sound = self._message(at, stop, 0x0A)
            key, key_stop, key_sound = self._message(entry, entry_stop, 0x0A)
            value, value_stop, value_sound = self._message(key_stop, entry_stop, 0x12)
            sound &= key_sound & value_sound & (value_stop == entry_stop)
            for number, same in self._by_key(key, np.where(sound, key_stop, key), numbers):
                found = same[sound[same]]
                spans[0, number, rows[found]] = value[found]
                spans[1, number, rows[found]] = value_stop[found]
            at = entry_stop
        return plain

    def _by_key(
        self, starts: _Ints, stops: _Ints, numbers: Mapping[bytes, int]
    ) -> Iterator[tuple[int, _Ints]]:
        """Group lanes by their keys; most often there is one."""
        left = np.arange(len(starts))
        while left.size:
            key = self.data[int(starts[left[0]]) : int(stops[left[0]])].tobytes()
            same = stops[left] - starts[left] == len(key)
            places = starts[left[same], None] + np.arange(len(key))
            same[same] = (self.data[places] == np.frombuffer(key, np.uint8)).all(axis=1)
            if key in numbers:
                yield numbers[key], left[same]
            left = left[~same]

    def _lists(self, start: _Ints, stop: _Ints) -> tuple[_Ints, _Ints, NDArray[np.bool_]]:
        """Kinds of Feature messages, where their values begin, and whether they are plain."""
        kind = np.where(start < stop, self._byte(start) >> 3, 0).astype(np.int64)
        at, end, sound = self._message(start, stop, (kind << 3) | _LEN)
        sound &= (end == stop) & (kind <= INTS)
        packed, packed_end, packed_sound = self._message(at, stop, 0x0A)
        numbers = sound & (kind != BYTES) & (at < stop)
        sound &= ~numbers | (packed_sound & (packed_end == stop))
        sound |= start == stop
        return kind, np.where(kind == 0, start, np.where(numbers, packed, at)), sound

    def _items(self, start: _Ints, stop: _Ints) -> Items:
        counts = np.zeros(len(start), np.int64)
        rows = np.flatnonzero(start < stop)
        at, stop = start[rows], stop[rows]
        steps: list[tuple[_Ints, _Ints, _Ints]] = []
        while rows.size:
            item, at, sound = self._message(at, stop, 0x0A)
            counts[rows] = np.where(sound, counts[rows] + 1, -1)
            steps.append((rows[sound], item[sound], at[sound]))
            more = sound & (at < stop)
            rows, at, stop = rows[more], at[more], stop[more]
        if len(steps) == 1:
            return Items(steps[0][1], steps[0][2], counts)
        row, starts, stops = map(np.concatenate, zip(*steps)) if steps else (counts[:0],) * 3  # noqa: B905 - triples
        order = row.argsort(kind="stable")
        return Items(starts[order], stops[order], counts)

    def _message(
        self, at: _Ints, stop: _Ints, tag: int | _Ints
    ) -> tuple[_Ints, _Ints, NDArray[np.bool_]]:
        """Begin and end of what stands at a place under a tag, and whether it is inside."""
        sound = (at < stop) & (self._byte(at) == tag)
        size = self._byte(at + 1).astype(np.int64)
        start = at + 2
        if (size > 0x7F).any():
            size, start = self._varint(at + 1)
        end = start + size
        sound &= end <= stop
        return start, end, sound

    def _varint(self, at: _Ints) -> tuple[_Ints, _Ints]:
        """Lengths of up to five bytes."""
        value = np.zeros(len(at), np.int64)
        open_ = np.ones(len(at), np.bool_)
        at = at.copy()
        for number in range(5):
            byte = self._byte(at).astype(np.int64)
            value += np.where(open_, (byte & 0x7F) << (7 * number), 0)
            at += open_
            open_ &= byte > 0x7F
            if not open_.any():
                break
        return np.where(open_, _NEVER, value), at

    def _byte(self, at: _Ints) -> NDArray[np.uint8]:
        return self.data.take(at, mode="clip")


def plain_example(record: bytes) -> bytes:
    """Rewrite an Example as the lockstep walk wants it.

    Raises:
        ValueError: if it does not parse.
    """
    features: dict[bytes, tuple[int, list[bytes]]] = {}
    for message in _parts_of(record, 1):
        for entry in _parts_of(message, 1):
            key = b"".join(_parts_of(entry, 1)[-1:])
            kind = 0
            values: list[bytes] = []
            for feature in _parts_of(entry, 2):
                for number, wire, content in _fields(feature):
                    if number in (BYTES, FLOATS, INTS) and wire == _LEN:
                        kind, values = number, values if number == kind else []
                        values += _values(number, content)
            features[key] = kind, values
    entries = [
        _sized(0x0A, _sized(0x0A, key) + _sized(0x12, _feature(kind, values)))
        for key, (kind, values) in features.items()
    ]
    return _sized(0x0A, b"".join(entries))


def _feature(kind: int, values: list[bytes]) -> bytes:
    if kind == 0:
        return b""
    items = (_sized(0x0A, value) for value in values) if kind == BYTES else (b"".join(values),)
    body = b"".join(items) if kind == BYTES else _sized(0x0A, b"".join(items))
    return _sized(kind << 3 | _LEN, body)


def _values(kind: int, message: bytes) -> Iterator[bytes]:
    """The values of a BytesList, a FloatList or an Int64List; numbers as they are when packed."""
    for number, wire, content in _fields(message):
        if number != 1:
            continue
        if wire == _LEN:
            if kind == FLOATS and len(content) % 4:
                msg = f"{len(content)} bytes of float32 values"
                raise ValueError(msg)
            if kind == INTS:
                at = 0
                while at < len(content):
                    at = _read_varint(content, at)[1]
            yield content
        elif wire == (_FIXED32 if kind == FLOATS else _VARINT) and kind != BYTES:
            yield content


def _parts_of(message: bytes, number: int) -> list[bytes]:
    return [content for n, wire, content in _fields(message) if (n, wire) == (number, _LEN)]


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field of a message."""
    at = 0
    while at < len(message):
        tag, start = _read_varint(message, at)
        wire = tag & 7
        if wire == _LEN:
            size, start = _read_varint(message, start)
            at = start + size
        elif wire == _VARINT:
            at = _read_varint(message, start)[1]
        elif wire in (_FIXED32, _FIXED64):
            at = start + (4 if wire == _FIXED32 else 8)
        else:
            msg = f"wire type {wire}"
            raise ValueError(msg)
        if at > len(message) or not tag >> 3:
            msg = f"field {tag >> 3} that ends at byte {at} of {len(message)}"
            raise ValueError(msg)
        yield tag >> 3, wire, message[start:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    msg = f"a number that does not end, at byte {at}"
    raise ValueError(msg)


def _sized(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytearray([tag])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content
