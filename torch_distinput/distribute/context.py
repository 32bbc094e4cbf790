"""Which strategy is current, what it delivered last, and whether we are inside ``run``.

All of it is per thread, so that simulated workers, which are threads, do not see each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_distinput.errors import UsageError

if TYPE_CHECKING:
    from torch_distinput.distribute.deliveries import Delivered
    from torch_distinput.distribute.replicas.replica import ReplicaContext
    from torch_distinput.distribute.strategy import Strategy
    from torch_distinput.values import StepInfo


class _Local(threading.local):
    scopes: tuple[Strategy, ...] = ()
    replica: ReplicaContext | None = None
    last: weakref.ref[Strategy] | None = None  # weak: it leads to the process group


_local = _Local()


def get_strategy() -> Strategy | None:
    """Return the strategy whose ``scope()`` or ``run`` we are in; None outside.

    ``tf.distribute.get_strategy``, which returns a default strategy instead of None.
    """
    if _local.replica is not None:
        return _local.replica.strategy
    return _local.scopes[-1] if _local.scopes else None


def get_replica_context() -> ReplicaContext | None:
    """Return the context of the replica that runs here; None outside ``Strategy.run``.

    ``tf.distribute.get_replica_context``.
    """
    return _local.replica


@contextmanager
def scope(strategy: Strategy) -> Iterator[None]:
    """Make a strategy current in this thread."""
    _check_same(strategy)
    before = _local.scopes
    _local.scopes = (*before, strategy)
    try:
        yield
    finally:
        _local.scopes = before


@contextmanager
def replica(context: ReplicaContext | None) -> Iterator[None]:
    """Enter a replica context in this thread; None leaves it for a while."""
    before = _local.replica
    _local.replica = context
    try:
        yield
    finally:
        _local.replica = before


def check_cross_replica(strategy: Strategy, call: str) -> None:
    """Refuse a call that is for all replicas at once where one replica runs."""
    if _local.replica is not None:
        msg = (
            f"{call} is for all replicas at once and must be called outside Strategy.run. Inside, "
            "use get_replica_context().all_reduce, .all_gather or .merge_call."
        )
        raise UsageError(msg)
    _check_same(strategy)


def check_may_iterate(strategy: Strategy) -> None:
    """Refuse ``next`` inside ``run`` and under another strategy's scope."""
    if _local.replica is not None:
        msg = (
            "next(iterator) must be called outside Strategy.run: one step has the batches of all "
            "replicas. Write strategy.run(fn, args=(next(iterator),))."
        )
        raise UsageError(msg)
    _check_same(strategy)


def _check_same(strategy: Strategy) -> None:
    if _local.scopes and _local.scopes[-1] is not strategy:
        msg = (
            f"Mixing two strategies: expected {_local.scopes[-1]!r}, whose scope() is entered, got "
            f"{strategy!r}. Use one strategy, or leave the scope first."
        )
        raise UsageError(msg)


def delivered(strategy: Strategy, by: Delivered, info: StepInfo) -> None:
    """Note the step that a strategy delivered last."""
    strategy.deliveries.add(by, info)
    _local.last = weakref.ref(strategy)


def last_strategy() -> Strategy | None:
    """The strategy that counts here: the current one, else that which delivered last."""
    return get_strategy() or (_local.last() if _local.last else None)
