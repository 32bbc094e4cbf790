"""Whose scope we are in, who delivered last, and whether we are inside ``run``.

All of it is per thread, so that simulated workers, which are threads, do not see each other: a
thread writes and reads its own, and nothing is guarded. A thread of a replica enters the scope and
the replica itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch_distinput.errors import UsageError

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session
    from torch_distinput.distribute.steps.loss_steps import IteratorSteps
    from torch_distinput.values import StepInfo


class _Local(threading.local):
    scopes: tuple[Session, ...] = ()  # also while a replica runs, in whatever thread
    replica: object = None
    delivered_last: weakref.ref[Session] | None = None  # weak: it leads to the process group


_local = _Local()


def entered_session() -> Session | None:
    """The session whose ``scope()`` or ``run`` we are in; None outside."""
    return _local.scopes[-1] if _local.scopes else None


def entered_replica() -> Any:
    """The context of the replica that runs here; None outside ``Strategy.run``."""
    return _local.replica


@contextmanager
def scope(session: Session) -> Iterator[None]:
    """Make a strategy current in this thread."""
    check_same_strategy(session)
    before = _local.scopes
    _local.scopes = (*before, session)
    try:
        yield
    finally:
        _local.scopes = before


@contextmanager
def replica(context: object) -> Iterator[None]:
    """Enter a replica context in this thread; None leaves it for a while."""
    before = _local.replica
    _local.replica = context
    try:
        yield
    finally:
        _local.replica = before


def check_cross_replica(session: Session, call: str) -> None:
    """Refuse a call that is for all replicas at once where one replica runs."""
    if _local.replica is not None:
        msg = (
            f"{call} is for all replicas at once and must be called outside Strategy.run. Inside, "
            "use get_replica_context().all_reduce, .all_gather or .merge_call."
        )
        raise UsageError(msg)
    check_same_strategy(session)


def check_may_iterate(session: Session) -> None:
    """Refuse ``next`` inside ``run`` and under another strategy's scope."""
    if _local.replica is not None:
        msg = (
            "next(iterator) must be called outside Strategy.run: one step has the batches of all "
            "replicas. Write strategy.run(fn, args=(next(iterator),))."
        )
        raise UsageError(msg)
    check_same_strategy(session)


def check_same_strategy(session: Session) -> None:
    """Refuse a strategy beside the one whose scope, or ``run``, is entered."""
    if _local.scopes and _local.scopes[-1] is not session:
        msg = (
            f"Mixing two strategies: expected {_local.scopes[-1].strategy!r}, whose scope() is "
            f"entered, got {session.strategy!r}. Use one strategy, or leave the scope first."
        )
        raise UsageError(msg)


def note_delivered(session: Session, by: IteratorSteps, info: StepInfo) -> None:
    """Note the step that was delivered last."""
    session.loss_steps.add(by, info)
    _local.delivered_last = weakref.ref(session)


def loss_session() -> Session | None:
    """Whose step a loss in this thread is of: who is entered, else who delivered last."""
    return entered_session() or (_local.delivered_last() if _local.delivered_last else None)
