"""What a worker shows the others of itself: what it does, how far it is, whether it failed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import NamedTuple

from torch_distinput.cluster.liveness.process_identity import ProcessIdentity

Reached = tuple[int, int]
"""The number of an iteration, and how many of its steps were delivered; never goes back."""
LEFT = 1 << 62
"""As many steps as that, of an iteration whose loop was left."""
TRAINING = "training after"
"""What a worker does between two steps."""
READING = "reading"
"""What it does while its loop waits for its own data."""


class IterationProgress:
    """How far this worker is in one iteration.

    Main counts, and the thread in which the collector finds an iterator may say that its loop was
    left. Each writes an attribute of its own, so neither can undo what the other wrote.

    Attributes:
        number: the iteration's.
        delivered: how many steps of it.
        is_left: whether its loop was left: nobody needs to wait for more of its steps.
    """

    def __init__(self, number: int, *, is_left: bool = False) -> None:
        """Begin the iteration of that number."""
        self.number = number
        self.delivered = 0
        self.is_left = is_left

    @property
    def reached(self) -> Reached:
        """As it is told to others."""
        return self.number, LEFT if self.is_left else self.delivered


class Activity(NamedTuple):
    """What a worker is doing, since when, and how long it would wait for others there."""

    verb: str
    topic: str = ""
    step: int | None = None
    since: float = 0.0
    limit: float = math.inf

    @property
    def words(self) -> str:
        """As it is told to others."""
        place = self.topic if self.step is None else f"step {self.step} of {self.topic}"
        return f"{self.verb} {place}".rstrip()


class IterationFailure(NamedTuple):
    """What a worker failed in last, its words, and which iteration had begun there last by then."""

    topic: str
    words: str
    newest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What a worker posts, each time in place of the one before.

    Attributes:
        process: where it runs.
        beat: how many it has posted before.
        steps: how many steps it has delivered, over all iterators.
        activity: what it was doing, in words.
        seconds: for how long.
        vote: see :mod:`.coordinated_stop`.
        failed: the iteration in which it failed last, if any.
        reached: how far it is in the iteration that began last.
        has_left: this is the last one: the worker has ended, or its strategy is gone.
    """

    process: ProcessIdentity
    beat: int
    steps: int
    activity: str
    seconds: float
    vote: int | None
    failed: IterationFailure | None
    reached: Reached
    has_left: bool

    @classmethod
    def read(cls, text: str) -> Status:
        """Parse what :meth:`written` made."""
        said = json.loads(text)
        said["failed"] = IterationFailure(*said["failed"]) if said["failed"] else None
        said["reached"] = tuple(said["reached"])
        said["process"] = ProcessIdentity(*said["process"])
        return cls(**said)

    def written(self) -> str:
        """Write it."""
        return json.dumps(asdict(self))
