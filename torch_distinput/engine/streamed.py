"""Sources that are read in order: planned where lengths are known, else agreed on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.steps.indexed import ended_early
from torch_distinput.data.steps.local_step import LocalStep, empty_step
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.engine.feeds import Delivery, Feed, PlannedFeed, raising
from torch_distinput.engine.input import Opening
from torch_distinput.engine.steps import Steps
from torch_distinput.engine.streamed_feeds import OwnFeed, VotedFeed, introduction
from torch_distinput.plan.assignment.batching import Idle, Splitter
from torch_distinput.plan.progress.checksum import IdSum, Reading
from torch_distinput.plan.progress.delivered import DeliveryCounter, Progress
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.schedule import Schedule, ScheduledStep
from torch_distinput.plan.progress.state import Recipe
from torch_distinput.plan.progress.state_version_1 import Flat


class StreamedInput:
    """Steps that are read in order.

    Where their number is not known beforehand, several workers agree on them ahead of use.
    """

    def __init__(self, steps: Steps, splitter: Splitter) -> None:
        """Take this worker's steps."""
        self._steps = steps
        self._splitter = splitter

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch."""
        return self._steps.first(epoch)

    def read_version_1(self, flat: Flat) -> Start:
        """As the kind of source does."""
        return self._steps.read_version_1(flat)

    def recipe(self, position: Position) -> Recipe:  # noqa: ARG002
        """The files or shards, and what is done with them."""
        return self._steps.recipe()

    def facts(self, position: Position) -> dict[str, object]:
        """The files or shards that were found."""
        return self._steps.facts(position)

    def share(self) -> object:
        """What this worker found in its share of the files."""
        return self._steps.share()

    def open(self, opening: Opening) -> Feed:
        """Start reading, and voting where it must be."""
        self._steps.accept(opening.shares, opening.read_counter)
        position = self._steps.resumed(opening.position)
        known = self._steps.known(position)
        steps = self._started(opening.read_counter, position, known)
        if known is None:
            return self._agreed(opening, position, steps)
        deliveries = (
            Delivery(
                step=step,
                num_examples=scheduled.num_examples,
                where=partial(_known_position, position, known, scheduled.steps_done),
            )
            for step, scheduled in _paired(steps, known)
        )
        worker = self._splitter.topology.worker_index
        return PlannedFeed(
            deliveries,
            opening.watch,
            worker=worker,
            first_step=position.steps,
            spec=self._steps.spec,
        )

    def _agreed(self, opening: Opening, position: Position, steps: Iterator[LocalStep]) -> Feed:
        """Steps whose number is not known beforehand."""
        topology, shared = self._splitter.topology, self._splitter.shared
        steps_per_batch = self._steps.steps_per_batch
        where = partial(Progress.to_position, before=position, shared=shared)
        if topology.num_workers == 1:
            own = DeliveryCounter(position, 1, shared=shared, steps_per_batch=steps_per_batch)
            return OwnFeed(steps, own, where, first_step=position.steps)
        ledger = DeliveryCounter(
            position, topology.num_workers, shared=shared, steps_per_batch=steps_per_batch
        )
        try:
            agreement = opening.meeting.start(
                steps,
                shared=shared,
                introduce=introduction,
                ledger=ledger,
                timeout=opening.timeout,
            )
        except ChannelBrokenError as error:
            opening.watch.call_roll(error)
        return VotedFeed(
            agreement,
            opening.watch,
            worker=topology.worker_index,
            first_step=position.steps,
            timeout=opening.timeout,
            where=where,
        )

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Play all workers side by side, from the position to the step."""
        workers = self._steps.replayed(position)
        read_counter = ReadCounter(self._splitter.topology.worker_index)
        started = [
            read_counter.sift(steps.start(position, steps.known(position))) for steps in workers
        ]
        number = position.steps
        for parts in zip_longest(*started):
            steps = [part or empty_step(position.layout.replicas_per_worker) for part in parts]
            if any(part.count for part in steps):
                if number == step:
                    return steps
                number += 1
        return None

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """What the stream knows of the ids in it."""
        return self._steps.expected_ids(before, after, reading)

    def first_example(self) -> int | None:
        """What the workers do not compare in any case."""
        return self._steps.first_example()

    def num_steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None where they are unknown before the data is read."""
        known = self._steps.known(self.first(epoch))
        return None if known is None else known.num_steps

    def idle(self, epoch: int) -> Idle | None:
        """The zero-row batches of an epoch; None where they are not known beforehand."""
        known = self._steps.known(self.first(epoch))
        return None if known is None else known.idle

    def spec(self) -> None:
        """Unknown before it is read."""

    def _started(
        self, read_counter: ReadCounter, position: Position, known: Schedule | None
    ) -> Iterator[LocalStep]:
        """The steps; what starting them raises comes as their first, since the others wait."""
        try:
            return read_counter.sift(self._steps.start(position, known))
        except Exception as error:
            if self._splitter.topology.num_workers == 1:
                raise
            return raising(error)


def _paired(
    steps: Iterator[LocalStep], known: Schedule
) -> Iterator[tuple[LocalStep, ScheduledStep]]:
    """Each step with what the plan says of it."""
    for scheduled in known.iterate_steps():
        step = next(steps, None)
        if step is None:
            raise ended_early()
        yield step, scheduled
    assert next(steps, None) is None, "steps are cut by the same plan"


def _known_position(before: Position, known: Schedule, steps_done: int) -> Position:
    """Where an epoch of known lengths stands: nobody needs to be asked."""
    return replace(
        before, steps_done=steps_done, rows=known.count_delivered(steps_done), files_touched=()
    )
