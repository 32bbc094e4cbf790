"""The formats of files that can be read, a reader each; none is imported before it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePosixPath
from typing import Any, cast

from torch_distinput.data.formats.reader import Reader
from torch_distinput.data.storage.compression import content_name

FORMATS = {
    "Text": "text",
    "JSONL": "jsonl",
    "CSV": "csv_table",
    "TFRecord": "tfrecord.records",
    "Parquet": "arrow.parquet",
    "Arrow": "arrow.ipc",
    "Tar": "tar",
    "Npy": "npy",
    "Npz": "npz",
}
READER_NAMES = {name.lower(): name for name in FORMATS}
"""What ``reader=`` may be; all but text are suffixes of files too."""


def __getattr__(name: str) -> Any:
    """Import a reader when it is asked for."""
    if name not in FORMATS:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{FORMATS[name]}"), name)


def find_format(path: str) -> str | None:
    """The reader that the name of a file asks for; None for text, and for what nobody knows."""
    suffixes = (suffix.removeprefix(".") for suffix in PurePosixPath(content_name(path)).suffixes)
    return next((name for name in suffixes if name != "text" and name in READER_NAMES), None)


def find_reader(reader: str | Reader) -> Reader:
    """Return the reader of a format with its defaults, or the reader that was given."""
    if isinstance(reader, Reader):
        return reader
    if reader not in READER_NAMES:
        allowed = ", ".join(repr(name) for name in READER_NAMES)
        got: Any = reader
        is_class = isinstance(got, type) and issubclass(got, Reader)
        cure = f" Write {got.__name__}(...)." if is_class else ""
        if isinstance(got, str) and (name := find_format(f"name.{got}")) is not None:
            cure = f" Write {name!r}: files are decompressed as their own names say."
        msg = f"reader must be one of {allowed} or a Reader, got {reader!r}.{cure}"
        raise ValueError(msg)
    return cast("Reader", __getattr__(READER_NAMES[reader])())
