"""A step once per local replica: replica functions take turns and meet at collectives.

With several replicas each call of the function has a thread, but only one runs at a time, in
replica order; at a collective a call pauses until all of them are there, and the collective runs in
the thread that called ``run``. So results do not depend on scheduling, and the process group is
used by one thread only. With one replica there is no thread at all.

    thread       writes                      reads                 guarded by
    caller       _reply, _abandoned          _request, _error,     the turn: two semaphores hand it
                                             result                over, and who does not have it
    replica      _request, _error, result    _reply, _abandoned    is blocked, so there is no lock

    caller     go_on --release _mine--+            +--acquire _callers-- goes on
    replica                           +-- runs ... +  then waits for _mine, at a collective
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from torch_distinput.cluster.membership import check_alone
from torch_distinput.data.batch.tree import flatten, unflatten
from torch_distinput.distribute import context
from torch_distinput.distribute.reductions import gather_values, reduce_values
from torch_distinput.distribute.replicas.per_replica import is_common, is_shared, regroup_values
from torch_distinput.distribute.replicas.thread_state import ThreadState
from torch_distinput.errors import UsageError
from torch_distinput.options import ReduceOp, parse_enum
from torch_distinput.values import PerReplica

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session

Meet = Callable[["CollectiveCall"], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCall:
    """What a replica asks of all replicas: which call, its settings, its own contribution."""

    call: str
    settings: Any
    value: Any


class ReplicaContext:
    """Where a replica function runs (``tf.distribute.ReplicaContext``).

    Every replica makes the same collective calls in the same order.
    """

    def __init__(self, session: Session, local_replica: int, meet: Meet) -> None:
        """Made by ``Strategy.run``."""
        self._session = session
        self._local_replica = local_replica
        self._meet = meet

    @property
    def strategy(self) -> Any:
        """The :class:`Strategy` whose ``run`` this is."""
        return self._session.strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        """This replica's index over all workers, from 0."""
        return self._session.topology.first_replica + self._local_replica

    @property
    def local_replica(self) -> int:
        """This replica's index on its worker, from 0."""
        return self._local_replica

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas over all workers."""
        return self._session.topology.num_replicas_in_sync

    @property
    def device(self) -> torch.device:
        """This replica's device."""
        return self._session.devices[self._local_replica]

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any) -> Any:
        """Sum or average a structure of tensors of one shape over all replicas in sync.

        ``reduce_op`` is ``"sum"`` or ``"mean"``. The result is detached: no gradient flows through
        it, as in ``torch.distributed``. Dtypes and errors are those of ``Strategy.reduce``.
        """
        op = parse_enum(ReduceOp, reduce_op, "reduce_op")
        return self._meet(CollectiveCall(call="all_reduce", settings=op, value=value))

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Join tensors of all replicas in sync along ``axis``, in replica order; detached.

        Sizes along ``axis`` may differ, also be 0. Value and errors are those of
        ``Strategy.gather``.
        """
        return self._meet(CollectiveCall(call="all_gather", settings=axis, value=value))

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``merge_fn(strategy, *args, **kwargs)`` once, outside the replicas.

        The arguments arrive as :class:`PerReplica` values of this worker's replicas, but as they
        are where all replicas pass one object or one number or string; PerReplica results go back
        to their replicas, other results to all.
        """
        value = (tuple(args), dict(kwargs or {}))
        return self._meet(CollectiveCall(call="merge_call", settings=merge_fn, value=value))


def get_replica_context() -> ReplicaContext | None:
    """Return the context of the replica that runs here; None outside ``Strategy.run``.

    ``tf.distribute.get_replica_context``.
    """
    entered: ReplicaContext | None = context.entered_replica()
    return entered


def _answer(session: Session, requests: Sequence[CollectiveCall]) -> list[Any]:
    """Make a collective call that all local replicas have asked for; one reply for each."""
    first = requests[0]
    if first.call == "merge_call":
        args, kwargs = regroup_values([request.value for request in requests], is_common)
        session.is_merging = True
        try:
            merged = first.settings(session.strategy, *args, **kwargs)
        finally:
            session.is_merging = False
        return split_arguments(merged, len(requests))
    value = regroup_values([request.value for request in requests])
    check_alone(session.communicator)
    if first.call == "all_reduce":
        result = reduce_values(session, value, op=first.settings, axis=None)
    else:
        result = gather_values(session, value, axis=first.settings)
    return [_own_copy(result, device) for device in session.devices]


