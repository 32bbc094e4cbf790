"""Steps as trace events, for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``.

The format is the array of "Trace Event Format": complete events (``"ph": "X"``) with times in
microseconds, a process for each rank and a thread for each row of the picture:

    training loop    | next     | your step              | next ...
                     |source|copy|
    steps pulled          | pull                    | pull

After each writing the file is a whole JSON document: the bracket at its end is written over by
what follows. So it can be read while the job runs, and after it was killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import final

from torch_distinput import meter
from torch_distinput.errors import ConfigurationError
from torch_distinput.meter import (
    AGREEMENT,
    COPY,
    YOUR_STEP,
    RawMark,
    divide_own,
    read_mark,
    split_wait,
)

_log = logging.getLogger(__name__)

_MOST_PENDING = 64
"""Steps that are written at once, ..."""
_MOST_SECONDS = 1.0
"""... or after so many seconds, with the next step."""
_MOST_STEPS = 100_000
"""Steps in a file: about 70 MB, more than the viewers like."""
_WEEK = 604_800.0
_LOOP, _PULL = 0, 1
_ROWS = {_LOOP: "training loop", _PULL: "steps pulled"}
_END = b"\n]\n"
_SHORTEST = 1e-6
"""Seconds; what is shorter cannot be seen."""


@final
class TraceFile:
    """Writes events in the thread of the training loop, many at once; memory is bounded."""

    def __init__(self, path: str, *, rank: int, is_shared: bool = False) -> None:
        """Begin a file; one that is there is overwritten."""
        self._rank = rank
        self._is_shared = is_shared
        self._path = path
        # Machines share the time of day, and processes nothing else. Of the week, since a float of
        # microseconds since 1970 is exact to a quarter of one only.
        self._epoch = time.time() % _WEEK - meter.now()
        self._pending: list[RawMark] = []
        self._last: RawMark | None = None
        self._written = self._num_steps = 0
        self._flushed = meter.now()
        self._process = os.getpid()
        try:
            self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - kept open
            self._write(self._head())
        except OSError as error:
            msg = (
                f"Expected InputOptions.trace to be the path of a file that can be written, got "
                f"{error}. Make the folder {str(PurePath(path).parent)!r} on every rank, or choose "
                "another."
            )
            raise ConfigurationError(msg) from error

    def add(self, raw: RawMark) -> None:
        """Take a step; now and then write those that were taken."""
        if self._num_steps >= _MOST_STEPS:
            return
        self._pending.append(raw)
        is_due = raw[3] - self._flushed > _MOST_SECONDS
        if is_due or len(self._pending) >= _MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Write what was taken; not in a child, which shares the file."""
        if os.getpid() != self._process:
            return
        pending, self._pending = self._pending, []
        self._flushed = meter.now()
        events = [event for raw in pending for event in self._step(raw)]
        try:
            if events:
                self._write(events)
        except OSError as error:  # the training goes on without it
            self._num_steps = _MOST_STEPS
            with contextlib.suppress(OSError):  # leave a whole document
                self._file.truncate(self._written)
                self._file.seek(self._written)
                self._file.write(_END)
            _log.warning("%s ends here: it cannot be written any more (%s).", self._path, error)
            return
        before, self._num_steps = self._num_steps, self._num_steps + len(pending)
        if before < _MOST_STEPS <= self._num_steps:
            _log.warning("%s ends here: it has %d steps.", self._path, self._num_steps)

    def close(self) -> None:
        """Write the rest; no more comes."""
        self.flush()
        self._file.close()

    def _write(self, events: list[str]) -> None:
        head = ",\n" if self._written else "[\n"
        content = (head + ",\n".join(events)).encode()
        self._file.seek(self._written)
        whole = content + _END
        if self._file.write(whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._written += len(content)

    def _head(self) -> list[str]:
        own = {"ph": "M", "pid": self._rank, "ts": 0}
        process, name = {**own, "tid": _LOOP}, f"rank {self._rank}"
        events = [
            {**process, "name": "process_name", "args": {"name": name}},
            {**process, "name": "process_sort_index", "args": {"sort_index": self._rank}},
            *(
                {**own, "name": "thread_name", "tid": row, "args": {"name": title}}
                for row, title in _ROWS.items()
            ),
        ]
        return list(map(json.dumps, events))

    def _step(self, raw: RawMark) -> Iterator[str]:
        last, self._last = self._last, raw
        if last is not None and last[0] + 1 != raw[0]:
            last = None  # of another epoch
        mark = read_mark(raw, last)
        if last is not None:
            yield self._event(YOUR_STEP, _LOOP, last[3], mark.asked, f'"step":{last[0]}')
        wait, work = split_wait(mark, is_shared=self._is_shared), mark.work
        facts = f'"step":{mark.step},"examples":{mark.num_examples}'
        yield self._event("next", _LOOP, mark.asked, mark.had, facts)
        start = mark.asked
        parts = {**divide_own(wait.own, [work]), AGREEMENT: wait.agreement, COPY: wait.copy}
        for station, seconds in parts.items():
            if seconds >= _SHORTEST:
                yield self._event(station, _LOOP, start, min(start + seconds, mark.had))
            start += seconds
        made = f'"step":{mark.step}'
        if work is not None:
            took = {"source": work.source, "decode": work.decode, "collate": work.collate}
            made += "".join(f',"{name}_us":{value * 1e6:.3f}' for name, value in took.items())
        yield self._event("pull", _PULL, mark.pull_asked, mark.pull_had, made)

    def _event(self, name: str, row: int, start: float, stop: float, args: str = "") -> str:
        """One event; its names are our own, so that nothing has to be escaped."""
        # Both ends in whole nanoseconds: what follows something begins exactly where that ends.
        begin = round((self._epoch + start) * 1e9)
        duration = round((self._epoch + max(start, stop)) * 1e9) - begin
        return (
            f'{{"name":"{name}","cat":"input","ph":"X","pid":{self._rank},"tid":{row},'
            f'"ts":{_microseconds(begin)},"dur":{_microseconds(duration)},"args":{{{args}}}}}'
        )


def _microseconds(nanoseconds: int) -> str:
    """As a decimal number, of which nothing is rounded."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
