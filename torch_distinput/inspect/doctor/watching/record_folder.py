"""How the ranks of a job bring together what they have seen: by files, so that nothing can hang.

One of them may wait for a rank that has come to its end, in a collective that never returns. A
thread of its own then writes down what was seen, and ends the process.

    thread  writes                       reads                       guarded by
    main    its record; the report       the records of all ranks    files appear whole, by rename
    guard   the same, while main waits   the same; what the watch    one float, and lists that main
            for ranks that have ended    has seen, and its moment    does not touch while it waits
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.threads import new_event, start_thread

_PAUSE = 0.05
_GUARD_PAUSE = 0.25


@final
class RecordFolder:
    """A folder in which each rank leaves a record, and rank 0 a mark when it has reported."""

    def __init__(self, folder: Path, *, rank: int, num_ranks: int, patience: float) -> None:
        """Take away what an earlier run of this rank has left."""
        self._folder, self._rank, self._num_ranks = folder, rank, num_ranks
        self._patience = patience
        self._first_end: float | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._forget()
        if rank == 0:
            self._mark.unlink(missing_ok=True)

    def leave(self, record: RankRecord, *, is_quiet: bool = False) -> None:
        """Write down what this rank has seen; ``is_quiet``: until now, for it has not ended."""
        part = self._folder / f"rank-{self._rank}.part"
        part.write_text(record.to_json())
        part.replace(self._quiet_file(self._rank) if is_quiet else self._file(self._rank))

    def read_quiet(self) -> list[RankRecord]:
        """Return the records of all ranks, if each of them is quiet or has ended; else nothing."""
        files = [
            self._file(rank) if self._file(rank).exists() else self._quiet_file(rank)
            for rank in range(self._num_ranks)
        ]
        if not all(file.exists() for file in files):
            return []
        return [RankRecord.from_json(file.read_text()) for file in files]

    def wait_for_records(self) -> list[RankRecord]:
        """Return the records of all ranks, or of those that have come in time."""
        files = [self._file(rank) for rank in range(self._num_ranks)]
        self._wait(lambda: all(file.exists() for file in files))
        return [RankRecord.from_json(file.read_text()) for file in files if file.exists()]

    def wait_for_report(self) -> None:
        """Let rank 0 report before torchrun sees that this rank has failed, and ends the others."""
        self._wait(self._mark.exists)
        if self._mark.exists():
            self._tidy()

    def mark_reported(self) -> None:
        """Let the other ranks go; the last of them takes the mark away."""
        self._forget()
        self._mark.touch()

    def _tidy(self) -> None:
        """Leave nothing behind."""
        self._forget()
        if not any(self._folder.glob("rank-*.json")):
            self._mark.unlink(missing_ok=True)
            with suppress(OSError):  # there is something else in it: it is the user's
                self._folder.rmdir()

    def is_quiet(self, last_moment: float) -> bool:
        """Whether this rank has long fetched nothing."""
        return time.monotonic() - last_moment > self._patience

    def is_left_alone(self, last_moment: float) -> bool:
        """Whether another rank ended long ago, and this one has fetched nothing since then."""
        now = time.monotonic()
        files = [self._file(rank) for rank in range(self._num_ranks) if rank != self._rank]
        if self._first_end is None and any(file.exists() for file in files):
            self._first_end = now
        since = max(last_moment, self._first_end or now)
        return self._first_end is not None and now - since > self._patience

    def were_others_stopped(self) -> bool:
        """Whether the doctor has stopped all other ranks that have ended."""
        files = [self._file(rank) for rank in range(self._num_ranks) if rank != self._rank]
        texts = []
        for file in files:
            with suppress(FileNotFoundError):  # not there, or taken away after the report
                texts.append(file.read_text())
        return bool(texts) and all(RankRecord.from_json(text).was_stopped for text in texts)

    def _wait(self, is_there: Callable[[], bool]) -> None:
        # Twice: a rank that waits for one that has ended leaves its record after one patience.
        until = time.monotonic() + 2 * self._patience
        while not is_there() and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _forget(self) -> None:
        """Take away what this rank has left."""
        self._file(self._rank).unlink(missing_ok=True)
        self._quiet_file(self._rank).unlink(missing_ok=True)

    def _quiet_file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.quiet"

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    @property
    def _mark(self) -> Path:
        return self._folder / "reported"


@contextmanager
def guarded(
    folder: RecordFolder,
    *,
    last_moment: Callable[[], float],
    give_up: Callable[[], int],
    say_quiet: Callable[[], bool],
) -> Iterator[None]:
    """End this process where others have ended and it has fetched nothing for the same time.

    Where no rank has ended, all of them may wait for one another, or be busy with something else:
    this is said, and the process goes on.

    Args:
        folder: where others leave their records.
        last_moment: when this rank last fetched a batch, by the monotonic clock.
        give_up: leaves what was seen, and returns the exit status; called in the guard's thread.
        say_quiet: leaves what was seen until now, and says whether that was all there is to do.
    """
    is_over = new_event()

    def guard() -> None:
        was_said = False
        while not is_over.wait(_GUARD_PAUSE):
            if folder.is_left_alone(last_moment()):
                status = give_up()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)  # the main thread is in a collective that nobody will answer
            if not was_said and folder.is_quiet(last_moment()):
                was_said = say_quiet()

    thread = start_thread(guard, name="doctor-guard", stop=is_over.set)
    try:
        yield
    finally:
        is_over.set()
        thread.join()  # it may be leaving a record, as this thread is about to
