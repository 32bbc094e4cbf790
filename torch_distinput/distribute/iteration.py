"""One ``iter()`` on all ranks: what it is called, and how they meet in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

from torch_distinput.cluster.exchange import Exchange
from torch_distinput.cluster.handshake import Facts, shake_hands
from torch_distinput.cluster.peer_monitor import Watch
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.distribute.session import Session
from torch_distinput.engine.audit import Audit, Expected


@final
class Iteration:
    """Has a number of its own, the same on all ranks.

    Attributes:
        topic: what it is called in what the ranks tell each other.
        timeout: seconds that one of them waits for another.
    """

    def __init__(self, session: Session, name: str, *, timeout: float) -> None:
        """Begin the next one, of the dataset ``name``."""
        self.topic = f"iteration {next(session.iterations)}"
        self.timeout = timeout
        self._session = session
        self._name = name

    def shake_hands(self, prepare: Callable[[], tuple[Facts, object]]) -> list[Any]:
        """Compare facts with the other ranks; what each of them has found out for all."""
        heartbeat = self._session.heartbeat
        heartbeat.start(self.timeout)
        return shake_hands(
            self._session.communicator,
            self.topic,
            prepare,
            heartbeat=heartbeat,
            name=self._name,
            timeout=self.timeout,
        )

    def watch(self) -> Watch:
        """Make the eye on the other ranks."""
        return Watch(self._session.heartbeat, self.topic, timeout=self.timeout)

    def exchange(self) -> Exchange:
        """Make the way to show them something before the first step."""
        workers, heartbeat = self._session.communicator, self._session.heartbeat
        return Exchange(workers, heartbeat, self.topic, name=self._name, timeout=self.timeout)

    def audit(self, read_counter: ReadCounter, expected: Expected) -> Audit:
        """Make the sums that are compared at the end."""
        return Audit(
            self._session.communicator,
            f"audit of {self.topic}",
            timeout=self.timeout,
            gone=partial(self._session.heartbeat.peers.gone, self.timeout),
            reading=lambda: read_counter.reading,
            expected=expected,
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others, which may be inside already."""
        self._session.heartbeat.tell(self.topic, error)
