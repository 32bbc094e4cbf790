"""Calls several remote objects at a time.

    thread          writes                 reads                   guarded by
    one per remote  the outcome of a call  the calls in its queue  the queue, then the call's event
    who calls       the queues             outcomes                the event of each call

A child that was forked has none of the threads: it forgets the queues, and starts its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, final

from torch_distinput import threads
from torch_distinput.coordinator.engines.engine import ProcessDiedError, RemoteObject
from torch_distinput.errors import ServerLostError

Request: TypeAlias = tuple[int, str, tuple[Any, ...]]
"""Which remote object, which method, and its arguments."""


@dataclass(slots=True)
class _Call:
    """A call on its way to the thread of its remote object, and what came of it."""

    run: Callable[[], Any]
    ended: Any = field(default_factory=threads.new_event)
    result: Any = None
    error: BaseException | None = None


@final
class FanOut:
    """Calls of servers, several at a time; a server that died is an error of ours."""

    def __init__(self, remotes: Sequence[RemoteObject]) -> None:
        self._queues: dict[int, SimpleQueue[_Call | None]] = {}
        self._remotes = tuple(remotes)
        threads.call_in_child(self, FanOut._forget_threads)

    def __del__(self) -> None:
        """Let the threads end."""
        for queue in self._queues.values():
            queue.put(None)

    def call(self, server: int, method: str, *args: Any) -> Any:
        """Call one, in this thread.

        Raises:
            ServerLostError: its process ended.
            Exception: what the method raised.
        """
        remote = self._remotes[server]
        try:
            return remote.call(method, *args)
        except ProcessDiedError as error:
            msg = (
                f"Expected {remote.name} to answer, but its process has ended ({error}). What it "
                "held of the parameters is gone: start again, and restore from a checkpoint "
                "(load_state_dict)."
            )
            raise ServerLostError(msg) from error

    def call_all(
        self, requests: Sequence[Request], meanwhile: Callable[[], Any] | None = None
    ) -> list[Any]:
        """Call several at a time, in this thread ``meanwhile`` or the last of them; wait for all.

        Returns:
            their results, in the order of the requests.

        Raises:
            Exception: the first error, after all have ended.
        """
        runs = [partial(self.call, server, method, *args) for server, method, args in requests]
        num_here = 1 if meanwhile is None else 0
        split = len(runs) - num_here if runs else 0
        calls = [_Call(run) for run in runs]
        for (server, _, _), call in zip(requests[:split], calls[:split], strict=True):
            self._queue(server).put(call)
        here = [] if meanwhile is None else [_Call(meanwhile)]
        for call in (*calls[split:], *here):
            _run(call)
        for call in calls[:split]:
            call.ended.wait()
        for call in (*here, *calls):
            if call.error is not None:
                raise call.error
        return [call.result for call in calls]

    def _forget_threads(self) -> None:
        self._queues = {}

    def _queue(self, server: int) -> SimpleQueue[_Call | None]:
        queue = self._queues.get(server)
        if queue is None:
            new: SimpleQueue[_Call | None] = SimpleQueue()
            queue = self._queues.setdefault(server, new)
            if queue is new:  # of threads that come at once, one: a server's calls stay in order
                threads.start_thread(
                    _serve, queue, name=f"parameters-{server}", stop=partial(queue.put, None)
                )
        return queue


def _serve(queue: SimpleQueue[_Call | None]) -> None:
    """Run calls until there is a None."""
    while (call := queue.get()) is not None:
        _run(call)
        del call  # what it holds may go, while this waits


def _run(call: _Call) -> None:
    try:
        call.result = call.run()
    except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
        call.error = error
    finally:
        call.ended.set()
