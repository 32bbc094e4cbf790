"""Three ways to this worker's next step, by what is known of the lengths.

PlannedFeed   all workers know all lengths: arithmetic, no communication per step
OwnFeed       one worker: nobody to ask (in streamed_feeds)
VotedFeed     several workers, unknown lengths: steps agreed on ahead of use (there, too)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from torch_distinput.cluster.peer_monitor import Watch
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.position import Position


class Delivery(NamedTuple):
    """One step.

    Attributes:
        step: this worker's part; None if it has ended.
        num_examples: examples over all replicas in sync.
        where: tells where the epoch stands after it, but for steps and examples: they are counted
            where they are delivered.
    """

    step: LocalStep | None
    num_examples: int
    where: Callable[[], Position]


class Feed(Protocol):
    """Hands over steps until the end of data, which is the same step on all workers."""

    def next(self) -> Delivery | None:
        """The next step; None after the last one."""

    def spec(self) -> Any:
        """The spec of a batch with ids, as far as the first steps tell it; else None."""

    def close(self) -> None:
        """Stop reading ahead."""


class PlannedFeed:
    """Steps whose counts are known to all."""

    def __init__(
        self,
        steps: Iterator[Delivery],
        watch: Watch,
        *,
        worker: int,
        first_step: int,
        spec: Callable[[], Any],
    ) -> None:
        """Take planned steps, and the way to a spec without a step."""
        self._steps = steps
        self._spec = spec
        self._watch = watch
        self._worker = worker
        self._number = first_step

    def next(self) -> Delivery | None:
        """Fetch the next step; a failure here is told to the others, and theirs are looked for."""
        self._watch.look()
        self._watch.reading(self._number)
        try:
            planned = next(self._steps, None)
        except Exception as error:  # noqa: BLE001 - raised again with its place
            self._watch.tell(error)
            raise located(error, self._worker, self._number) from origin_of(error)
        if planned is not None:
            self._watch.check_company(self._number)
        self._number += 1
        return planned

    def spec(self) -> Any:
        """Collate an example to know."""
        return self._spec()

    def close(self) -> None:
        """Drop the steps, and with them the loader processes of this epoch."""
        self._steps = iter(())


def raising(error: BaseException) -> Iterator[Any]:
    """Steps that begin with an error: it is told to the others where steps are taken."""
    raise error
    yield


def origin_of(error: BaseException) -> BaseException:
    """What the source raised, without our own error around it."""
    return error.__cause__ if isinstance(error, SourceError) and error.__cause__ else error


def located(error: BaseException, worker: int, step: int) -> BaseException:
    """Say on which worker and at which step; what is no error of the data stays what it is."""
    if not isinstance(error, Exception):
        return error
    said = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
    return SourceError(f"Worker {worker}, step {step}: {said}")
