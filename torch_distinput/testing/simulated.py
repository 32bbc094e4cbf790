"""Workers as threads of one process, joined by a communicator in memory.

Real workers and a pretend wire: everything but the process group is the product's own code.

    thread             shares                              guarded by
    one for a worker   the wire, with each other           ``_Wire.changed``
                       its outcome, with the caller        the caller joins it before it reads
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch

from torch_distinput.cluster.membership import Membership
from torch_distinput.communicator import (
    Board,
    Channel,
    ChannelBrokenError,
    Gone,
    Merge,
    check_company,
    check_process,
    named_workers,
    nobody,
)
from torch_distinput.data.batch.serialized import pickle_value
from torch_distinput.distribute.strategy import Strategy
from torch_distinput.errors import PEER_ERRORS, PeerFailedError, PeerTimeoutError
from torch_distinput.options import check_count
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.threads import Condition, new_condition

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0
_SLICE_SECONDS = 0.2


@dataclass
class _Wire:
    """What the workers of one simulation share; every field is guarded by ``changed``.

    Values are pickled, as they are on a real wire: nobody gets an object of another worker.
    """

    size: int
    changed: Condition = field(default_factory=new_condition)
    shown: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    num_read: Counter[str] = field(default_factory=Counter)  # by how many workers
    notes: dict[int, str] = field(default_factory=dict)
    summary: str = ""  # of the notes
    claimed: set[int] = field(default_factory=set)  # terms after which somebody sums them up
    firsts: dict[str, str] = field(default_factory=dict)  # the first text of each topic
    gone: dict[int, str] = field(default_factory=dict)  # with their last words

    def exchange(self, key: str, rank: int, value: Any, timeout: float) -> list[Any]:
        """Show a value under a key that is used once, and wait for everybody's.

        Raises ChannelBrokenError when somebody who has not shown a value has gone.
        """
        pickled = pickle_value(value)
        with self.changed:
            shown = self.shown[key]
            shown[rank] = pickled
            self.changed.notify_all()
            everybody = set(range(self.size))
            self.changed.wait_for(
                lambda: len(shown) == self.size or self.gone.keys() - shown.keys(), timeout
            )
            if left := self.gone.keys() - shown.keys():
                msg = f"{named_workers(sorted(left))} left the simulation"
                raise ChannelBrokenError(msg)
            missing = tuple(sorted(everybody - shown.keys()))
            if missing:
                raise PeerTimeoutError(named_workers(missing), missing)
            self.num_read[key] += 1
            if self.num_read[key] == self.size:  # or a long run would keep all that was ever said
                del self.shown[key], self.num_read[key]
            return [pickle.loads(shown[w]) for w in range(self.size)]  # noqa: S301 - our own

    def leave(self, rank: int, error: BaseException | None) -> None:
        """A worker's function has returned or raised."""
        said = "its function returned" if error is None else f"{type(error).__name__}: {error}"
        with self.changed:
            self.gone[rank] = said
            self.changed.notify_all()


