"""Failures that no vote carries: told on a board at once, and looked for between steps."""

from __future__ import annotations

import time
from typing import NoReturn

from torch_distinput.communicator import Communicator, named_workers
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

_PAUSE_SECONDS = 0.1
"""Time between two looks at the board: a look costs tens of microseconds."""
_ROLL_CALL_SECONDS = 3.0
_LOST = "lost the connection to another worker"


class Watch:
    """One worker's eye on the others, for one iteration of one dataset."""

    def __init__(self, communicator: Communicator, board: str) -> None:
        """Watch a board that belongs to this iteration alone."""
        self._communicator = communicator
        self._board = board
        self._next_look = 0.0

    def tell(self, error: BaseException) -> None:
        """Tell the others that this worker failed."""
        self._communicator.post(self._board, f"{type(error).__name__}: {error}")

    def look(self) -> None:
        """Raise PeerFailedError if another worker failed; looks only now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _PAUSE_SECONDS
        notes = self._communicator.read(self._board)
        notes.pop(self._communicator.rank, None)
        if _LOST in notes.values():
            self.call_roll()
        if notes:
            words = "; ".join(f"worker {worker}: {text}" for worker, text in notes.items())
            msg = f"Expected a step from every worker, but a worker failed. {words}"
            raise PeerFailedError(msg)

    def call_roll(self, error: BaseException | None = None) -> NoReturn:
        """After a connection broke: find out who is gone, together with all who are left.

        Raises:
            PeerFailedError: always; names the workers that gave no sign of life.
        """
        self._communicator.post(self._board, _LOST)
        gone: tuple[int, ...] = ()
        try:
            self._communicator.exchange(f"{self._board}/roll", "", timeout=_ROLL_CALL_SECONDS)
        except PeerTimeoutError as late:
            gone = late.workers
        who = named_workers(gone) if gone else "a worker"
        msg = (
            f"Expected a step from every worker, but {who} died or closed the connection: no sign "
            f"of life within {_ROLL_CALL_SECONDS:g} s. Its own output says why; restart the job."
        )
        raise PeerFailedError(msg) from error
