"""Waiting, at a topic in the store of torch.distributed, until all workers have come.

A store whose process is stopped does not answer, and nothing frees a thread from that wait. So one
thread for each meeting asks the store, and the caller's waits for it, no longer than it may:

    thread      writes              reads                       ordered by
    exchange    _text or _error     _is_abandoned, each pause   sets _done after its last write
    caller      _is_abandoned       _text, _error               waits for _done before it reads

The thread polls, since torch writes lines of warnings for each wait of its own that times out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch_distinput.cluster.liveness.store_board import (
    make_lost_store_error,
    make_silent_store_error,
)
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.cluster.store_join import StoreJoin
from torch_distinput.communicator import Gone, check_company, named_workers
from torch_distinput.errors import DistinputError, PeerFailedError, PeerTimeoutError
from torch_distinput.threads import new_event, start_thread

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.05
_LOOKS_PER_SECOND = 1 << 14
"""What all workers together may ask one store; many workers ask more seldom."""
_LOOK_SECONDS = 0.5
"""Time between two questions who is gone."""
_ANSWER_SECONDS = 2.0
"""What the store may take beyond the time that workers have."""


class StoreExchange:
    """The wait for one text of all workers."""

    def __init__(self, join: StoreJoin, topic: str, *, timeout: float, gone: Gone) -> None:
        """Take a meeting whose client of the store nobody else uses meanwhile."""
        self._join = join
        self._topic = topic
        self._timeout = timeout
        self._gone = gone
        self._done = new_event()
        self._is_abandoned = False
        self._text: str | None = None
        self._error: BaseException | None = None

    def text(self, show: Callable[[], None]) -> str:
        """Call ``show()``, which shows this worker's text, and wait for the one of all."""
        start_thread(self._ask, show, name="exchange", stop=self._abandon)
        wait_limit = WaitLimit(self._timeout + _ANSWER_SECONDS)
        try:
            while not self._done.wait(_LOOK_SECONDS):
                if wait_limit.is_over:
                    raise make_silent_store_error(self._timeout, f" at {self._topic!r}")
        finally:
            self._abandon()
        if self._error is not None:
            raise self._error
        if self._text is None:
            msg = f"Expected all workers at {self._topic!r}, but this process is about to end."
            raise PeerFailedError(msg)
        return self._text

    def _abandon(self) -> None:
        self._is_abandoned = True

    def _ask(self, show: Callable[[], None]) -> None:
        """The thread."""
        try:
            show()
            if self._has_joined():
                self._text = self._join.result()
        except RuntimeError as error:
            self._error = error
            if not isinstance(error, DistinputError):
                self._error = make_lost_store_error(error)
                self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised again where text() is called
            self._error = error
        finally:
            self._done.set()

    def _has_joined(self) -> bool:
        """Wait; False if nobody needs the answer any more."""
        pause, wait_limit, looked_at = _FIRST_PAUSE, WaitLimit(self._timeout), time.monotonic()
        slowest = max(_LONGEST_PAUSE, self._join.size / _LOOKS_PER_SECOND)
        while not self._join.is_joined():
            if self._is_abandoned:
                return False
            if time.monotonic() > looked_at + _LOOK_SECONDS:
                looked_at = time.monotonic()
                self._look_for_gone()
            if wait_limit.is_over:
                self._check_late()
            time.sleep(pause)
            pause = min(2 * pause, slowest)
        return True

    def _look_for_gone(self) -> None:
        # Of those who are asked: others may be ranks that share data with somebody.
        gone = {w: said for w, said in self._gone().items() if w < self._join.size}
        if not gone:
            return
        missing = self._join.find_missing(list(gone))
        check_company(self._topic, {worker: gone[worker] for worker in missing})
        if not self._join.find_missing():
            self._join.take_over()  # who is gone had come, and was perhaps to join the texts

    def _check_late(self) -> None:
        late = tuple(self._join.find_missing())
        if late:
            msg = (
                f"Expected all {self._join.size} workers at {self._topic!r} within "
                f"{self._timeout:g} s, but {named_workers(late)} did not come. See "
                "their output, and make the same calls on all workers."
            )
            raise PeerTimeoutError(msg, late)
        self._join.take_over()  # the last one to come was stopped before it had joined them
