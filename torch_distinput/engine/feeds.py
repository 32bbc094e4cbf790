"""Three ways to this worker's next step, by what is known of the lengths.

PlannedFeed   all workers know all lengths: arithmetic, no communication per step
OwnFeed       one worker: nobody to ask
VotedFeed     several workers, unknown lengths: steps agreed on ahead of use (in voted_feed, which
              is not imported where nobody has to agree)

Around any of them:

FingerprintFeed  partners that all read compare what they have read first
SlicedFeed       context parallel ranks get slices of the sequences
TurnFeed         one thread at a time is in the source, over all epochs of a dataset

    thread                            lock of the dataset's :class:`SourceTurn`
    prefetch, or caller of ``next``   has it while it pulls a step, or asks for a spec
    caller of ``replay()``            has it while it reads
    caller of ``element_spec``        has it while it reads
    caller of ``iter()``              waits until nobody has it, before it prepares the source

Whoever pulls steps counts them, and tells the number; no feed counts. A ``FingerprintFeed`` is
written by who pulls its first step, and read by who has got that step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.spec import spec_of
from torch_distinput.data.batch.tree import map_leaves
from torch_distinput.data.sources.spot_check import drop_folders
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.errors import SourceError
from torch_distinput.threads import new_lock

if TYPE_CHECKING:
    from torch_distinput.data.steps.sequence_slices import SequenceSlices
    from torch_distinput.plan.progress.delivered import DeliveryCounter, Progress

_POLL_SECONDS = 0.005
"""Time between two looks whether a thread has left the source; as a rule none is there."""


class Delivery(NamedTuple):
    """One step.

    Attributes:
        step: this worker's part; None if it has ended.
        num_examples: examples over all replicas in sync.
        progress: tells where the epoch stands after it; see :meth:`Origin.advance`.
    """

    step: LocalStep | None
    num_examples: int
    progress: Progress | int | None = None


class Feed(Protocol):
    """Hands over steps until the end of data, which is the same step on all workers."""

    @property
    def origin(self) -> Origin:
        """Where it starts."""

    def next(self, index: int) -> Delivery | None:
        """The next step, which is the one of this number; None after the last one."""

    def spec(self) -> Any:
        """The spec of a batch with ids, as far as the first steps tell it; else None."""

    def close(self) -> None:
        """Stop reading ahead."""


@final
class PlannedFeed:
    """Steps whose counts are known to all."""

    def __init__(
        self,
        steps: Iterator[Delivery],
        monitor: PeerMonitor,
        *,
        origin: Origin,
        worker: int,
        spec: Callable[[], Any],
    ) -> None:
        """Take planned steps, and the way to a spec without a step."""
        self.origin = origin
        self._steps = steps
        self._spec = spec
        self._monitor = monitor
        self._worker = worker

    def next(self, index: int) -> Delivery | None:
        """Fetch the next step, and look for failures of the others.

        One of this worker is not told here: steps are read ahead, and the loop may be left before.
        """
        self._monitor.look()
        self._monitor.reading(index)
        try:
            planned = next(self._steps, None)
        except Exception as error:  # noqa: BLE001 - raised again with its place
            raise locate_error(error, self._worker, index) from find_cause(error)
        if planned is not None:
            self._monitor.check_company(index)
        return planned

    def spec(self) -> Any:
        """Collate an example to know."""
        return self._spec()

    def close(self) -> None:
        """Drop the steps, and with them the loader processes of this epoch."""
        self._steps = iter(())


@final
class OwnFeed:
    """The steps of a single worker."""

    def __init__(
        self, steps: Iterator[LocalStep], counter: DeliveryCounter, *, origin: Origin
    ) -> None:
        """Take the worker's steps; one without examples is not delivered."""
        self.origin = origin
        self._steps = _deliver(steps, counter)
        self._begun = False

    def next(self, index: int) -> Delivery | None:
        """Read the next step."""
        self._begun = True
        try:
            return next(self._steps, None)
        except Exception as error:  # noqa: BLE001 - raised again with its place
            raise locate_error(error, 0, index) from find_cause(error)

    def spec(self) -> Any:
        """Read the first step, which is then still to come."""
        first = None if self._begun else self.next(self.origin.position.steps)
        if first is None or first.step is None:
            return None
        self._steps = chain([first], self._steps)
        return spec_of_step(first.step)

    def close(self) -> None:
        """Drop the steps."""
        self._steps = iter(())


