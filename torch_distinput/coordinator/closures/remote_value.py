"""The value of a closure, wherever it is.

    thread            writes             reads
    any of the user's _value             _value, the closure's outcome (by way of the queue)

``_value`` is assigned once it is whole, and then the worker's is let go. Two threads that fetch at
once may both read the worker's; whoever comes second takes what the first one has kept.
"""

from __future__ import annotations

from typing import Any, NoReturn, final

import numpy as np
import torch

from torch_distinput.coordinator.closures.closure import (
    Cancelled,
    Closure,
    ClosureOutcome,
    Failed,
    Kept,
)
from torch_distinput.coordinator.closures.closure_pickling import refuse
from torch_distinput.coordinator.closures.queue import ClosureQueue
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.data.batch.serialized import deserialize
from torch_distinput.errors import ClosureCancelledError, UsageError, WorkerLostError, again


@final
class RemoteValue:
    """What :meth:`ClusterCoordinator.schedule` returns (``tf.distribute.coordinator.RemoteValue``).

    A value of up to 64 KiB comes with the end of its closure. A larger one stays in its worker
    until it is fetched, and is dropped there when this object is.
    """

    def __init__(self, queue: ClosureQueue, closure: Closure) -> None:
        """Made by ``schedule``."""
        self._queue = queue
        self._closure = closure
        self._value: tuple[Any] | None = None

    def __repr__(self) -> str:
        """Show which closure it is of, and whether that has ended."""
        outcome = self._closure.outcome
        state = "not there yet" if outcome is None else type(outcome).__name__.lower()
        return f"RemoteValue({self._closure}, {state})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be an argument of a closure: any worker may run it."""
        refuse(
            UsageError(
                f"Expected arguments that can travel to any worker, got the RemoteValue of "
                f"{self._closure}, which may be in another one. Fetch it first: "
                "schedule(fn, args=(value.fetch(),))."
            )
        )

    def fetch(self) -> Any:
        """Wait for the closure, and return its value; each time the same one.

        Raises:
            ClosureCancelledError: it was not run, because another one failed before.
            WorkerLostError: its worker died with the value in it.
            Exception: what the function raised.
        """
        if self._value is None:
            outcome = self._queue.wait_for(self._closure)
            try:
                value = (self._read(outcome),)
            except WorkerLostError:
                if self._value is None:  # else another thread has fetched it meanwhile
                    raise
            else:
                self._value = self._value or value
            if isinstance(outcome, Kept):
                outcome.let_go()
        return self._value[0]

    def _read(self, outcome: ClosureOutcome) -> Any:
        if isinstance(outcome, Failed):
            raise again(outcome.error)
        if isinstance(outcome, Cancelled):
            msg = (
                f"Expected {self._closure} to have run, but it was cancelled: {outcome.failure} "
                "Schedule it again."
            )
            raise ClosureCancelledError(msg)
        if isinstance(outcome, Kept):
            return self._read_kept(outcome)
        return deserialize(torch.frombuffer(bytearray(outcome.value), dtype=torch.uint8))

    def _read_kept(self, kept: Kept) -> Any:
        try:
            content = kept.remote.call("fetch", kept.number)
        except ProcessDiedError as error:
            raise self._make_lost_error(kept, f" ({error})") from error
        if content is None:
            raise self._make_lost_error(kept, " since then, and was started again")
        return deserialize(torch.from_numpy(np.require(content, requirements="W")))

    def _make_lost_error(self, kept: Kept, how: str) -> WorkerLostError:
        return WorkerLostError(
            f"Expected the value of {self._closure} in {kept.remote.name}, which has died{how}. "
            "Values over 64 KiB stay where they are until they are fetched: fetch them as they "
            "come, or schedule the closure again."
        )


def fetch_all(structure: Any) -> Any:
    """The structure with the value of each :class:`RemoteValue` in its place."""
    if isinstance(structure, RemoteValue):
        return structure.fetch()
    if isinstance(structure, dict):
        return {key: fetch_all(value) for key, value in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*map(fetch_all, structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(map(fetch_all, structure))
    return structure
