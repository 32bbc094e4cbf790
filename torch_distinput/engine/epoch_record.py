"""What has been delivered of an epoch: written where steps are handed out, read for a state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple

from torch_distinput.cluster.handshake import NOT_KNOWN
from torch_distinput.data.user_sources.states import next_epoch
from torch_distinput.plan.progress.position import Position, StreamPosition

if TYPE_CHECKING:
    from torch_distinput.plan.progress.delivered import Progress
    from torch_distinput.plan.progress.schedule import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a feed starts: with it the progress that a step carries tells a position.

    A step carries a small value, and the position is made of it only when a state is asked for.

    Attributes:
        position: where the epoch stands before the first step, with the layout of this cluster.
        shared: all workers read one stream.
        known: the steps, where they are known before they are read.
    """

    position: Position
    shared: bool = True
    known: Schedule | None = None

    def advance(self, progress: Progress | int | None) -> Position:
        """Where the epoch stands after a step, but for steps and examples.

        ``progress``: of a source with an index None, as those two tell all; where lengths are known
        how many steps of the layout are over, which nobody needs to be asked; else what all
        workers have told.
        """
        if progress is None:
            return self.position
        if not isinstance(progress, int):
            return progress.to_position(self.position, shared=self.shared)
        assert self.known is not None, "only planned steps are counted"
        rows = self.known.count_delivered(progress)
        return replace(self.position, steps_done=progress, rows=rows, files_touched=())


class StepEnd(NamedTuple):
    """Where the epoch stands after one step, whatever is delivered since.

    Attributes:
        origin: where the feed started.
        progress: what the step told; see :meth:`Origin.advance`.
        steps: steps delivered until then.
        examples: examples delivered until then, over all replicas in sync.
    """

    origin: Origin
    progress: Progress | int | None
    steps: int
    examples: int

    @property
    def position(self) -> Position:
        """The position, made of it when it is asked for."""
        position = self.origin.advance(self.progress)
        return replace(position, steps=self.steps, examples=self.examples)


class EpochRecord:
    """Outlives its iterator, so that a loop that was left can still be saved."""

    def __init__(self, before: Position, dataset: int) -> None:
        """Begin where the iterator begins; ``dataset``: its number."""
        self.before = before
        self.dataset = dataset
        self.thread: int | None = None  # that was handed the last step
        self._origin = Origin(position=before)
        self._progress: Progress | int | None = None
        self.steps = before.steps
        self.examples = before.examples
        self.ended = False  # the end of data was delivered, too
        self.failed = False  # it ended with an error

    def open(self, origin: Origin) -> None:
        """Note where the feed starts."""
        self._origin = origin

    def deliver(self, index: int, num_examples: int, progress: Progress | int | None) -> None:
        """Note a step, and what tells the position after it if anybody asks.

        It calls something first, and then only assigns: what a signal raises comes before or after.
        """
        self.thread = get_ident()
        self.steps = index + 1
        self.examples += num_examples
        self._progress = progress

    def find_end(self, index: int, num_examples: int, progress: Progress | int | None) -> StepEnd:
        """The end of a step that is about to be delivered."""
        return StepEnd(self._origin, progress, index + 1, self.examples + num_examples)

    @property
    def position(self) -> Position:
        """Where the epoch stands after the last step; as it was given before the first."""
        return self.before if self.steps == self.before.steps else self.step_end.position

    @property
    def step_end(self) -> StepEnd:
        """The end of the last step; there has been one."""
        return StepEnd(self._origin, self._progress, self.steps, self.examples)

    @property
    def has_begun(self) -> bool:
        """Whether anything was delivered, if only the end."""
        return self.steps > self.before.steps or self.ended

    @property
    def steps_to_compare(self) -> int | str:
        """What other workers must have delivered, too; after an error they may be elsewhere."""
        return NOT_KNOWN if self.failed else self.steps

    def begin_next(self, first: Position) -> Position:
        """The beginning of another epoch: a source that tells where it is goes on from there."""
        known = self.position
        if len(known.streams) != len(first.streams):  # of another cluster, and nothing delivered
            return first
        streams = tuple(
            self._next(new, old) for new, old in zip(first.streams, known.streams, strict=True)
        )
        return replace(first, streams=streams)

    def _next(self, new: StreamPosition, old: StreamPosition) -> StreamPosition:
        place = old.segments[0].start if old.segments else None
        start = next_epoch(place, self.before.epoch, ended=self.ended)
        return replace(new, segments=(replace(new.segments[0], start=start),))