def _deliver(steps: Iterator[LocalStep], counter: DeliveryCounter) -> Iterator[Delivery]:
    """What a single worker delivers: it has only itself to agree with."""
    for step in steps:
        count, facts = step.num_rows, step.facts
        progress = counter.add_step(count, facts.num_touched, facts.resume_point)
        if count:
            yield Delivery(step, count, progress)


@final
class FingerprintFeed:
    """The steps of another feed, with a fingerprint of the first one.

    Data may lie elsewhere on each machine: of absolute paths the last part counts.

    Attributes:
        first: of the first step with examples of this worker; None before it.
    """

    def __init__(self, feed: Feed) -> None:
        """Take a feed that has handed over no step."""
        self.origin = feed.origin
        self.first: int | None = None
        self._feed = feed
        self.spec = feed.spec
        self.close = feed.close

    def next(self, index: int) -> Delivery | None:
        """The next step."""
        delivery = self._feed.next(index)
        if self.first is None and delivery is not None and delivery.step is not None:
            parts = [part for part in delivery.step.parts if part is not None]
            read = [(map_leaves(drop_folders, part.batch), part.ids) for part in parts]
            self.first = fingerprint(read) if read else None
        return delivery


@final
class SlicedFeed:
    """The steps of another feed, with this rank's slices of the sequences.

    Around what is broadcast, too: partners along the dimension get other slices.
    """

    def __init__(self, feed: Feed, slices: SequenceSlices, *, worker: int) -> None:
        """Take a feed; ``worker`` is named in errors."""
        self.origin = feed.origin
        self._feed = feed
        self._slices = slices
        self._worker = worker

    def next(self, index: int) -> Delivery | None:
        """Cut the next step."""
        delivery = self._feed.next(index)
        if delivery is None or delivery.step is None:
            return delivery
        cut, parts = self._slices.cut, delivery.step.parts
        try:
            own = tuple(None if part is None else cut(part) for part in parts)
        except SourceError as error:
            raise locate_error(error, self._worker, index) from error
        return delivery._replace(step=delivery.step._replace(parts=own))

    def spec(self) -> Any:
        """Cut what the feed says."""
        return self._slices.cut_spec(self._feed.spec())

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()


@final
class SourceTurn:
    """To read from the source of a dataset: one thread at a time, whichever epoch it plays.

    Attributes:
        lock: held by who reads. Only ``with`` takes it, so that Ctrl-C cannot leave it held.
    """

    def __init__(self) -> None:
        """Nobody reads."""
        self.lock = new_lock()

    def wait(self, seconds: float) -> bool:
        """Wait until nobody reads; False if somebody still does after so long."""
        wait_limit = WaitLimit(seconds)
        while self.lock.locked():
            if wait_limit.is_over:
                return False
            time.sleep(_POLL_SECONDS)
        return True


@final
class TurnFeed:
    """The steps of another feed, for which one thread at a time is in the source.

    A thread that copies ahead is not waited for long when its loop is left. If it is still inside a
    slow read when the next epoch begins, the two would move the same file, say, to other places.
    """

    def __init__(self, feed: Feed, turn: SourceTurn) -> None:
        """Take a feed, and what the feeds of all epochs have while they read."""
        self.origin = feed.origin
        self._feed = feed
        self._turn = turn
        self.close = feed.close

    def next(self, index: int) -> Delivery | None:
        """The next step."""
        with self._turn.lock:
            return self._feed.next(index)

    def spec(self) -> Any:
        """What the feed says, which may read an example."""
        with self._turn.lock:
            return self._feed.spec()


def spec_of_step(step: LocalStep) -> Any:
    """The spec of a step's first batch and its ids; None if all its batches are of zero rows."""
    part = next((part for part in step.parts if part is not None), None)
    return None if part is None else spec_of((part.batch, part.ids))


@final
class FailedSteps(Iterator[Any]):
    """Steps that could not be started: it is told to the others where steps are taken."""

    def __init__(self, error: Exception) -> None:
        """Take what was raised; a StopIteration, raised again, would pass for the end of data."""
        is_an_end = isinstance(error, StopIteration)
        self._error = source_error(error, "its start") if is_an_end else error

    def __next__(self) -> Any:
        """Raise it."""
        raise self._error


def find_cause(error: BaseException) -> BaseException:
    """What the source raised, without our own error around it."""
    return error.__cause__ if isinstance(error, SourceError) and error.__cause__ else error


def locate_error(error: BaseException, worker: int, step: int) -> BaseException:
    """Say on which worker and at which step; what is no error of the data stays what it is."""
    if not isinstance(error, Exception):
        return error
    said = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
    return SourceError(f"Worker {worker}, step {step}: {said}")
