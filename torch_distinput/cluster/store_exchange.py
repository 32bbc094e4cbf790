"""Texts that all workers show each other in the store of torch.distributed.

A store whose process is stopped does not answer, and nothing frees a thread from that wait. So one
thread for each exchange asks the store, and the caller's waits for it, no longer than it may:

    thread      writes              reads                       ordered by
    exchange    _texts or _error    _is_abandoned, each pause   sets _done after its last write
    caller      _is_abandoned       _texts, _error              waits for _done before it reads

The thread polls, since torch writes lines of warnings for each wait of its own that times out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from torch.distributed import Store  # type: ignore[attr-defined]

from torch_distinput.cluster.liveness.store_board import store_lost, texts_of
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import Gone, check_company, named_workers
from torch_distinput.errors import DistinputError, PeerTimeoutError
from torch_distinput.threads import new_event, start_thread

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.05
_KEYS_PER_SECOND = 1 << 18
"""What all workers may ask one store for; many workers ask more seldom."""
_LOOK_SECONDS = 0.5
"""Time between two questions who is gone."""
_ANSWER_SECONDS = 2.0
"""What the store may take beyond the time that workers have."""


class StoreExchange:
    """One exchange under a topic."""

    def __init__(self, store: Store, topic: str, size: int, *, timeout: float, gone: Gone) -> None:
        """Take a client of the store that nobody else uses meanwhile."""
        self._store = store
        self._topic = topic
        self._keys = [f"{topic}/{worker}" for worker in range(size)]
        self._timeout = timeout
        self._gone = gone
        self._done = new_event()
        self._is_abandoned = False
        self._texts: list[str] = []
        self._error: BaseException | None = None

    def texts(self, show: Callable[[], None]) -> list[str]:
        """Call ``show()``, which shows this worker's text, and wait for all."""
        start_thread(self._ask, show, name="exchange", stop=self._abandon)
        wait_limit = WaitLimit(self._timeout + _ANSWER_SECONDS)
        try:
            while not self._done.wait(_LOOK_SECONDS):
                if wait_limit.is_over:
                    self._raise_silent()
        finally:
            self._abandon()
        if self._error is not None:
            raise self._error
        assert len(self._texts) == len(self._keys), "one of each worker, or an error"
        return self._texts

    def _raise_silent(self) -> NoReturn:
        msg = (
            f"Expected an answer from the store of the process group within {self._timeout:g} s at "
            f"{self._topic!r}, got none: the process that hosts it (torchrun's agent, or rank 0) "
            "is stopped or cannot be reached. Restart the job."
        )
        raise PeerTimeoutError(msg)

    def _abandon(self) -> None:
        self._is_abandoned = True

    def _ask(self, show: Callable[[], None]) -> None:
        """The thread."""
        try:
            show()
            self._wait()
            self._texts = texts_of(self._store, self._keys)
        except RuntimeError as error:
            self._error = error
            if not isinstance(error, DistinputError):
                self._error = store_lost(error)
                self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised again where texts() is called
            self._error = error
        finally:
            self._done.set()

    def _wait(self) -> None:
        pause, wait_limit, looked_at = _FIRST_PAUSE, WaitLimit(self._timeout), time.monotonic()
        slowest = max(_LONGEST_PAUSE, len(self._keys) ** 2 / _KEYS_PER_SECOND)
        while not (self._store.check(self._keys) or self._is_abandoned):
            if time.monotonic() > looked_at + _LOOK_SECONDS:
                looked_at = time.monotonic()
                # Of those who are asked: others may be ranks that share data with somebody.
                asked = [(w, said) for w, said in self._gone().items() if w < len(self._keys)]
                check_company(self._topic, {w: said for w, said in asked if not self._has_come(w)})
            if wait_limit.is_over:
                self._check_late()
            time.sleep(pause)
            pause = min(2 * pause, slowest)

    def _has_come(self, worker: int) -> bool:
        return bool(self._store.check([self._keys[worker]]))

    def _check_late(self) -> None:
        late = tuple(w for w in range(len(self._keys)) if not self._has_come(w))
        if late:
            msg = (
                f"Expected all {len(self._keys)} workers at {self._topic!r} within "
                f"{self._timeout:g} s, but {named_workers(late)} did not come."
            )
            raise PeerTimeoutError(msg, late)
