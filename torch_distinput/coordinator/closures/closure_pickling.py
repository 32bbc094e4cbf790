"""What an argument of ``schedule`` may be a handle of, and the moment when it travels.

That moment is noted per thread: a thread writes and reads its own, and nothing is guarded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, final

from torch_distinput.coordinator.closures.dataset_record import IteratorRecord
from torch_distinput.errors import UsageError


@final
class ClosurePickling:
    """One pickling of a closure.

    Attributes:
        owner: the coordinator that schedules it.
        iterators: those that were met.
        refusal: why something that was met must not travel.
    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.iterators: set[IteratorRecord] = set()
        self.refusal: Exception | None = None


class _Local(threading.local):
    pickling: ClosurePickling | None = None


_local = _Local()


@contextmanager
def pickling_closure(owner: object) -> Iterator[ClosurePickling]:
    """Note the handles that are pickled inside; raise why one was refused, whatever pickle says."""
    before, _local.pickling = _local.pickling, ClosurePickling(owner)
    try:
        yield _local.pickling
    except Exception:
        refusal = _local.pickling.refusal
        if refusal is None:
            raise
        raise refusal from None
    finally:
        _local.pickling = before


def note_iterator(owner: object, record: IteratorRecord) -> None:
    """A handle of an iterator is pickled: only a closure of its own coordinator may take it."""
    current = _local.pickling
    if current is None:
        msg = (
            "Expected the handle of a per-worker iterator to be an argument of "
            "ClusterCoordinator.schedule, got a pickle or a copy of it. Pass the handle itself."
        )
        raise UsageError(msg)
    check_owner(owner, f"the iterator of {record.dataset}", "create_per_worker_dataset on it")
    current.iterators.add(record)


def check_owner(owner: object, what: str, cure: str) -> None:
    """Refuse what is pickled for a closure of another coordinator."""
    if _local.pickling is not None and _local.pickling.owner is not owner:
        refuse(
            UsageError(
                f"Expected handles of the coordinator that schedules the closure, got {what} of "
                f"another coordinator, which its workers do not know. Call {cure}."
            )
        )


def refuse(error: Exception) -> NoReturn:
    """Raise an error in ``__reduce__``, so that it is what ``schedule`` raises."""
    if _local.pickling is not None:
        _local.pickling.refusal = error
    raise error
