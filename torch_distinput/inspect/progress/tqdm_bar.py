"""A bar of tqdm. Imported only where tqdm is installed."""

from __future__ import annotations

import os
import sys
from typing import Any

from tqdm.auto import tqdm

from torch_distinput.inspect.progress.reading import EpochReading

_SECONDS_IN_LOGS = 30.0


class _ReadingBar(tqdm):  # type: ignore[misc] # tqdm has no types
    """Asks its reading when it is drawn, in the thread of the loop."""

    # tqdm's monitor is a thread for bars that skip updates (miniters > 1). This one looks at the
    # clock in each update, so it needs none, and no thread is there when a process forks.
    monitor_interval = 0

    def __init__(self, reading: EpochReading, **arguments: Any) -> None:
        self._reading = reading
        super().__init__(**arguments)

    def show_steps(self) -> None:
        """Move to the step that the iterator is at."""
        self.update(self._reading.steps - self.n)

    def close(self) -> None:
        """Draw for the last time: the step that the loop was left in was delivered, too."""
        self.n = self._reading.steps
        super().close()

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        """Draw as tqdm does, whose own keeps the lock of all bars where drawing raises.

        That is so when nobody reads the terminal any more; bars of other threads would wait for
        ever.
        """
        if nolock or lock_args:
            return super().refresh(nolock, lock_args)
        with self._lock:
            return super().refresh(nolock=True)

    @property
    def format_dict(self) -> dict[str, Any]:
        """What tqdm draws; a total that was too low grows, for which tqdm would drop the bar."""
        known = super().format_dict
        total = None if known["total"] is None else max(known["total"], known["n"])
        return {**known, "total": total, "postfix": self._reading.text}


def make_tqdm_bar(reading: EpochReading) -> Any:
    """Draw a reading as tqdm does where it runs: a terminal, a notebook, a log file."""
    arguments = {}
    is_seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not is_seen and "TQDM_MININTERVAL" not in os.environ:
        # tqdm would write ten lines a second into the log of a job.
        arguments = {"mininterval": _SECONDS_IN_LOGS, "maxinterval": _SECONDS_IN_LOGS}
    return _ReadingBar(
        reading,
        desc=reading.title,
        total=reading.num_steps,
        initial=reading.first_step,
        unit="step",
        miniters=1,
        leave=None,  # a bar inside of another one goes when it has ended
        **arguments,
    )
