"""A mixture of sources that are read in order; where a source ends is found by reading.

A place in it holds where each source stands, and the next turn. Of "web" and "code" after 7 rows:

    ["mixture", ["phase", 0], ["turn", 7], ["ended", [0, 0]], ["passes", [0, 0]],
        ["delivered", [5, 2]], ["skips", [5, 2]], ["skip", 0], ["from", null, null]]

``turn`` counts from ``phase``: the place of the order at which the last source fell out, after
which those that are left share anew. Where shares are of tokens, it holds also ``dues`` (see
:class:`TokenTurns`), and how many ``rows`` were read next, with a digest of their ``turns``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import CollateFn, collate_with
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.mixed import MixedRows
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.sources.mixing.mixed_reader import MixedReader, MixedSources
from torch_distinput.data.sources.mixing.mixed_rows import check_num_examples, merge_rows
from torch_distinput.data.sources.sequences.lengths import measure_rows
from torch_distinput.data.sources.sequences.window_plan import RowPlan
from torch_distinput.data.sources.sequences.windowed_stream import WindowedStream
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids
from torch_distinput.data.stream.protocols import CountedStream, RowReader, Stream
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.plan.assignment.mixed_order import derive_seed
from torch_distinput.plan.assignment.mixing import ALL
from torch_distinput.plan.assignment.shares import Shares
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard


@final
@dataclass(frozen=True, kw_only=True)
class MixedStream(CountedStream):
    """Streams that take turns.

    Attributes:
        names: of the sources.
        streams: each of them.
        shares: of the order.
        stop: when an epoch ends.
        facts: what decides the order, for states.
        collate: the user's, which gets examples of all sources at once; else each source makes
            columns of its own.
        length: tells the tokens of an example, where shares are of these.
    """

    names: tuple[str, ...]
    streams: tuple[Stream, ...]
    shares: Shares
    stop: str
    facts: Mapping[str, Any]
    collate: CollateFn | None
    length: Length | None

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start all sources."""
        sources = MixedSources(
            names=self.names,
            shares=self.shares,
            stop=self.stop,
            id_width=_count_id_numbers(self),
            open_source=partial(self._open_source, shard),
            measure=None if self.length is None else partial(self._measure, shard),
        )
        return MixedReader(sources, shard, start)

    def _open_source(self, shard: Shard, number: int, times: int, start: Start) -> RowReader:
        """Start one of them; ``times``: how often it was played before."""
        return self.streams[number].open(self._shard_of(number, shard, times), start)

    def _measure(
        self, shard: Shard, number: int, times: int, chunk: Chunk, first: int
    ) -> list[int]:
        """The tokens of each of some rows of a source, which are mapped for it."""
        assert self.length is not None, "shares are of tokens"
        examples = self.streams[number].examples(chunk, self._shard_of(number, shard, times))
        name = f"length of {self.names[number]!r}"
        found: list[int] = measure_rows(self.length, examples, name=name, first=first).tolist()
        return found

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Let each source finish its rows, and put them in order."""
        if self.collate is not None:
            return collate_with(self.collate, self.examples(chunk, shard))
        parts: dict[int, list[Batch]] = {}
        for number, own, its in self._parts(chunk, shard):
            batch = rows.with_tensors(self.streams[number].finish(own, its))
            parts.setdefault(number, []).append(batch)
        joined = {number: rows.concat_rows(batches) for number, batches in parts.items()}
        return merge_rows(self.names, chunk.data.sources, joined)

    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:
        """The examples of all sources, in order."""
        found: dict[int, list[Any]] = {}
        for number, own, its in self._parts(chunk, shard):
            examples = self.streams[number].examples(own, its)
            check_num_examples(self.names[number], examples, own.num_rows)
            found.setdefault(number, []).extend(examples)
        left = {number: iter(examples) for number, examples in found.items()}
        return [next(left[source]) for source in chunk.data.sources.tolist()]

    def count_sources(self, chunk: Chunk) -> tuple[dict[str, int], dict[str, int]]:
        """How many rows are of each source, and how often all had begun again by the last one.

        The place tells it of those that have no row here: perhaps of a run before this one.
        """
        ids, start = chunk.ids, chunk.place.start
        counts = np.bincount(ids[:, 0], minlength=len(self.names))
        assert start is not None, "the reader tells where each row stands"
        repeats = np.array(start.several("passes", len(self.names)))
        np.maximum.at(repeats, ids[:, 0], ids[:, 1])
        return (
            dict(zip(self.names, counts.tolist(), strict=True)),
            dict(zip(self.names, repeats.tolist(), strict=True)),
        )

    @property
    def has_work(self) -> bool:
        """If any of them has."""
        return self.collate is not None or any(stream.has_work for stream in self.streams)

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How they are mixed, and what each source is."""
        own = {
            f"{name}: {fact}": value
            for name, stream in zip(self.names, self.streams, strict=True)
            for fact, value in stream.recipe.items()
        }
        return {**self.facts, **own}

    @property
    def has_parts(self) -> bool:
        """Where all that was dealt out is played in any case, and can be dealt out again."""
        return self.stop == ALL and all(stream.has_parts for stream in self.streams)

    def share(self, worker: int, num_workers: int) -> tuple[Any, ReadReport | None] | None:
        """What this worker finds out for all of each source."""
        shares = [
            stream.share(worker, num_workers) if isinstance(stream, CountedStream) else None
            for stream in self.streams
        ]
        if all(share is None for share in shares):
            return None
        reports = [share[1] for share in shares if share is not None]
        return [share and share[0] for share in shares], _join_reports(reports)

    def with_shares(self, shares: Sequence[Any]) -> MixedStream:
        """The same with what all workers found out."""
        columns = zip(*shares, strict=True)
        streams = (
            stream.with_shares(own)
            if isinstance(stream, CountedStream) and own[0] is not None
            else stream
            for stream, own in zip(self.streams, columns, strict=True)
        )
        return replace(self, streams=tuple(streams))

    def first_record(self) -> int | None:
        """Of those of all sources of files."""
        counted = [stream for stream in self.streams if isinstance(stream, CountedStream)]
        records = [stream.first_record() for stream in counted]
        return None if None in records or not records else fingerprint(records)

    @property
    def num_parts(self) -> int | None:
        """Those of the source that has fewest."""
        parts = [s.num_parts if isinstance(s, CountedStream) else None for s in self.streams]
        return min((number for number in parts if number is not None), default=None)

    def lengths(self, shards: Sequence[Shard]) -> None:
        """Not known beforehand: where a source ends is found by reading."""

    def locate(self, shard: Shard, row: int) -> Cursor:
        """Never asked for, as lengths are not known."""
        raise NotImplementedError

    def all_ids(self, worker: int, num_workers: int) -> None:
        """Not known beforehand."""

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """Never asked for, as lengths are not known."""
        raise NotImplementedError

    def _shard_of(self, number: int, shard: Shard, times: int) -> Shard:
        """A shard of one source, with a seed of its own each time it is played.

        Nobody watches what is read of it: the rows of all sources are compared together.
        """
        seed = derive_seed(shard.seed, self.names[number], times)
        return replace(shard, seed=seed, watched=False)

    def _parts(self, chunk: Chunk, shard: Shard) -> Iterator[tuple[int, Chunk, Shard]]:
        """The rows of each source, and of each time that it was played."""
        mixed = chunk.data
        assert isinstance(mixed, MixedRows), "made by the reader"
        for number, part in enumerate(mixed.parts):
            if part is None:
                continue
            ids = chunk.ids[mixed.sources == number]
            width = 2 + _count_id_numbers(self.streams[number])  # others may have wider ones
            own = Chunk(data=part, ids=ids[:, 2:width])
            for times, start, stop in _find_runs(ids[:, 1]):
                yield number, own.slice(start, stop), self._shard_of(number, shard, times)


def _count_id_numbers(stream: Stream) -> int:
    """How many numbers an id has, at most: a file and a record, and what is made of them adds."""
    if isinstance(stream, MixedStream):
        return 2 + max(map(_count_id_numbers, stream.streams))
    if isinstance(stream, WindowedStream):
        return _count_id_numbers(stream.inner) + isinstance(stream.plan, RowPlan)
    return 2


def _find_runs(values: Ids) -> Iterator[tuple[int, int, int]]:
    """Equal values that follow each other: the value, the first row and the one after the last.

    Where a worker goes on with what several have begun, the first pass may follow the second.
    """
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    return zip(values[starts].tolist(), starts, [*starts[1:], len(values)], strict=True)


def _join_reports(reports: Sequence[ReadReport | None]) -> ReadReport | None:
    there = [report for report in reports if report is not None]
    if not there:
        return None
    return ReadReport(
        skipped=dict(sum((Counter(report.skipped) for report in there), Counter())),
        words={path: word for report in there for path, word in report.words.items()},
        retries=sum(report.retries for report in there),
    )
