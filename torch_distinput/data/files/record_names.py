"""What a record is called in an error: its number in its file, or in a part of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import final

from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage.file_listing import FileInfo


@final
@dataclass(frozen=True, slots=True)
class RecordNames:
    """Names the records of listed files.

    Attributes:
        listing: the files.
        parts: those of each file; nothing where it is not known yet, or all are whole.
        measure: what the reader's parts count.
    """

    listing: Sequence[FileInfo] = ()
    parts: Sequence[Sequence[Part]] = ()
    measure: str = ""

    def where(self, file: int, number: int) -> tuple[str, str]:
        """The path and the record that an id names."""
        parts = self.parts[file] if self.parts else ()
        before = bisect_right(parts, number, key=attrgetter("first_record"))
        part = parts[before - 1] if before else Part()
        return self.listing[file].path, name_record(part, number, self.measure)


def name_record(part: Part, number: int, measure: str) -> str:
    """By the number within the file, where the records before the part were counted."""
    if part.first_record and part.num_records is None:
        return f"record {number - part.first_record} of the part from {measure} {part.start} on"
    return f"record {number}"
