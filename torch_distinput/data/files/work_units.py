"""Work units: what of which file is read in one piece, and how many records that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from operator import index

from torch_distinput.data.formats.reader import Part
from torch_distinput.data.stream.chunk import Cursor
from torch_distinput.plan.assignment.sharding import assign_items

Parts = tuple[Part, ...]
Share = list[list[list[int | None]]]
"""What a worker found out: numbers for each part of each of its files."""
WHOLE: Parts = (Part(),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One part of one file.

    Attributes:
        file: the number of the file in the listing.
        part: which part of it.
        place: of which pile of the shard it is a part.
    """

    file: int
    part: Part
    place: Cursor = field(default_factory=Cursor)

    def cut(self, num_records: int) -> tuple[Unit, Unit]:
        """Cut a counted unit of an addressable reader after its first ``num_records`` records."""
        part = self.part
        assert part.num_records is not None, "only counted parts are cut"
        middle = part.start + num_records
        head = replace(part, stop=middle, num_records=num_records)
        tail = replace(
            part,
            start=middle,
            first_record=part.first_record + num_records,
            num_records=part.num_records - num_records,
        )
        return replace(self, part=head), replace(self, part=tail)


@dataclass(frozen=True, slots=True)
class Survey:
    """The parts of all files, in the order of the listing; the same on all workers."""

    parts: tuple[Parts, ...]

    @staticmethod
    def whole(num_files: int) -> Survey:
        """What is known of files that nobody looked into."""
        return Survey((WHOLE,) * num_files)

    def partitions(self, *, split: bool) -> list[list[Unit]]:
        """What is dealt out: the units of each file together, or each by itself."""
        files = [
            [Unit(file=number, part=part) for part in parts]
            for number, parts in enumerate(self.parts)
        ]
        return [[unit] for units in files for unit in units] if split else files


def joined(parts: Sequence[Part]) -> Part:
    """Neighbouring parts of a file as one."""
    counts = [part.num_records for part in parts]
    return replace(
        parts[0],
        stop=parts[-1].stop,
        num_records=None if None in counts else sum(counts),  # type: ignore[arg-type]
    )


def joined_units(partition: Sequence[Unit]) -> list[Unit]:
    """The parts of one file as one unit: opened once."""
    if len(partition) < 2:
        return list(partition)
    return [replace(partition[0], part=joined([unit.part for unit in partition]))]


def count_records(units: Sequence[Unit]) -> int | None:
    """The number of records in units; None where one of them is not counted."""
    counts = [unit.part.num_records for unit in units]
    return None if None in counts else sum(counts)  # type: ignore[arg-type]


def as_numbers(parts: Parts) -> list[list[int | None]]:
    """Parts as plain numbers, to be sent to the other workers."""
    return [[None if n is None else index(n) for n in astuple(part)] for part in parts]


def from_numbers(numbers: list[list[int | None]]) -> Parts:
    """What :func:`as_numbers` made."""
    names = ("start", "stop", "first_record", "num_records")
    return tuple(Part(**dict(zip(names, row, strict=True))) for row in numbers)  # type: ignore[arg-type]


def joined_surveys(shares: Sequence[Share], num_files: int) -> Survey:
    """Put together what each worker found out about its files."""
    parts: list[Parts] = [WHOLE] * num_files
    for worker, share in enumerate(shares):
        mine = assign_items(num_files, len(shares), worker)
        for number, numbers in zip(mine, share, strict=True):
            parts[number] = from_numbers(numbers)
    return Survey(tuple(parts))
