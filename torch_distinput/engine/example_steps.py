"""Steps of examples in order: files, shards that are dealt out, streams without shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from torch_distinput.data.batch.spec import spec_of
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.processes import run_stages
from torch_distinput.data.sources.sequences.balance import Balance
from torch_distinput.data.sources.sequences.windowed_stream import makes_rows
from torch_distinput.data.sources.source import Prepared, StreamSource
from torch_distinput.data.steps.balanced import RowDealer
from torch_distinput.data.steps.budgeted import BudgetedDataset, BudgetReader
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.steps.rebatch import Finish, RebatchDataset
from torch_distinput.data.steps.step_padding import StepPadding
from torch_distinput.data.steps.step_tally import StepTally
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.protocols import CountedStream, Stream
from torch_distinput.data.stream.segments import locate_segments
from torch_distinput.engine.steps import (
    Steps,
    assigns_shards,
    check_shards,
    compare_fingerprints,
    compares_files,
    describe_settings,
    make_routes,
    sum_running_numbers,
)
from torch_distinput.meter import WorkClock
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.assignment.budget_batches import make_no_lengths_error
from torch_distinput.plan.progress.checksum import IdSum, Reading, sum_ids
from torch_distinput.plan.progress.position import (
    ALL,
    Position,
    Segment,
    StreamPosition,
    make_layout,
)
from torch_distinput.plan.progress.route import ReadPlan, Route, Shard
from torch_distinput.plan.progress.schedule import Schedule


def find_examples(source: StreamSource, route: Route, balance: Balance | None) -> ExampleSteps:
    """List the files or shards; FILE deals them out."""
    found = source.prepare()
    route = replace(route, has_parts=found.stream.has_parts)
    return ExampleSteps(source=source, found=found, route=route, balance=balance)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleSteps(Steps):
    """Examples in order: files, shards that are dealt out, streams without shards.

    Attributes:
        source: what was asked for.
        found: what there is of it.
        route: what this worker reads of that.
        balance: how rows are dealt, where it is by what they cost.
    """

    source: StreamSource
    found: Prepared
    route: Route
    balance: Balance | None

    @property
    def steps_per_batch(self) -> int:
        """As many as the splitter says."""
        return self.route.splitter.steps_per_batch

    @property
    def num_parts(self) -> int | None:
        """Of files that are split and dealt out, once all workers have looked into them."""
        if self._counted is None or not assigns_shards(self.route):
            return None
        return self._counted.num_parts

    @property
    def tally(self) -> StepTally:
        """Tokens of a budget, and examples by source, of what is this worker's own."""
        return StepTally.of(
            self._stream,
            self.route.splitter,
            counts_tokens=self._is_budgeted,
            padding=self._padding,
        )

    @property
    def _padding(self) -> StepPadding | None:
        """Makes rows as long as the longest of their step, where that was asked for."""
        collate = self.source.step_padding
        return None if collate is None else StepPadding(collate=collate)

    def facts(self) -> dict[str, object]:
        """The files or shards that were found, and what is done with them."""
        files = f"{self.found.num_shards or 'some'} (names and sizes: {self.found.digest})"
        settings = describe_settings(self.source.made_of, self.route)
        return {**self._stream.recipe, "files": files, **settings}

    def check(self, position: Position) -> None:
        """Refuse too few files or shards."""
        if self.found.num_shards is not None:
            check_shards(self.route, position, self.found.num_shards, self.source)

    def share(self) -> tuple[Any, ReadReport | None] | None:
        """What this worker found in its share of the files."""
        if self._counted is None:
            return None
        topology = self.route.splitter.topology
        return self._counted.share(topology.worker_index, topology.num_workers)

    def with_shares(self, shares: list[Any]) -> ExampleSteps:
        """Take what all workers found in their shares of the files."""
        assert self._counted is not None, "it has shared what it found"
        return replace(self, found=replace(self.found, stream=self._counted.with_shares(shares)))

    def resume(self, position: Position) -> Position:
        """Go on, perhaps with other workers: files that nobody touched are assigned again."""
        if self.route.splitter.shared and self._is_budgeted:
            return position.restart(make_layout(self.route.splitter))  # rows tell where it stands
        if self.route.lacks_files_touched(position):
            position = replace(position, files_touched=self._files_touched(position))
        return self.route.resume(position)

    def schedule(self, position: Position) -> Schedule | None:
        """The steps from a position on, where files tell how many records they have.

        None where all workers deal rows by what each of them finds that they cost: then they vote
        in any case, and compare the costs.
        """
        if self._is_budgeted or (self.balance is not None and self.route.splitter.shared):
            return None
        lengths = self._count_rows(position)
        if lengths is None:
            return None
        return Schedule(
            splitter=self.route.splitter,
            lengths=lengths,
            drop_last=self.source.request.drop_last,
            steps_done=position.steps_done,
        )

    def start(
        self, position: Position, known: Schedule | None, clock: WorkClock | None = None
    ) -> Iterator[LocalStep | ReadReport]:
        """Cut this worker's part of the stream."""
        splitter = self.route.splitter
        read_plan = self.route.plan_reads(position, self.steps_per_batch)
        if known is not None and self._counted is not None:
            read_plan = locate_segments(self._counted, read_plan, splitter.bounds)
        shard = self.route.make_shard(position, Segment())
        stream = self._stream
        if clock is not None:
            from torch_distinput.data.steps.timing import timed_steps  # noqa: PLC0415 - most do not

            stream = timed_steps.time_stream(stream, clock)
        if isinstance(splitter.global_batch_size, BatchBudget):
            size = splitter.global_batch_size
            dataset: Any = self._cut_by_budget(stream, size, position, read_plan)
        else:
            dataset = RebatchDataset(
                stream,
                read_plan,
                splitter=splitter,
                drop_last=self.source.request.drop_last,
                known=known,
                dealer=self._make_dealer(shard),
            )
        options = self.source.loader
        if not self._stream.has_work:
            options = replace(options, num_workers=min(1, options.num_workers), num_threads=0)
        lent, ahead = self.source.request.collate_fn is not None, options.num_threads > 0
        padding = self._padding
        finish: Any = Finish(stream, shard, splitter, lent=lent, ahead=ahead, padding=padding)
        if clock is not None:
            finish = timed_steps.count_finish(finish, stream, clock)
            if options.num_workers or options.num_threads:
                dataset = timed_steps.TimedCuts(dataset, clock)
                finish = timed_steps.TimedFinish(finish, clock)
        return run_stages(dataset, finish, options)

    def _cut_by_budget(
        self, stream: Stream, size: BatchBudget, position: Position, read_plan: ReadPlan
    ) -> BudgetedDataset:
        """Cut this worker's part by the lengths of the rows; ``size``: of the layout."""
        budget, splitter = self.source.request.budget, self.route.splitter
        if budget is None:
            raise make_no_lengths_error(size)
        worker = 0 if splitter.shared else splitter.topology.worker_index
        shard = self.route.make_shard(position, Segment())
        return BudgetedDataset(
            stream,
            read_plan,
            reader_of=partial(
                BudgetReader,
                stream=stream,
                shard=shard,
                length=budget.length,
                size=size,
            ),
            splitter=splitter,
            num_delivered=position.rows[worker],
            drop_last=self.source.request.drop_last,
            dealer=self._make_dealer(shard),
        )

    def _make_dealer(self, shard: Shard) -> RowDealer | None:
        if self.balance is None:
            return None
        return RowDealer(
            balance=self.balance, stream=self._stream, shard=shard, splitter=self.route.splitter
        )

    def spec(self) -> Any:
        """Read the first record of all; None if there is none."""
        shard = Shard(seed=self.route.seed, sparse=True)
        chunk = self._stream.open(shard).take(1)
        if chunk is None:
            return None
        return spec_of((self._stream.finish(chunk, shard), chunk.ids))

    def first_example(self, *, audited: bool) -> int | None:
        """The first record of files; of a source that deals out shards what it yields first."""
        if self._counted is not None:
            return self._counted.first_record() if compares_files(self.route) else None
        if not audited or not assigns_shards(self.route):
            return None
        whole = Shard(seed=self.route.seed)
        return compare_fingerprints(self._stream.open(whole).take(1) for _ in range(2))

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """Running numbers of a shared stream, or the records of counted files."""
        topology = self.route.splitter.topology
        if self.route.policy is AutoShardPolicy.OFF:
            return None  # all of it comes many times
        if self._is_budgeted and self.source.request.drop_last:
            return None  # what is left out is found where it is read
        if reading is not None and not makes_rows(self._stream):
            stop = self._end(before, reading)
            return sum_running_numbers(self.route, before.examples, stop)
        is_numbered = self._counted is None and not self.source.has_shards
        if self.route.splitter.shared and is_numbered:  # nobody to compare it with
            return sum_running_numbers(self.route, before.examples, after.examples)
        if before.steps or self.source.request.drop_last or self._counted is None:
            return None
        ids = self._counted.all_ids(topology.worker_index, topology.num_workers)
        return None if ids is None else sum(map(sum_ids, ids), IdSum())

    def make_all_workers(self, position: Position) -> list[Steps]:
        """Without loader processes; what all would have found in the files is found here."""
        self.check(position)
        alone = replace(self, source=replace(self.source, loader=LoaderOptions()))
        found = None if self._counted is None else self._counted.share(0, 1)
        if found is not None:
            alone = alone.with_shares([found[0]])
        return [replace(alone, route=route) for route in make_routes(self.route, position)]

    @property
    def _is_budgeted(self) -> bool:
        return isinstance(self.route.splitter.global_batch_size, BatchBudget)

    @property
    def _stream(self) -> Stream:
        return self.found.stream

    @property
    def _counted(self) -> CountedStream | None:
        """The stream, if its rows may be counted before they are read."""
        return self._stream if isinstance(self._stream, CountedStream) else None

    def _end(self, before: Position, reading: Reading) -> int:
        """The number of the example after the last one to be delivered, of those that were read."""
        if not self.source.request.drop_last:
            return reading.stop
        position = self.resume(before)
        first = position.examples - position.rows[0]  # of the layout
        bounds = replace(self.route.splitter.bounds, first=first)
        return bounds.find_last_end(reading.stop, drop_last=True)

    def _count_rows(self, position: Position) -> tuple[int, ...] | None:
        """All rows of each stream, counted as those delivered are; None if not known."""
        lengths = self._lengths(position)
        if lengths is not None:
            streams = zip(position.streams, lengths, strict=True)
            return tuple(stream.row + sum(rows) for stream, rows in streams)
        if self._counted is None or not (self.tally.is_needed and self.route.splitter.shared):
            return None
        # Workers have voted, so that a place was told by reading: it is a number for len() alone.
        whole = self._counted.lengths([self.route.make_shard(position, Segment())])
        return None if whole is None else (position.rows[0] + whole[0] - position.examples,)

    def _lengths(self, position: Position) -> list[list[int]] | None:
        """Rows of each segment of each stream, less those to pass over; None if not known."""
        if self._counted is None:
            return None
        streams = [self._segments(stream) for stream in position.streams]
        segments = [segment for stream in streams for segment in stream]
        if any(segment.start for segment in segments):
            return None  # found by reading: lengths were not known then
        shards = [self.route.make_shard(position, segment) for segment in segments]
        found = self._counted.lengths(shards)
        if found is None:
            return None
        rest = iter(found)
        return [[next(rest) - segment.skip for segment in stream] for stream in streams]

    def _segments(self, stream: StreamPosition) -> list[Segment]:
        return [segment for segment in stream.segments if self.route.holds_rows(segment)]

    def _files_touched(self, position: Position) -> tuple[int, ...]:
        """How many files of its own each worker has touched."""
        untold = (ALL,) * position.layout.num_workers
        if not self.route.has_parts:
            return untold
        if position.files_touched:
            return position.files_touched
        lengths = self._lengths(position)
        if lengths is None:
            return untold
        return tuple(
            self._num_touched(position, stream.segments[-1], rows - stream.row - sum(before))
            for stream, rows, (*before, _) in zip(
                position.streams, position.rows, lengths, strict=True
            )
        )

    def _num_touched(self, position: Position, own: Segment, rows: int) -> int:
        """How many files of a worker's own its first rows are from."""
        rows += own.skip
        assert self._counted is not None, "lengths are known"
        shard = self.route.make_shard(position, own)
        return self._counted.num_touched(shard, rows) if rows > 0 else 0
