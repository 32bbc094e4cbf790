"""Sources that are read in order: planned where lengths are known, else agreed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, final

from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.steps.local_step import LocalStep, empty_step
from torch_distinput.data.steps.planned_steps import make_early_end_error
from torch_distinput.data.stream.bad_records import ReadCounter, ReadReport
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.engine.feeds import (
    Delivery,
    FailedSteps,
    Feed,
    OwnFeed,
    PlannedFeed,
)
from torch_distinput.engine.input import Opening
from torch_distinput.engine.steps import Steps
from torch_distinput.engine.voted_feed import VotedFeed, introduce_first
from torch_distinput.meter import WorkClock
from torch_distinput.plan.assignment.batching import Idle, Splitter
from torch_distinput.plan.progress.checksum import IdSum, Reading
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.position import Position, begin_epoch, make_layout
from torch_distinput.plan.progress.schedule import Schedule
from torch_distinput.plan.progress.state import Recipe
from torch_distinput.plan.progress.state_version_1 import ReadFlat

if TYPE_CHECKING:
    from torch_distinput.cluster.agreement.voted_steps import NoteVote


@final
class StreamedInput:
    """Steps that are read in order.

    Where their number is not known beforehand, several workers agree on them ahead of use.
    """

    def __init__(
        self,
        find: Callable[[], Steps],
        splitter: Splitter,
        *,
        read_version_1: ReadFlat,
        clock: WorkClock | None = None,
        has_one_kind: bool = False,
    ) -> None:
        """Take what finds files or shards, which is done late and once."""
        self._find = find
        self._splitter = splitter
        self.read_version_1 = read_version_1
        self.clock = clock
        self.has_one_kind = has_one_kind
        self._found: Steps | None = None
        self._prepared: PreparedStream | None = None

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch: one stream for all workers, or one for each."""
        num_streams = 1 if self._splitter.shared else self._splitter.topology.num_workers
        return begin_epoch(epoch, make_layout(self._splitter), num_streams)

    def recipe(self, position: Position) -> Recipe:  # noqa: ARG002
        """The files or shards, and what is done with them."""
        self._found = self._known_steps or self._find()
        return self._found.facts()

    def prepare(self, position: Position) -> PreparedStream:
        """Find the files or shards, unless they were found before."""
        steps = self._known_steps or self._find()
        steps.check(position)
        notes = None if self._prepared is None else self._prepared.notes
        self._prepared = PreparedStream(steps, position, self._splitter, self.clock, notes)
        return self._prepared

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Play all workers side by side, from the position to the step."""
        workers = (self._known_steps or self._find()).make_all_workers(position)
        read_counter = ReadCounter(self._splitter.topology.worker_index)
        started = [
            read_counter.sift(steps.start(position, steps.schedule(position))) for steps in workers
        ]
        number = position.steps
        for parts in zip_longest(*started):
            steps = [part or empty_step(position.layout.replicas_per_worker) for part in parts]
            if any(part.num_rows for part in steps):
                if number == step:
                    return workers[0].tally.join(steps)
                number += 1
        return None

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """What the stream knows of the ids in it."""
        steps = self._known_steps
        return None if steps is None else steps.expected_ids(before, after, reading)

    def num_steps(self, position: Position) -> int | None:
        """Steps of the epoch, those before the position included.

        None where they are unknown before the data is read.
        """
        known = self._schedule(position)
        return None if known is None else position.steps + known.num_left

    def idle(self, epoch: int) -> Idle | None:
        """The zero-row batches of an epoch; None where they are not known beforehand."""
        known = self._schedule(self.first(epoch))
        return None if known is None else known.idle

    def num_parts(self) -> int | None:
        """Those of the files that were split."""
        steps = self._known_steps
        return None if steps is None else steps.num_parts

    def spec(self, epoch: int) -> None:
        """Unknown before it is read."""

    @property
    def _known_steps(self) -> Steps | None:
        """What was found, with what all workers have told of it if an epoch was opened."""
        return self._found if self._prepared is None else self._prepared.steps

    def _schedule(self, position: Position) -> Schedule | None:
        """The steps from a position on, as this cluster plays them."""
        steps = self._known_steps
        return None if steps is None else steps.schedule(steps.resume(position))


@final
class PreparedStream:
    """An epoch of a source whose files or shards were found.

    Attributes:
        steps: this worker's; once it is open, with what all workers have found out.
        notes: what this worker found to be bad before anything was read; it is so in each epoch.
    """

    def __init__(
        self,
        steps: Steps,
        position: Position,
        splitter: Splitter,
        clock: WorkClock | None,
        notes: ReadReport | None,
    ) -> None:
        """Made by :meth:`StreamedInput.prepare`."""
        self.steps = steps
        self.notes = notes
        self._position = position
        self._splitter = splitter
        self._clock = clock

    @property
    def facts(self) -> dict[str, object]:
        """The files or shards that were found."""
        return self.steps.facts()

    def recipe(self, position: Position) -> Recipe:  # noqa: ARG002
        """The files or shards, and what is done with them."""
        return self.steps.facts()

    def share(self) -> object:
        """What this worker found in its share of the files."""
        found = self.steps.share()
        if found is None:  # perhaps in an earlier epoch
            return None
        share, self.notes = found
        return share

    def first_example(self, *, audited: bool) -> int | None:
        """What the workers do not compare in any case."""
        return self.steps.first_example(audited=audited)

    def open(self, opening: Opening) -> Feed:
        """Start reading, and voting where it must be."""
        origin = self.follow(opening.shares)
        opening.read_counter.add(self.notes)
        self.notes = self.notes and replace(self.notes, retries=0)  # those were of this epoch
        steps = self._start(opening.read_counter, origin)
        if origin.known is None:
            return self._agree(opening, origin, steps)
        worker = self._splitter.topology.worker_index
        deliveries = _pair_with_schedule(steps, origin.known)
        return PlannedFeed(
            deliveries, opening.monitor, origin=origin, worker=worker, spec=self.steps.spec
        )

    def follow(self, shares: list[Any]) -> Origin:
        """Where the epoch starts, once all know what each has found out."""
        if shares[0] is not None:
            self.steps = self.steps.with_shares(shares)
        position = self.steps.resume(self._position)
        known = None if self.steps.tally.is_needed else self.steps.schedule(position)
        return Origin(position=position, shared=self._splitter.shared, known=known)

    def _agree(self, opening: Opening, origin: Origin, steps: Iterator[LocalStep]) -> Feed:
        """Steps whose number is not known beforehand."""
        topology, shared = self._splitter.topology, self._splitter.shared
        counter = DeliveryCounter(
            origin.position,
            topology.num_workers,
            shared=shared,
            steps_per_batch=self.steps.steps_per_batch,
        )
        if topology.num_workers == 1:
            return OwnFeed(steps, counter, origin=origin)
        note_vote: NoteVote[LocalStep] = None
        if self._clock is not None:
            from torch_distinput.data.steps.timing import timed_steps  # noqa: PLC0415 - most do not

            steps, note_vote = timed_steps.time_steps(steps, self._clock), timed_steps.note_vote
        # Data of their own is compared once: whoever has not taken his part does not in any epoch.
        is_fingerprinted = not self.steps.is_dealt and origin.position.epoch == 0
        try:
            agreement = opening.agreement_channel.start(
                steps,
                shared=shared,
                introduce=partial(introduce_first, is_fingerprinted=is_fingerprinted),
                counter=counter,
                timeout=opening.timeout,
                tallied=self.steps.tally.size,
                note_vote=note_vote,
            )
        except ChannelBrokenError as error:
            opening.monitor.call_roll(error)
        return VotedFeed(
            agreement,
            opening.monitor,
            origin=origin,
            worker=topology.worker_index,
            timeout=opening.timeout,
            tally=self.steps.tally,
        )

    def _start(self, read_counter: ReadCounter, origin: Origin) -> Iterator[LocalStep]:
        """The steps; what starting them raises comes as their first, since the others wait."""
        try:
            started = self.steps.start(origin.position, origin.known, self._clock)
            return read_counter.sift(started)
        except Exception as error:
            if self._splitter.topology.num_workers == 1:
                raise
            return FailedSteps(error)


def _pair_with_schedule(steps: Iterator[LocalStep], known: Schedule) -> Iterator[Delivery]:
    """Each step with what the plan says of it."""
    for piece in known.iterate_steps():
        step = next(steps, None)
        if step is None:
            raise make_early_end_error()
        yield Delivery(step, piece.num_examples, piece.steps_done)
    more = next(steps, None)  # not in the assert: the source checks its counts here, also with -O
    assert more is None, "steps are cut by the same plan"
