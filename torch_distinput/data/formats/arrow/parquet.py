"""Parquet: columns of tables, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.arrow.columns import (
    arrow_source,
    batch_chunks,
    choose_columns,
    column_names,
    is_damage,
    load_arrow,
)
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile

_LARGEST_BATCH = 1 << 16
"""Rows that are decoded at a time at most: sizes on disk do not tell how far encodings unfold."""
_LEAST_BATCH = 64
"""Rows that are decoded at a time at least, where their size is not known."""


@dataclass(frozen=True, slots=True)
class Parquet(Reader):
    """Rows of Parquet files: a batch is a dict of columns, as ``arrow.columns`` makes them.

    Needs pyarrow. A file without a size is read into memory, for its footer is at its end.
    Checksums of pages are checked where a file has them. Times of the old type INT96 are read in
    microseconds: what they have below one is dropped.

    Attributes:
        columns: the columns to read, in this order; None for all. Others are not decoded.
        packed: text and binary become packed strings; see :class:`FileDataset`.
    """

    columns: Sequence[str] | None = None
    packed: bool = False
    counted = True

    def __post_init__(self) -> None:
        """Check and freeze the names."""
        object.__setattr__(self, "columns", column_names(self.columns))

    def with_packed_strings(self) -> Parquet:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut at row groups; small ones are joined, to a megabyte at most."""
        try:
            with _open(file) as parquet:
                choose_columns(parquet.schema_arrow, self.columns, file.path)
                return _parts(parquet.metadata, file)
        except Exception as error:
            if not is_damage(error):
                raise
            file.bad("footer", error)
            return ()

    def read(self, file: InputFile, part: Part) -> Iterator[Batch]:
        """Yield rows in dicts of columns."""
        record = part.first_record
        groups = f"row groups {part.start} to {part.stop}"
        try:
            with _open(file) as parquet:
                stop = parquet.num_row_groups if part.stop is None else part.stop
                for batch in self._batches(parquet, range(part.start, stop), file.path):
                    yield from batch_chunks(
                        batch, file, record=record, packed=self.packed
                    )
                    record += batch.num_rows
        except Exception as error:
            if not is_damage(error):
                raise
            file.bad(groups, error)
            return
        missing = (part.num_records or 0) + part.first_record - record
        if part.num_records is not None and missing:
            file.bad(groups, f"expected {part.num_records} rows, {missing} are missing")

    def _batches(self, parquet: Any, groups: range, path: str) -> Iterator[Any]:
        names = choose_columns(parquet.schema_arrow, self.columns, path)
        if not len(groups):
            return
        batches = parquet.iter_batches(
            batch_size=_batch_rows(parquet, groups, names),
            row_groups=groups,
            columns=names,
            use_threads=False,
        )
        for batch in batches:
            yield batch.select(names)


@contextmanager
def _open(file: InputFile) -> Iterator[Any]:
    pq = load_arrow("pyarrow.parquet")
    with (
        arrow_source(file) as source,
        pq.ParquetFile(
            source,
            pre_buffer=False,  # with it a thread of pyarrow's would enter our file
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",  # nanoseconds reach from 1677 to 2262 only
        ) as parquet,
    ):
        yield parquet


def _parts(metadata: Any, file: InputFile) -> list[Part]:
    parts: list[Part] = []
    start = record = rows = size = 0
    groups = list(map(metadata.row_group, range(metadata.num_row_groups)))
    enough = file.part_size(sum(group.total_byte_size for group in groups), CHUNK_BYTES)
    for number, group in enumerate(groups):
        if group.num_rows < 0:
            msg = f"expected at least 0 rows in row group {number}, got {group.num_rows}"
            raise ValueError(msg)
        rows += group.num_rows
        size += group.total_byte_size
        if size >= enough or number == metadata.num_row_groups - 1:
            stop = number + 1
            if rows:
                known = Part(start=start, stop=stop, first_record=record, num_records=rows)
                parts.append(known)
            start, record, rows, size = stop, record + rows, 0, 0
    return parts


def _batch_rows(parquet: Any, groups: range, names: list[str]) -> int:
    """Rows that make about a chunk.

    The footer has the size of each column too, but pyarrow ends the process if that is damaged. So
    where columns are left out, and the width of those that are read is not known either, the rows
    of a batch are bounded from below: what was left out may be nearly all of the size.
    """
    found = list(map(parquet.metadata.row_group, groups))
    row_bytes = sum(group.total_byte_size for group in found) / max(
        1, sum(group.num_rows for group in found)
    )
    schema = parquet.schema_arrow
    if len(names) == len(schema.names):
        least = 1
    else:
        kinds = [schema.field(name).type for name in names]
        fixed = load_arrow().types.is_primitive
        if all(map(fixed, kinds)):
            row_bytes = sum(kind.bit_width for kind in kinds) / 8
        least = _LEAST_BATCH
    return max(least, min(_LARGEST_BATCH, int(CHUNK_BYTES / max(1, row_bytes))))
