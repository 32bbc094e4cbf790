"""Connecting in a thread: one that waits for a rank does not hear that it is gone.

What it makes is its only value, and the caller's thread waits for it.

    thread     writes             reads               ordered by
    connect    made or errors                         sets ``done`` after its last write
    caller                        made and errors     waits for ``done`` before it reads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch_distinput.communicator import Gone, check_company
from torch_distinput.threads import new_event, start_thread

T = TypeVar("T")
_LOOK_SECONDS = 0.5
"""Time between two questions who is gone."""


def connect(make: Callable[[], T], *, size: int, gone: Gone) -> T:
    """Return what ``make()`` does, which ends by itself after a while.

    Raises:
        PeerFailedError: one of the first ``size`` workers is gone; ``make`` may go on for a while.
    """
    done, made, errors = new_event(), list[T](), list[BaseException]()

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            errors.append(error)
        finally:
            done.set()

    start_thread(run, name="connect", stop=lambda: None)
    while not done.wait(_LOOK_SECONDS):
        lost = {worker: words for worker, words in gone().items() if worker < size}
        check_company("the connections for votes", lost)
    for error in errors:
        raise error
    return made[0]
