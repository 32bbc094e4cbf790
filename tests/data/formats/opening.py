"""Files as readers see them, for the tests of readers."""

from __future__ import annotations

from torch_distinput.data.batch import rows
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.retries import Retries
from torch_distinput.errors import SourceError


def raise_source_error(where, reason):
    """What ``bad`` does where nothing is skipped."""
    raise SourceError(f"{where}: {reason}")


def opened(path, bad=raise_source_error):
    """A file on this machine."""
    (info,) = filesystem.list_files([str(path)], {})
    return filesystem.open_file(info, {}, bad=bad, retries=Retries())


def read(reader, file):
    """All records of a file, as one batch."""
    chunks = [chunk for part in reader.parts(file) for chunk in reader.read(file, part)]
    return rows.concat_rows(chunks)