def run_replicas(
    session: Session, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a function once per local replica, with its own part of the arguments."""
    replicas = range(len(session.devices))
    own_args = [split_arguments(arg, len(replicas)) for arg in args]
    own_kwargs = {name: split_arguments(arg, len(replicas)) for name, arg in kwargs.items()}
    calls = [
        partial(fn, *(a[r] for a in own_args), **{k: v[r] for k, v in own_kwargs.items()})
        for r in replicas
    ]
    with context.scope(session):
        if len(calls) == 1:
            return _run_one(session, calls[0])[0]
        results = _run_in_turns(session, calls)

    def keep(*leaf: Any) -> bool:
        is_kept = is_shared(*leaf)
        if is_kept and isinstance(leaf[0], torch.Tensor):
            session.of_each_replica[leaf[0]] = None  # a sum counts it for each of them
        return is_kept

    return regroup_values(results, keep)


def _run_one(session: Session, fn: Callable[[], Any]) -> list[Any]:
    """Run a function for the only local replica, in the calling thread."""

    def meet(request: CollectiveCall) -> Any:
        with context.replica(None):
            return _answer(session, [request])[0]

    with context.replica(ReplicaContext(session, 0, meet)):
        return [fn()]


def _run_in_turns(session: Session, fns: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run one function per local replica, in replica order; at collectives they wait."""
    carried = ThreadState(session.devices)
    turns = [_Turn(session, replica, fn, carried) for replica, fn in enumerate(fns)]
    try:
        _play(session, turns)
    finally:
        for turn in turns:
            turn.abandon()
    return [turn.result for turn in turns]


def _play(session: Session, turns: list[_Turn]) -> None:
    replies: list[Any] = [None] * len(turns)
    while True:
        requests = [turn.go_on(reply) for turn, reply in zip(turns, replies, strict=True)]
        waiting = [request for request in requests if request is not None]
        if not waiting:
            return
        _check_met(requests)
        replies = _answer(session, waiting)


def _check_met(requests: Sequence[CollectiveCall | None]) -> None:
    """All replicas must make the same collective calls."""
    calls = [None if request is None else request.call for request in requests]
    settings = [None if request is None else _comparable(request) for request in requests]
    if len(set(calls)) > 1 or any(setting != settings[0] for setting in settings):
        shown = ", ".join(
            f"replica {replica}: {'has returned' if r is None else f'{r.call}({r.settings!r})'}"
            for replica, r in enumerate(requests)
        )
        msg = (
            f"Expected every replica to make the same collective calls in the same order, got "
            f"{shown}. Do not make them depend on the replica or on its data."
        )
        raise UsageError(msg)


def _comparable(request: CollectiveCall) -> Any:
    """Functions given to merge_call may be made anew by each replica."""
    return None if request.call == "merge_call" else request.settings


class _Abandoned(BaseException):
    """Unwinds a replica function whose ``run`` has failed; no ``except Exception`` catches it."""


class _Turn:
    """One replica function in a thread of its own, which runs only between go_on and its return."""

    def __init__(
        self, session: Session, replica: int, fn: Callable[[], Any], carried: ThreadState
    ) -> None:
        self._session = session
        self._mine = threading.Semaphore(0)
        self._callers = threading.Semaphore(0)
        self._request: CollectiveCall | None = None
        self._reply: Any = None
        self._error: BaseException | None = None
        self._abandoned = False
        self.result: Any = None
        self._carry = partial(session.loss_steps.carry, session.loss_steps.turns)
        body = contextvars.copy_context()
        own = ReplicaContext(session, replica, self._meet)
        self._thread = threading.Thread(
            target=body.run, args=(self._live, own, fn, carried), daemon=True
        )

    def go_on(self, reply: Any) -> CollectiveCall | None:
        """Let the function run to its next collective call; None when it has returned."""
        if self._thread.ident is None:
            self._thread.start()
        self._reply, self._request = reply, None
        self._mine.release()
        self._callers.acquire()
        if self._error is not None:
            raise self._error
        return self._request

    def abandon(self) -> None:
        """Unwind a function that is waiting at a collective call, and end the thread."""
        self._abandoned = True
        if self._thread.ident is not None:
            self._mine.release()
            self._thread.join()

    def _meet(self, request: CollectiveCall) -> Any:
        """Called by the function: pause here until all replicas are there."""
        if self._abandoned:  # a ``finally`` of the function calls again while it unwinds
            raise _Abandoned
        self._request = request
        self._callers.release()
        self._mine.acquire()
        if self._abandoned:
            raise _Abandoned
        return self._reply

    def _live(self, own: ReplicaContext, fn: Callable[[], Any], carried: ThreadState) -> None:
        self._mine.acquire()
        self._carry()
        try:
            with (
                carried.enter(own.device),
                context.scope(self._session),
                context.replica(own),
            ):
                self.result = fn()
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again by run
            self._error = error
        self._request = None
        self._callers.release()


def check_arguments(args: object, kwargs: object) -> None:
    """Refuse what is no sequence of arguments, and no dict of them."""
    if not isinstance(args, (tuple, list)):
        msg = (
            f"positional args must be a list or tuple, got {type(args).__name__}. One argument "
            "goes into args=(batch,); of a step it is args=(step.batch,)."
        )
        raise TypeError(msg)
    if not isinstance(kwargs, (dict, NoneType)):
        msg = (
            f"kwargs must be a dict, got {type(kwargs).__name__}. Several positional arguments "
            "go into args, as in strategy.run(fn, args=(a, b))."
        )
        raise TypeError(msg)


def split_arguments(value: Any, num_replicas: int) -> list[Any]:
    """From a value with PerReplica leaves at any depth to one structure per replica.

    A value without any is the same object for all, so that a function can change it in place.
    """
    leaves, structure = flatten(value)
    if not any(isinstance(leaf, PerReplica) for leaf in leaves):
        return [value] * num_replicas
    return [
        unflatten(structure, [_own(leaf, replica) for leaf in leaves])
        for replica in range(num_replicas)
    ]


def split_results(value: Any, num_replicas: int) -> tuple[Any, ...]:
    """What each replica has returned: a value without any PerReplica is the only one."""
    if not any(isinstance(leaf, PerReplica) for leaf in flatten(value)[0]):
        return (value,)
    return tuple(split_arguments(value, num_replicas))


def _own_copy(value: Any, device: torch.device) -> Any:
    """A copy of a collective's result for one replica, which may write into it."""
    leaves, structure = flatten(value)
    copies = [x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in leaves]
    return unflatten(structure, copies)


def _own(leaf: Any, replica: int) -> Any:
    return leaf[replica] if isinstance(leaf, PerReplica) else leaf