class SimulatedCommunicator:
    """One simulated worker's end of the wire."""

    def __init__(self, wire: _Wire, rank: int) -> None:
        """Take one end."""
        self._process = os.getpid()
        self._wire = wire
        self.rank = rank
        self.size = wire.size
        self._num_collectives = 0
        self._num_channels = 0

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody
    ) -> str:
        """Show a text; each worker merges all of them."""
        check_process(self._process)
        wire, key = self._wire, f"topic {topic}"
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return merge(wire.exchange(key, self.rank, text, min(left, _SLICE_SECONDS)))
            except (PeerTimeoutError, ChannelBrokenError) as error:
                with wire.changed:
                    came = wire.shown[key].keys()
                    late = tuple(worker for worker in range(self.size) if worker not in came)
                    left_for_good = {w: wire.gone[w] for w in late if w in wire.gone}
                check_company(topic, {w: said for w, said in gone().items() if w in late})
                check_company(topic, left_for_good)
                if not left:
                    who = named_workers(late)
                    msg = f"Expected all {self.size} workers at {topic!r}, but {who} did not come."
                    raise PeerTimeoutError(msg, late) from error

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:  # noqa: ARG002
        """Show a text, or read the one that is there."""
        with self._wire.changed:
            return self._wire.firsts.setdefault(topic, text)

    def open_channel(
        self, *, timeout: float, gone: Gone = nobody  # noqa: ARG002
    ) -> Channel:
        """Make a channel; nobody has to wait."""
        self._num_channels += 1
        return SimulatedChannel(self._wire, self.rank, f"channel {self._num_channels}")

    def open_board(self) -> Board:
        """The board of the wire."""
        return SimulatedBoard(self._wire, self.rank)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum in worker order, so that results do not depend on the scheduling of threads."""
        parts = self._collective(tensor.detach())
        return torch.stack(parts).sum(0, dtype=tensor.dtype)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather tensors."""
        return self._collective(tensor.detach())

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather objects."""
        return self._collective(value)

    def deal_objects(self, values: Sequence[Any]) -> list[Any]:
        """Give each worker its value."""
        return [dealt[self.rank] for dealt in self._collective(list(values))]

    def _collective(self, value: Any) -> list[Any]:
        check_process(self._process)
        self._num_collectives += 1
        key = f"collective {self._num_collectives}"
        try:
            return self._wire.exchange(key, self.rank, value, _PATIENCE_SECONDS)
        except ChannelBrokenError as error:
            msg = (
                f"Expected all {self.size} workers at {key}, but {error}: there a function has "
                "returned or raised. Make the same collective calls on all workers."
            )
            raise PeerFailedError(msg) from error
        except PeerTimeoutError as error:
            msg = (
                f"Expected all {self.size} workers at {key} within {_PATIENCE_SECONDS:g} s, but "
                f"{error} did not come. Make the same collective calls on all workers."
            )
            raise PeerTimeoutError(msg, error.workers) from error


class SimulatedBoard:
    """Notes in memory."""

    def __init__(self, wire: _Wire, rank: int) -> None:
        """Take one end."""
        self.names = range(wire.size)
        self._wire = wire
        self._rank = rank

    def post(self, text: str) -> None:
        """Leave a note."""
        with self._wire.changed:
            self._wire.notes[self._rank] = text

    def read(self) -> dict[int, str]:
        """Read the notes."""
        with self._wire.changed:
            return dict(self._wire.notes)

    def post_summary(self, text: str) -> None:
        """Leave the note of all."""
        with self._wire.changed:
            self._wire.summary = text

    def read_summary(self) -> str:
        """Read it."""
        with self._wire.changed:
            return self._wire.summary

    def claim(self, term: int) -> bool:
        """Whether nobody was first."""
        with self._wire.changed:
            is_first = term not in self._wire.claimed
            self._wire.claimed.add(term)
            return is_first


class SimulatedChannel:
    """Collectives of one dataset in memory."""

    def __init__(self, wire: _Wire, rank: int, name: str) -> None:
        """Take one end."""
        self._wire = wire
        self._rank = rank
        self._name = name
        self.num_collectives = 0

    def abandon(self) -> None:
        """Nothing to free: the wire has a limit of its own, and its waits are Python's."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather objects."""
        self.num_collectives += 1
        key = f"{self._name} {self.num_collectives}"
        try:
            return self._wire.exchange(key, self._rank, value, _PATIENCE_SECONDS)
        except PeerTimeoutError as error:
            raise ChannelBrokenError(str(error)) from error


@final
class SimulatedStrategy(Strategy):
    """A worker of a simulation."""

    def __init__(self, wire: _Wire, rank: int, num_replicas: int) -> None:
        """Take one end of the wire."""
        topology = Topology(
            num_workers=wire.size, replicas_per_worker=num_replicas, worker_index=rank
        )
        devices = [torch.device("cpu")] * num_replicas
        cluster = Membership(communicator=SimulatedCommunicator(wire, rank))
        super().__init__(topology, devices, cluster)


def simulate(
    fn: Callable[[Strategy], T], *, num_workers: int, replicas_per_worker: int = 1
) -> list[T]:
    """Run ``fn(strategy)`` once per simulated worker and return the results in worker order.

    Workers are threads of this process with virtual CPU replicas; they share the interpreter, so
    this tests logic, not speed. For real processes see :func:`run_ranks`.

    If workers raise, the first error in time is raised again, with a note that names its worker;
    errors about another worker only if there is no other.

    Args:
        fn: called with the strategy of its worker, in the worker's thread; any function.
        num_workers: how many workers, at least 1.
        replicas_per_worker: local replicas of each, at least 1.

    Raises:
        TypeError: if a count is no whole number.
        ValueError: if one is below 1.
    """
    check_count("num_workers", num_workers, minimum=1)
    check_count("replicas_per_worker", replicas_per_worker, minimum=1)
    wire = _Wire(num_workers)
    outcomes = [_Outcome() for _ in range(num_workers)]
    threads = [
        threading.Thread(
            target=_work, args=(fn, wire, rank, replicas_per_worker, outcomes[rank]), daemon=True
        )
        for rank in range(num_workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _raise_first(outcomes)
    return [outcome.result for outcome in outcomes]


@dataclass
class _Outcome:
    result: Any = None
    error: BaseException | None = None
    time: float = 0.0


def _work(
    fn: Callable[[Strategy], Any], wire: _Wire, rank: int, num_replicas: int, outcome: _Outcome
) -> None:
    strategy = SimulatedStrategy(wire, rank, num_replicas)
    try:
        outcome.result = fn(strategy)
    except BaseException as error:  # noqa: BLE001 - it is raised again by simulate
        outcome.error, outcome.time = error, time.monotonic()
    # Not left to the finalizer: an error that is kept keeps the strategy.
    strategy._session.heartbeat.close(outcome.error)  # noqa: SLF001 - not for users
    wire.leave(rank, outcome.error)


def _raise_first(outcomes: list[_Outcome]) -> None:
    failed = [(o.time, worker, o.error) for worker, o in enumerate(outcomes) if o.error]
    if failed:
        _, worker, error = min(failed, key=lambda f: (isinstance(f[2], PEER_ERRORS), f[0]))
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"Raised by simulated worker {worker} of {len(outcomes)}.")
        raise error
