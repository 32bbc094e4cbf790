"""What a source that is read in order can be asked: by everybody, and where rows are counted.

What a stream hands over is a :class:`Chunk`: rows that are not collated yet, with ids that tell
the examples apart. A reader answers ``take(n)`` with up to n rows, fewer only at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard


class RowReader(Protocol):
    """A stream of rows, read once."""

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: ``num_rows`` of them, fewer at the end, None after it."""

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows without mapping or collating them; return how many there were."""

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call; None if nothing has."""


class Stream(ABC):
    """A source that is read in order. Picklable where loader processes are spawned."""

    @abstractmethod
    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start reading a shard, from its beginning or from a :attr:`Cursor.start` of its rows."""

    @abstractmethod
    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Map what is left to map and collate: from rows to a batch."""

    @abstractmethod
    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:
        """Map what is left to map: the rows as examples, not collated.

        For a ``collate_fn`` that gets examples of several streams at once.
        """

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether :meth:`finish` is worth another process."""

    @property
    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """What of it decides which examples come in which order: names and plain values."""

    @property
    @abstractmethod
    def has_parts(self) -> bool:
        """Whether what was dealt out to a worker can be dealt out again, file by file."""


class CountedStream(Stream):
    """A stream of files, whose rows may be counted before they are read.

    The workers share the counting: each looks into its share of the files (:meth:`share`), and all
    go on with what all of them found (:meth:`with_shares`).
    """

    @abstractmethod
    def share(self, worker: int, num_workers: int) -> tuple[Any, ReadReport | None] | None:
        """Find out what this worker can find out for all; None if that is nothing, for all alike.

        Returns plain values to be sent to the others, and notes on what went wrong.
        """

    @abstractmethod
    def with_shares(self, shares: Sequence[Any]) -> CountedStream:
        """Return the stream with what all workers found out."""

    @abstractmethod
    def first_record(self) -> int | None:
        """A fingerprint of the first record of all; None where it cannot be told."""

    @property
    @abstractmethod
    def num_parts(self) -> int | None:
        """Parts that files were split into; None where they are not split, or it is not known."""

    @abstractmethod
    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """The number of rows of each of some shards of an epoch, where all are known beforehand."""

    @abstractmethod
    def locate(self, shard: Shard, row: int) -> Cursor:
        """Where a row stands, found without reading; asked only where lengths are known."""

    @abstractmethod
    def all_ids(self, worker: int, num_workers: int) -> Iterable[Ids] | None:
        """A share of the ids of all rows of an epoch; None where they are not known."""

    @abstractmethod
    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many files of the shard its first rows are from.

        Asked only where lengths are known and the stream has parts.
        """
