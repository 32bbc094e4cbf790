"""NumPy's .npz files: a ZIP archive of arrays, which are the columns of one table."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.npy import Header, leaf, read_header, row_blocks
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import DistinputError

_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, TypeError, SyntaxError, MemoryError, KeyError),
)
"""What zipfile, its decompressors and the parser of headers raise for content."""

_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Npz(Reader):
    """Rows of arrays in a .npz file: a batch is a dict with the rows of each, as Npy makes them.

    All arrays need the same number of rows. A file is one part; its arrays are decompressed side by
    side, a chunk at a time, but those in Fortran's order whole. A file without a size is read into
    memory.
    """

    counted = True

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Count the rows from the headers of the arrays."""
        try:
            with _members(_seekable(file)) as members:
                rows = _num_rows(file.path, members)
        except DistinputError:
            raise
        except _DAMAGE as error:
            _tell_damage(file, "archive", error)
            return ()
        return (Part(stop=rows, num_records=rows),) if rows else ()

    def read(self, file: InputFile, part: Part) -> Iterator[Batch]:
        """Yield ranges of rows."""
        number = part.start
        try:
            with _members(_seekable(file)) as members:
                stop = _num_rows(file.path, members) if part.stop is None else part.stop
                step = max(1, CHUNK_BYTES // sum(h.row_bytes for _, _, h in members))
                columns = [
                    row_blocks(opened, header, range(part.start, stop, step), stop)
                    for _, opened, header in members
                ]
                names = [name for name, _, _ in members]
                while number < stop:
                    blocks = [next(column, _NONE) for column in columns]
                    if any(len(block) < min(step, stop - number) for block in blocks):
                        for column in columns:
                            next(column, None)  # raises what made its block shorter
                        file.bad(f"record {number}", "expected more rows, got the array's end")
                        return
                    number += len(blocks[0])
                    pairs = zip(names, blocks, strict=True)
                    yield {n: leaf(b, f"{file.path}: array {n!r}") for n, b in pairs}
        except DistinputError:
            raise
        except _DAMAGE as error:
            _tell_damage(file, f"archive, record {number} and after", error)


def _tell_damage(file: InputFile, where: str, error: Exception) -> None:
    """Report an archive that is damaged; zipfile says that also of one that cannot be reached."""
    cause = error.__context__
    if isinstance(cause, OSError) and cause.errno is not None:
        raise cause
    file.bad(where, error)


@contextmanager
def _members(file: InputFile) -> Iterator[list[tuple[str, IO[bytes], Header]]]:
    """Open all arrays, each through a file of its own, which reads ahead for this array alone."""
    with ExitStack() as stack:
        with file.open() as opened, zipfile.ZipFile(opened) as archive:
            infos = archive.infolist()
        found = []
        for info in infos:
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                msg = f"{file.path}: expected arrays (*.npy) only, got {name!r}. Take it out."
                raise ValueError(msg)
            archive = zipfile.ZipFile(stack.enter_context(file.open()))
            array = stack.enter_context(stack.enter_context(archive).open(info))
            header = read_header(array, f"{file.path}: array {name!r}")
            size = header.offset + header.num_rows * header.row_bytes
            if size != info.file_size:
                msg = f"array {name!r}: expected {size} bytes, got {info.file_size}"
                raise ValueError(msg)
            found.append((name, array, header))
        yield found


def _num_rows(path: str, members: Sequence[tuple[str, IO[bytes], Header]]) -> int:
    rows = {name: header.num_rows for name, _, header in members}
    if len(set(rows.values())) != 1 or len(rows) < len(members):
        msg = (
            f"{path}: expected arrays of different names with the same number of rows, got "
            f"{', '.join(f'{name}: {rows[name]}' for name, _, _ in members) or 'no array'}. "
            "Save those that belong together in a file of their own."
        )
        raise ValueError(msg)
    return next(iter(rows.values()))


def _seekable(file: InputFile) -> InputFile:
    if file.size is not None:
        return file
    with file.open() as opened:
        content = opened.read()
    return replace(file, open=lambda: io.BytesIO(content))
