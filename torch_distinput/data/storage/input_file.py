"""One file, as a reader of a format sees it: on every storage and under every compression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

FEWEST_UNITS = 64
"""So many units are dealt out at least, where files are split and have places to cut them: no
worker is to have much more than another. (It must not depend on how many workers there are.)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file, as a reader sees it.

    Attributes:
        path: its URL, for messages.
        size: its size in bytes; None where it cannot be read from the middle (compressed, or a
            storage without ranges), so that it cannot be cut.
        version: text that changes when the content does; empty where the storage tells none.
        local_path: where it lies on this machine, for libraries that map files into memory; None
            elsewhere, and for compressed files.
        open: open it for reading, decompressed; seekable if ``size`` is known. Close it.
        bad: called as ``bad(where, reason)`` for records that cannot be read. It raises a
            :class:`~torch_distinput.SourceError`; or, if the user chose to skip bad records, it
            counts one and returns: go on with the next good record, or end.
        storage_options: of the file system, for what a reader keeps beside the file.
        fewest_parts: so many parts are wanted at least, where the format allows them: the files
            are to be split, and there are few.
        change: says in words how the file differs from the one that was listed; empty if it does
            not, or if only a request could tell.
    """

    path: str
    size: int | None
    version: str
    local_path: str | None
    open: Callable[[], IO[bytes]]
    bad: Callable[[str, object], None]
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    fewest_parts: int = 1
    change: Callable[[], str] = str

    def part_size(self, total: int, largest: int) -> int:
        """How much goes into one part of a file of ``total``, in the reader's own measure."""
        return max(1, min(largest, -(-total // self.fewest_parts)))
