"""TFRecord frames and protos for the tests: an encoder straight from the formats' descriptions."""

from __future__ import annotations

import struct

import google_crc32c


def masked(data):
    """A checksum as it is stored."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data):
    """One record."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value):
    """A number."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number, content):
    """A field with content of its own."""
    return varint(number << 3 | 2) + varint(len(content)) + content
