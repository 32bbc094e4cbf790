"""The line before the first server: whose pull is outstanding, and whose push is applied now.

    thread                  writes                       reads           guarded by
    a call of a worker      the line, the turn, counts   all of it       _condition
    a call of coordinator   who is registered; removes   all of it       _condition
                            the dead from the line

All are threads of the server's process. Its gates share the condition, as closures may pull several
parameters, and then wait for each other at different gates. A push holds the turn until all servers
have applied it, so that each server applies the same pushes in the same order, and the version is
one number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, final

from torch_distinput import threads
from torch_distinput.coordinator.parameters.identity import Caller
from torch_distinput.coordinator.parameters.staleness import may_pull, may_push
from torch_distinput.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterStats:
    """What was done with ``Parameters`` so far.

    Attributes:
        num_pulls: pulls of all processes.
        num_pushes: pushes that were applied.
        staleness: how many pushes were applied 0, 1, 2, ... versions after their pull.
    """

    num_pulls: int
    num_pushes: int
    staleness: dict[int, int]


@dataclass(kw_only=True, slots=True)
class _Pull:
    caller: Caller
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hold:
    caller: Caller
    name: str


CanGoOn: TypeAlias = Callable[[Collection[Caller]], bool]
"""Whether a call could go on if only these callers kept their pulls."""


@final
class WaitingCalls:
    """The calls that wait at any gate of a server, of which some may wait for each other for ever.

        worker 0    has pulled A    waits to pull B, for a push of worker 1
        worker 1    has pulled B    waits to pull A, for a push of worker 0

    Whoever does not wait computes, and will push or end: nobody waits for it in vain. So those that
    wait for nobody else are not stuck, nor are those that wait for these, and so on. Who is left is
    stuck.
    """

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Caller, CanGoOn]] = {}

    @contextmanager
    def waiting(self, caller: Caller, can_go_on: CanGoOn) -> Iterator[None]:
        """While inside, a call of this caller waits."""
        key = object()
        self._calls[key] = (caller, can_go_on)
        try:
            yield
        finally:
            del self._calls[key]

    def find_stuck(self) -> set[Caller]:
        """Return the callers that wait in vain."""
        stuck = {caller for caller, _ in self._calls.values()}
        while True:
            left = {
                caller
                for caller, can_go_on in self._calls.values()
                if caller in stuck and not can_go_on(stuck)
            }
            if left == stuck:
                return stuck
            stuck = left


@final
class Gates:
    """What the gates of a server share.

    Attributes:
        condition: guards all of them.
        calls: those that wait.
        bounded: the gates with a bound.
    """

    def __init__(self) -> None:
        self.condition = threads.new_condition()
        self.calls = WaitingCalls()
        self.bounded: list[Gate] = []


@final
class Gate:
    """Lets pulls and pushes pass, within a bound on staleness or without."""

    def __init__(self, bound: int | None, gates: Gates | None = None) -> None:
        self._bound = bound
        self._gates = gates or Gates()
        self._condition = self._gates.condition
        if bound is not None:
            self._gates.bounded.append(self)
        self._is_closed = False
        self._version = 0
        self._line: list[_Pull] = []
        self._turn: Caller | None = None
        self._hold: _Hold | None = None
        self._resumed: set[str] = set()  # holds that were ended before they began, by Ctrl-C
        self._registered: dict[str, str] = {}
        self._num_pulls = 0
        self._staleness: Counter[int] = Counter()

    def register(self, caller: Caller) -> None:
        """A process of a worker begins: only its calls are let in, not those of one before it."""
        if caller.worker is not None:
            with self._condition:
                self._registered[caller.worker] = caller.nonce
                self._line = [pull for pull in self._line if pull.caller.worker != caller.worker]
                self._condition.notify_all()

    def admit(self, caller: Caller) -> int:
        """Wait until the caller may pull; return the version. It takes the place of its last pull.

        Raises:
            UsageError: the caller was released meanwhile, or before; or it would wait for ever.
        """
        with self._condition:
            self._leave(caller)
            if self._is_bound(caller):
                self._wait_in_line(caller, self._may_pull, lambda: True)
                self._line.append(_Pull(caller=caller, version=self._version))
            self._num_pulls += 1
            return self._version

    @contextmanager
    def push(self, caller: Caller, pulled: int) -> Iterator[None]:
        """Around the application of a push, pulled at this version: wait, and hold the turn.

        It counts only if what is inside does not raise.

        Raises:
            UsageError: the caller was released meanwhile, or has no pull outstanding; or it would
                wait for ever.
        """
        with self._condition:
            self._wait_in_line(caller, lambda line: self._may_push(line, caller), self._is_free)
            self._turn = caller
        try:
            yield
        except BaseException:
            self._end(caller)
            raise
        self._end(caller, pulled)

    def hold(self, caller: Caller, name: str) -> None:
        """Wait for the push under way; no other is applied until :meth:`resume` of this name."""
        with self._condition:
            self._wait(caller, lambda: self._is_free() or name in self._resumed)
            if name in self._resumed:
                self._resumed.remove(name)
            else:
                self._hold = _Hold(caller=caller, name=name)

    def resume(self, name: str) -> None:
        """End the hold of this name, also one that still waits, or whose call is still to come."""
        with self._condition:
            if self._hold is not None and self._hold.name == name:
                self._hold = None
            else:
                self._resumed.add(name)
            self._condition.notify_all()

    def withdraw(self, caller: Caller) -> None:
        """The caller's outstanding pull will have no push."""
        with self._condition:
            self._leave(caller)

    def release(self, worker: str) -> None:
        """A worker died: what it had outstanding is removed, and what it waits for is refused.

        Returns when a push of it that was under way is applied.
        """
        with self._condition:
            self._registered.pop(worker, None)
            if self._hold is not None and self._hold.caller.worker == worker:
                self._hold = None
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._turn is None or self._turn.worker != worker)
            self._line = [pull for pull in self._line if pull.caller.worker != worker]
            self._condition.notify_all()

    def has_pull(self, caller: Caller) -> bool:
        """Whether a pull of the caller is outstanding."""
        return any(pull.caller == caller for pull in self._line)

    def close(self) -> None:
        """Let nobody pass any more: who waits is refused."""
        with self._condition:
            self._is_closed, self._line = True, []
            if self in self._gates.bounded:
                self._gates.bounded.remove(self)
            self._condition.notify_all()

    def stats(self) -> ParameterStats:
        """Count pulls and pushes."""
        with self._condition:
            return ParameterStats(
                num_pulls=self._num_pulls,
                num_pushes=self._version,
                staleness=dict(sorted(self._staleness.items())),
            )

    def _end(self, caller: Caller, pulled: int | None = None) -> None:
        with self._condition:
            if pulled is not None:
                self._staleness[self._version - pulled] += 1
                self._version += 1
            self._turn = None
            self._leave(caller)

    def _is_free(self) -> bool:
        return self._turn is None and self._hold is None

    def _leave(self, caller: Caller) -> None:
        self._line = [pull for pull in self._line if pull.caller != caller]
        self._condition.notify_all()

    def _is_bound(self, caller: Caller) -> bool:
        """Whether the caller's pulls stand in the line: only those of workers do."""
        return self._bound is not None and caller.worker is not None

    def _may_pull(self, line: Sequence[_Pull]) -> bool:
        return self._bound is None or may_pull(len(line), self._bound)

    def _may_push(self, line: Sequence[_Pull], caller: Caller) -> bool:
        if self._bound is None:
            return True
        places = [place for place, pull in enumerate(line) if pull.caller == caller]
        if not places:
            msg = (
                "Expected a push of a worker whose pull is outstanding, got one of "
                f"{caller.worker or 'a process that is no worker'}. With max_staleness, pull and "
                "push in the same closure, once each."
            )
            raise UsageError(msg)
        pulled = [pull.version for pull in line]
        return may_push(pulled, places[0], self._version, self._bound)

    def _wait_in_line(
        self,
        caller: Caller,
        may_go: Callable[[Sequence[_Pull]], bool],
        is_free: Callable[[], bool],
    ) -> None:
        """Wait for pulls that others keep; refuse where these others wait for this caller."""

        def is_ready() -> bool:
            if may_go(self._line):
                return is_free()
            others = [gate for gate in self._gates.bounded if gate is not self]
            if any(gate.has_pull(caller) for gate in others):
                self._refuse_if_stuck(caller)
            return False

        def can_go_on(stuck: Collection[Caller]) -> bool:
            try:
                self._check_known(caller)
                return may_go([pull for pull in self._line if pull.caller in stuck])
            except UsageError:  # to be raised by its own call, which ends as soon as it wakes up
                return True

        self._check_known(caller)
        if is_ready():
            return
        with self._gates.calls.waiting(caller, can_go_on):
            if len(self._gates.bounded) > 1:
                self._condition.notify_all()  # one that is stuck now looks again
            self._wait(caller, is_ready)

    def _refuse_if_stuck(self, caller: Caller) -> None:
        stuck = self._gates.calls.find_stuck()
        if caller in stuck:
            names = ", ".join(sorted(str(one.worker) for one in stuck))
            msg = (
                "Expected closures that pull several parameters with max_staleness to wait for "
                f"pushes that come, got {len(stuck)} that wait for each other ({names}). Push the "
                "first before the second is pulled, or create one Parameters of a module that "
                "holds both."
            )
            raise UsageError(msg)

    def _wait(self, caller: Caller, is_ready: Callable[[], bool]) -> None:
        def check() -> bool:
            self._check_known(caller)
            return is_ready()

        self._condition.wait_for(check)

    def _check_known(self, caller: Caller) -> None:
        if self._is_closed:
            msg = (
                "Expected parameters that are open, got some that were closed while a closure used "
                "them. Call close() after join()."
            )
            raise UsageError(msg)
        worker = caller.worker
        if worker is not None and self._registered.get(worker) != caller.nonce:
            msg = (
                f"Expected a call of {worker}, got one of a process of it that was released, as "
                "it is thought to be dead. You need not do anything: its closure runs again."
            )
            raise UsageError(msg)
