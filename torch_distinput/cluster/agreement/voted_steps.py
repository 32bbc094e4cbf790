"""What the threads of an agreement hand to one another: steps, and why there are no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from torch_distinput.plan.progress.delivered import Progress
from torch_distinput.plan.progress.end_of_data import Outcome
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.tally import Tally


class Votable(Protocol):
    """What a vote must know of a step; nothing of its examples."""

    @property
    def num_rows(self) -> int:
        """Examples of this worker in the step."""

    @property
    def tally(self) -> Tally:
        """Numbers of this worker in the step; asked only where they are joined."""

    @property
    def mark(self) -> int:
        """Fingerprint of what all workers should have read alike, or 0."""

    @property
    def num_bytes(self) -> int:
        """Host memory that the step holds."""

    @property
    def resume_point(self) -> ResumePoint | None:
        """A place at or before the step from which the worker's stream can be read again."""

    @property
    def num_touched(self) -> int:
        """How many of the files assigned to the worker the rows up to here are from."""


S = TypeVar("S", bound=Votable)
JoinTallies = Callable[[list[Tally]], list[Tally]] | None
"""From this worker's numbers of each step, as far as it has steps, to those of all workers."""
NoteVote = Callable[[list[S]], None] | None
"""Told the steps on which this worker is about to vote, by who measures what it waits for."""


class Agreed(NamedTuple):
    """A step that all workers play.

    Attributes:
        step: this worker's part, a :class:`Votable`; None if it has ended. (A tuple with names has
            no type parameter before Python 3.11.)
        num_bytes: what it holds.
        num_examples: examples over all replicas in sync.
        progress: where all workers stand after it.
        tally: numbers of the step over all workers, where they are joined.
    """

    step: Any
    num_bytes: int
    num_examples: int
    progress: Progress
    tally: Tally | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Why there are no more steps.

    Attributes:
        outcome: ``ENDED``, or what went wrong.
        workers: the workers it names.
        words: what failed workers said, by worker; empty where no worker was told.
        error: this worker's own error, or that of the channel.
    """

    outcome: Outcome
    workers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    error: BaseException | None = None

