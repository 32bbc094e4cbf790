"""tf.train.Examples as bytes, and what the reader makes of them."""

from __future__ import annotations

import io
import struct
from dataclasses import replace

from tests.tfrecords import message, varint
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.formats.tfrecord.records import TFRecord
from torch_distinput.data.formats.tfrecord.tf_example import FOOTER_BYTES, HEADER_BYTES
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.retries import Retries
from torch_distinput.packed_strings import PackedStrings


def int_list(*values, packed=True):
    if packed:
        return message(3, message(1, b"".join(map(varint, values))) if values else b"")
    return message(3, b"".join(b"\x08" + varint(value) for value in values))


def float_list(*values, packed=True):
    items = [struct.pack("<f", value) for value in values]
    if packed:
        return message(2, message(1, b"".join(items)) if values else b"")
    return message(2, b"".join(b"\x0d" + item for item in items))


def bytes_list(*values):
    return message(1, b"".join(message(1, value) for value in values))


def example(**features):
    entries = [
        message(1, message(1, name.encode()) + message(2, feature))
        for name, feature in features.items()
    ]
    return message(1, b"".join(entries))


def opened(content, bad, path="memory.tfrecord"):
    (info,) = filesystem.list_files([__file__], {})
    file = filesystem.open_file(info, {}, bad=bad, retries=Retries())
    return replace(file, path=path, size=len(content), open=lambda: io.BytesIO(content), bad=bad)


def read(content, part=None, reader=None):
    """All payloads, and what was reported."""
    reported = []
    file = opened(content, lambda where, reason: reported.append((where, str(reason))))
    chunks = (reader or TFRecord()).read(file, part or Part())
    return [payload for chunk in chunks for payload in chunk], reported


def decode(features, *records):
    frames = [bytes(HEADER_BYTES) + record + bytes(FOOTER_BYTES) for record in records]
    return TFRecord(features).decode(PackedStrings.from_list(frames, bytes))
