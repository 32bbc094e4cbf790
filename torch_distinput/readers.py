"""The formats of files, and what a format of your own has to offer.

``FileDataset(..., reader="parquet")`` takes a format by name; the classes here have arguments::

    FileDataset("train-*.parquet", reader=readers.Parquet(columns=["image", "label"]))

None of them is imported before it is used.
"""

from __future__ import annotations

from typing import Any

from torch_distinput.data import formats as _readers
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile

__all__ = ["CHUNK_BYTES", "InputFile", "Part", "Reader", *_readers.FORMATS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a format when it is asked for."""
    return getattr(_readers, name)


def __dir__() -> list[str]:
    """What there is, formats included."""
    return sorted(__all__)
