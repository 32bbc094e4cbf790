"""Arrow IPC files and streams: record batches as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from typing import Any, final

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.arrow.columns import (
    arrow_source,
    batch_chunks,
    check_buffers,
    choose_columns,
    column_names,
    is_damage,
    load_arrow,
)
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile

_CONTINUATION = b"\xff" * 4
_END = _CONTINUATION + bytes(4)
_MAGIC = b"ARROW1"
_RECORDS_PER_BATCH = 1 << 31
"""No record batch has more, so where counts are unknown this keeps records of parts apart."""


@dataclass(frozen=True, slots=True)
class Arrow(Reader):
    """Rows of Arrow IPC files: a batch is a dict of columns, as ``arrow.columns`` makes them.

    Needs pyarrow. Both formats, told apart by their first bytes: *files* (Feather too) are cut at
    record batches, *streams* (as Hugging Face ``datasets`` keeps them) are one part, as is a file
    that is compressed outside. Numbers of records are known for local files, which are mapped.

    Attributes:
        columns: the columns to read, in this order; None for all.
        packed: text and binary become packed strings; see :class:`FileDataset`.
    """

    columns: Sequence[str] | None = None
    packed: bool = False

    counted = True
    measure = "record batch"

    def __post_init__(self) -> None:
        """Check and freeze the names."""
        object.__setattr__(self, "columns", column_names(self.columns))

    def with_packed_strings(self) -> Arrow:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    @property
    def mapped(self) -> bool:  # type: ignore[override]  # read-only, as the class is frozen
        """Packed strings are; all else is copied."""
        return self.packed

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut a file at record batches; small ones are joined, to a megabyte at most."""
        if file.size is None:
            return (Part(),)
        try:
            with _open(file) as (source, is_file, _):
                reader, _ = _reader(source, is_file, self.columns, file)
                counts = _counts(source, is_file) if file.local_path is not None else None
                if not is_file:
                    return _stream_parts(counts)
                num_batches = reader.num_record_batches
                step = file.part_size(num_batches, CHUNK_BYTES * num_batches // file.size)
                bounds = [*range(0, num_batches, step), num_batches]
                return list(_file_parts(bounds, counts))
        except Exception as error:
            if not is_damage(error):
                raise
            file.bad("schema", error)
            return ()

    def read(self, file: InputFile, part: Part) -> Iterator[Batch]:
        """Yield rows in dicts of columns."""
        try:
            with _open(file) as (source, is_file, ends):
                reader, names = _reader(source, is_file, self.columns, file)
                find_odd_end = partial(_odd_end, source, ends)
                for number, batch in _batches(reader, is_file, file, part, find_odd_end):
                    within = f" of record batch {number}"
                    chosen = batch.select(names)
                    yield from batch_chunks(chosen, file, within=within, packed=self.packed)
        except Exception as error:
            if not is_damage(error):
                raise
            file.bad("schema", error)


@contextmanager
def _open(file: InputFile) -> Iterator[tuple[Any, bool, _Ends | None]]:
    """Open a file; tell whether it has the file format, and its ends if nobody can go back."""
    if file.size is None:
        with file.open() as opened:
            is_file = opened.read(len(_MAGIC)) == _MAGIC
        if not is_file:
            with file.open() as opened:
                ends = _Ends(opened)
                yield load_arrow().PythonFile(ends, "r"), False, ends
            return
    with arrow_source(file, mapped=True) as source:
        places = [0]
        if file.size is not None and file.local_path is None:
            # First at the end, where the footer is: requests for the beginning read ahead.
            places.insert(0, max(0, file.size - len(_MAGIC)))
        is_file = any(_has_magic(source, place) for place in places)
        source.seek(0)
        yield source, is_file, None


@final
class _Ends:
    """A file that is read in one pass, and how its content begins and ends."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.first = self.last = b""

    @property
    def closed(self) -> bool:
        """Asked by Arrow."""
        return bool(self._file.closed)

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        content: bytes = self._file.read(size)
        self.first = (self.first + content[: len(_CONTINUATION)])[: len(_CONTINUATION)]
        self.last = (self.last + content[-len(_END) :])[-len(_END) :]
        return content


def _has_magic(source: Any, place: int) -> bool:
    source.seek(place)
    return bool(source.read(len(_MAGIC)) == _MAGIC)


def _odd_end(source: Any, ends: _Ends | None = None) -> str:
    """What is wrong with the end of a stream that was read: no mark, or something behind it."""
    end = source.tell() if ends is None else 0
    if source.read(1):
        return "expected the end of the file behind the stream, got more. Keep one stream in a file"
    if ends is None:
        source.seek(0)
        first = source.read(len(_CONTINUATION))
        source.seek(max(0, end - len(_END)))
        last = source.read(len(_END))
    else:
        first, last = ends.first, ends.last
    if first != _CONTINUATION or last == _END:  # streams of before 2019 have another mark
        return ""
    return "expected it, or a mark of the end: the stream was cut off"


def _reader(
    source: Any, is_file: bool, columns: Sequence[str] | None, file: InputFile
) -> tuple[Any, list[str]]:
    """Open a reader that reads the chosen columns only, where it can."""
    reader = _open_reader(source, is_file)
    schema = reader.schema
    names = choose_columns(schema, columns, file.path)
    if columns is not None and file.size is not None:  # else all are read
        source.seek(0)
        reader = _open_reader(source, is_file, [schema.names.index(name) for name in names])
    return reader, names


def _open_reader(source: Any, is_file: bool, fields: Sequence[int] = ()) -> Any:
    ipc = load_arrow("pyarrow.ipc")
    options = ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
    return (ipc.open_file if is_file else ipc.open_stream)(source, options=options)


def _counts(source: Any, is_file: bool) -> list[int] | None:
    """Rows of each record batch of a mapped file: of its data at most the first column is touched.

    None if the file is damaged; reading it tells where.
    """
    source.seek(0)
    try:
        reader = _open_reader(source, is_file, [0])
        if is_file:
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = reader
        counts = [batch.num_rows for batch in batches]
        return counts if is_file or not _odd_end(source) else None
    except Exception as error:
        if not is_damage(error):
            raise
        return None


def _stream_parts(counts: Sequence[int] | None) -> Sequence[Part]:
    if counts is None:
        return (Part(),)
    return (Part(num_records=sum(counts)),) if sum(counts) else ()


def _file_parts(bounds: Sequence[int], counts: Sequence[int] | None) -> Iterator[Part]:
    record = 0
    for start, stop in pairwise(bounds):
        if counts is None:
            yield Part(start=start, stop=stop, first_record=start * _RECORDS_PER_BATCH)
        elif rows := sum(counts[start:stop]):
            yield Part(start=start, stop=stop, first_record=record, num_records=rows)
            record += rows


def _batches(
    reader: Any, is_file: bool, file: InputFile, part: Part, find_odd_end: Callable[[], str]
) -> Iterator[tuple[int, Any]]:
    """Yield record batches with their numbers. In a stream nothing follows a damaged one."""
    stop = part.stop
    if is_file and stop is None:
        stop = reader.num_record_batches
    for number in count(part.start) if stop is None else range(part.start, stop):
        if file.change():  # what is gone must not be touched; who opened the unit says so
            return
        try:
            batch = reader.get_batch(number) if is_file else reader.read_next_batch()
            check_buffers(batch)
        except StopIteration:
            if reason := find_odd_end():
                file.bad(f"record batch {number}", reason)
            return
        except Exception as error:
            if not is_damage(error):
                raise
            file.bad(f"record batch {number}", error)
            if not is_file:
                return
        else:
            yield number, batch
