"""Steps of examples that are read in order: files, dealt-out shards, opaque streams."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch_distinput.data.batch.spec import spec_of
from torch_distinput.data.loader.processes import LoaderOptions, run_stages
from torch_distinput.data.sources.source import Prepared, StreamSource
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.steps.rebatch import Finish, RebatchDataset
from torch_distinput.data.stream.bad_records import ReadCounter, ReadReport
from torch_distinput.data.stream.protocols import CountedStream, Stream
from torch_distinput.data.stream.segments import locate_segments
from torch_distinput.engine.steps import Steps
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.progress.checksum import IdSum, Reading, sum_ids
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import (
    Position,
    Segment,
    StreamPosition,
)
from torch_distinput.plan.progress.route import Shard
from torch_distinput.plan.progress.schedule import Schedule
from torch_distinput.plan.progress.state import Recipe
from torch_distinput.plan.progress.state_version_1 import Flat


class ExampleSteps(Steps):
    """Examples in order: files, dealt-out shards, opaque streams."""

    def __init__(
        self,
        source: StreamSource,
        splitter: Splitter,
        *,
        policy: AutoShardPolicy,
        seed: int,
        audited: bool = False,
    ) -> None:
        """Take a stream; FILE deals out its files or shards."""
        super().__init__(splitter, policy, seed, audited=audited)
        self._source = source
        self._prepared: Prepared | None = None
        self._notes: ReadReport | None = None

    def recipe(self) -> Recipe:
        """The files or shards that were found, and what is done with them."""
        self._prepared = prepared = self._prepared or self._source.prepare()
        return {
            **prepared.stream.recipe,
            "files": _digest(prepared),
            **self._settings(self._source.made_of),
        }

    def read_version_1(self, flat: Flat) -> Start:
        """In files, or in a source of the user's."""
        return self._source.read_version_1(flat)

    def facts(self, position: Position) -> dict[str, object]:
        """The files or shards that were found; they are looked for once."""
        prepared = self._prepared or self._source.prepare()
        if prepared.num_shards is not None:
            self._check_shards(position, prepared.num_shards, self._source.name)
        self._prepared = prepared
        return {"files": _digest(prepared), **self._settings(self._source.made_of)}

    def share(self) -> object:
        """What this worker found in its share of the files."""
        topology = self._splitter.topology
        if self._counted is None:
            return None
        found = self._counted.share(topology.worker_index, topology.num_workers)
        if found is None:
            return None
        share, self._notes = found
        return share

    def accept(self, shares: list[Any], read_counter: ReadCounter) -> None:
        """Take what all workers found in their shares of the files."""
        if shares[0] is not None:
            assert self._prepared is not None, "facts() comes first"
            assert self._counted is not None, "it has shared what it found"
            self._prepared = replace(self._prepared, stream=self._counted.with_shares(shares))
        read_counter.add(self._notes)
        self._notes = None

    def known(self, position: Position) -> Schedule | None:
        """The steps from a position on, where files tell how many records they have."""
        if self._prepared is None:
            return None
        lengths = self._lengths(position)
        if lengths is None:
            return None
        return Schedule(
            splitter=self._splitter,
            lengths=tuple(
                stream.row + sum(rows)
                for stream, rows in zip(position.streams, lengths, strict=True)
            ),
            drop_last=self._source.request.drop_last,
            steps_done=position.steps_done,
        )

    def start(
        self, position: Position, known: Schedule | None
    ) -> Iterator[LocalStep | ReadReport]:
        """Cut this worker's part of the stream."""
        read_plan = self._read_plan(position)
        if known is not None and self._counted is not None:
            read_plan = locate_segments(self._counted, read_plan, self._splitter.bounds)
        dataset = RebatchDataset(
            self._stream,
            read_plan,
            splitter=self._splitter,
            drop_last=self._source.request.drop_last,
            known=known,
        )
        options = self._source.loader
        if options.num_workers > 1 and not self._stream.has_work:
            options = replace(options, num_workers=1)
        lent = self._source.request.collate_fn is not None
        shard = self._shard(position, Segment())
        return run_stages(dataset, Finish(self._stream, shard, self._splitter, lent=lent), options)

    def first_example(self) -> int | None:
        """What a source yields that deals out shards; of files names and sizes are compared."""
        self._prepared = prepared = self._prepared or self._source.prepare()
        if not self._deals_shards or isinstance(prepared.stream, CountedStream):
            return None
        whole = Shard(seed=self._seed)
        return self._print_of(prepared.stream.open(whole).take(1) for _ in range(2))

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """Running numbers of a shared stream, or the records of counted files."""
        topology = self._splitter.topology
        worker, num_workers = topology.worker_index, topology.num_workers
        if self._policy is AutoShardPolicy.OFF:
            return None  # all of it comes many times
        if reading is not None:
            return self._running_numbers(before.examples, self._end(before, reading))
        if self._splitter.shared and not self._source.has_shards:  # with nobody to compare it with
            return self._running_numbers(before.examples, after.examples)
        if before.steps or self._source.request.drop_last or self._counted is None:
            return None
        ids = self._counted.all_ids(worker, num_workers)
        return None if ids is None else sum(map(sum_ids, ids), IdSum())

    def _end(self, before: Position, reading: Reading) -> int:
        """Behind the last example to be delivered, of those that were read."""
        if not self._source.request.drop_last:
            return reading.stop
        position = self.resumed(before)
        first = position.examples - position.rows[0]  # of the layout
        bounds = replace(self._splitter.bounds, first=first)
        return bounds.find_last_end(reading.stop, drop_last=True)

    def replayed(self, position: Position) -> list[Steps]:
        """The steps of each worker; a copy looks into the files, so that this one still may."""
        self.facts(position)
        alone = copy.copy(self)
        alone._source = replace(self._source, loader=LoaderOptions())  # noqa: SLF001 - its own
        found = None if self._counted is None else self._counted.share(0, 1)
        if found is not None:
            alone.accept([found[0]], ReadCounter(0))
        return super(ExampleSteps, alone).replayed(position)

    def spec(self) -> Any:
        """Read the first record of all; None if there is none."""
        shard = Shard(seed=self._seed, sparse=True)
        chunk = self._stream.open(shard).take(1)
        if chunk is None:
            return None
        return spec_of((self._stream.finish(chunk, shard), chunk.ids))

    def _lengths(self, position: Position) -> list[list[int]] | None:
        """Rows of each segment of each stream, less those to pass over; None if not known."""
        if self._counted is None:
            return None
        streams = [self._segments(stream) for stream in position.streams]
        segments = [segment for stream in streams for segment in stream]
        if any(segment.start for segment in segments):
            return None  # found by reading: lengths were not known then
        found = self._counted.lengths([self._shard(position, segment) for segment in segments])
        if found is None:
            return None
        rest = iter(found)
        return [[next(rest) - segment.skip for segment in stream] for stream in streams]

    def _segments(self, stream: StreamPosition) -> list[Segment]:
        return [segment for segment in stream.segments if self._route.holds_rows(segment)]

    def _files_touched(self, position: Position) -> tuple[int, ...]:
        if not self._has_parts:
            return super()._files_touched(position)
        if position.files_touched:
            return position.files_touched
        lengths = self._lengths(position)
        if lengths is None:
            return super()._files_touched(position)
        return tuple(
            self._num_touched(position, stream.segments[-1], rows - stream.row - sum(before))
            for stream, rows, (*before, _) in zip(
                position.streams, position.rows, lengths, strict=True
            )
        )

    def _num_touched(self, position: Position, lane: Segment, rows: int) -> int:
        """How many files of a worker's own lane its first rows are from."""
        rows += lane.skip
        assert self._counted is not None, "lengths are known"
        return self._counted.num_touched(self._shard(position, lane), rows) if rows > 0 else 0

    @property
    def _has_parts(self) -> bool:
        """Whether what was dealt out to a worker can be dealt out again, file by file."""
        return self._counted is not None and self._counted.has_parts

    @property
    def _counted(self) -> CountedStream | None:
        """The stream, if its rows may be counted before they are read."""
        return self._stream if isinstance(self._stream, CountedStream) else None

    @property
    def _stream(self) -> Stream:
        assert self._prepared is not None, "facts() comes first"
        return self._prepared.stream


def _digest(prepared: Prepared) -> str:
    digest = hashlib.blake2b(prepared.contents.encode(), digest_size=8).hexdigest()
    return f"{prepared.num_shards or 'some'} (names and sizes: {digest})"
