"""Lines of JSON: one object a line, as columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.column_types import (
    Wanted,
    check_wanted,
    pack_lists,
    record_columns,
)
from torch_distinput.data.formats.json_rows import (
    has_large_floats,
    parse_exactly,
    parse_quickly,
)
from torch_distinput.data.formats.reader import Part, Reader
from torch_distinput.data.formats.text import (
    LINE_END,
    count_byte,
    find_byte,
    line_blocks,
    line_parts,
)
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.packed_strings import PackedStrings, tensor_over

_DEEPEST = 100
"""Python's parser and what walks over values call themselves: deeper ones could be too much."""
_SHALLOW = 8
_OPEN, _OPEN_LIST = b"{["
_EITHER = 0xFF ^ _OPEN ^ _OPEN_LIST
"""The bits in which the two are alike."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True, slots=True)
class JSONL(Reader):
    """Lines that are JSON objects: a batch is a dict of columns. Blank lines are passed over.

    - Numbers become tensors of int64 or, if one of them has a point or an exponent, float64; beside
      such a one, a whole number that float64 does not hold is an error. ``true`` and ``false``
      become tensors of bool.
    - Text becomes a list of ``str``, with ``None`` where it is null or missing.
    - An object becomes a dict of columns itself.
    - Lists of ``k`` numbers become a tensor ``(rows, k)``; of any length, where ``columns`` says
      so, a jagged one.
    - All else becomes a NumPy array of objects, lists of text and lists that are all empty, too.

    A number that is null or missing is an error, and so are values that are nested more than 100
    deep, and numbers beyond float64 (``1e400``), also in columns that are not chosen. What a
    column holds is found anew in each batch: give types where a batch may not show it, such as
    floats that are sometimes written ``1``. With orjson installed the same is done faster.

    Attributes:
        columns: the columns to deliver, all if None: a sequence of names, or a mapping from names
            to types: ``str``, a torch dtype (of a list: that of its numbers), or
            ``(dtype, ...)`` for lists of any length.
        packed: text becomes packed strings; see :class:`FileDataset`.
    """

    columns: Wanted = None
    packed: bool = False

    measure = "byte"

    def __post_init__(self) -> None:
        """Refuse columns that mean nothing."""
        check_wanted(self.columns)

    def with_packed_strings(self) -> JSONL:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut at line ends."""
        return line_parts(file)

    def read(self, file: InputFile, part: Part) -> Iterator[PackedStrings]:
        """Yield lines that are not blank, with their ends."""
        for block in line_blocks(file, part):
            lines = _pack_lines(block)
            if len(lines):
                yield lines

    def decode(self, records: PackedStrings | Sequence[bytes]) -> Batch:
        """Parse lines: in a list of ``bytes``, or packed, with their ends."""
        if not isinstance(records, PackedStrings):
            ended = [line.removesuffix(b"\n") + b"\n" for line in records]
            records = PackedStrings.from_list(ended, bytes)
        own = records.narrow()
        _refuse_deep(own)
        batch = self._quickly(own)
        if batch is None:
            batch = self._exactly(own)
        return pack_lists(batch) if self.packed else batch

    def _quickly(self, lines: PackedStrings) -> Batch | None:
        """None where Python's parser may see something else, or what is wrong must be said."""
        rows = parse_quickly(lines)
        if rows is None:
            return None
        try:
            batch = self._columns(rows)
        except ValueError:
            return None
        return None if has_large_floats(batch) else batch

    def _exactly(self, lines: PackedStrings) -> Batch:
        return self._columns(parse_exactly(lines))

    def _columns(self, rows: list[Mapping[str, Any]]) -> Batch:
        self._check_names(rows)
        return record_columns(rows, self.columns)

    def _check_names(self, rows: list[Mapping[str, Any]]) -> None:
        if self.columns is None and rows and not any(rows):
            msg = (
                f"Expected objects with something in them, got {len(rows)} times {{}}. Leave such "
                "lines out of the file, or pass columns= with the type str for text that they lack."
            )
            raise ValueError(msg)


def _pack_lines(block: bytes) -> PackedStrings:
    """The lines of a block with their ends, without blank ones."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if not block.endswith(b"\n"):
        block += b"\n"
    content = np.frombuffer(block, np.uint8)
    bounds = np.concatenate(([0], find_byte(content, LINE_END) + 1))
    lines = PackedStrings(tensor_over(block), torch.from_numpy(bounds), dtype=bytes)
    odd = np.flatnonzero(content[bounds[:-1]] != _OPEN).tolist()
    blank = [line for line in odd if block[bounds[line] : bounds[line + 1]].isspace()]
    return lines[np.delete(np.arange(len(lines)), blank)] if blank else lines


def _refuse_deep(lines: PackedStrings) -> None:
    """Look at lines with many brackets only, as all others are shallow."""
    content, offsets = lines.data.numpy(), lines.offsets.numpy()
    if len(lines) and (content[offsets[:-1]] == _OPEN).all():
        num_more = count_byte(content, _OPEN_LIST, mask=_EITHER) - len(lines)
        if num_more < _DEEPEST:  # even if one line has them all
            return
    places = find_byte(content, _OPEN_LIST, mask=_EITHER)
    many = np.flatnonzero(np.diff(np.searchsorted(places, offsets)) > _DEEPEST)
    for line in lines[many].to_bytes() if many.size else ():
        record = line.removesuffix(b"\n")
        depth = _depth(record) if _may_be_deep(record) else 0
        if depth > _DEEPEST:
            msg = (
                f"Expected values nested at most {_DEEPEST} deep, got {record[:60]!r}, which is "
                f"{depth} deep. Fix the file, or read it with reader='text'."
            )
            raise ValueError(msg)


def _may_be_deep(record: bytes) -> bool:
    """False for lists that are long instead, which are frequent."""
    if record.count(b"[") + record.count(b"{") <= _DEEPEST:
        return False
    brackets = record.translate(None, _ALL_BUT_BRACKETS)
    for _ in range(_SHALLOW):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def _depth(record: bytes) -> int:
    brackets = _STRING.sub(b"", record).translate(None, _ALL_BUT_BRACKETS)
    opens = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(b"[{", np.uint8))
    return int(np.where(opens, 1, -1).cumsum().max(initial=0))
