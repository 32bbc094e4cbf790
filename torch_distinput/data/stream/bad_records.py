"""What is not in the data: records that were skipped, and how often a storage was asked again.

A :class:`ReadLog` lives where files are read, perhaps in a loader process; each :class:`ReadReport`
travels with a step; a :class:`ReadCounter` adds them up where the training loop runs. What a
``Witness`` has seen of a stream that all workers read travels in the same way.

    thread                        writes                              reads               guarded by
    readers (one or more)         ReadLog: _skipped, _words, retries                      its _lock
    who takes the rows            ReadLog: empties them               the same            its _lock
    who takes the steps           ReadCounter: all                                        its _lock
    the training loop                                                 ReadCounter: all    its _lock
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, final

from torch_distinput.data.storage.retries import Retries
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.checksum import Reading
from torch_distinput.threads import Lock, new_lock

T = TypeVar("T")
OnError = Literal["raise", "skip"] | Callable[[SourceError], bool]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadReport:
    """What was skipped and retried since the notes before.

    Attributes:
        skipped: how many records of which file.
        words: what was wrong with the first of them.
        retries: requests that were made again.
        reading: all that was read of a stream that other workers read too, told at its end.
    """

    skipped: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0
    reading: Reading | None = None


@final
@dataclass(slots=True)
class ReadLog:
    """Decides what happens to bad records, and keeps count; threads may share it."""

    on_error: OnError = "raise"
    retries: Retries = field(default_factory=Retries)
    _skipped: Counter[str] = field(default_factory=Counter)
    _words: dict[str, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=new_lock)

    def bad(self, path: str, where: str, reason: object) -> None:
        """Raise, or count the record as skipped and return."""
        error = SourceError(f"{path}, {where}: {reason}")
        cause = reason if isinstance(reason, BaseException) else None
        if self.on_error == "raise" or (callable(self.on_error) and not self.on_error(error)):
            raise error from cause
        with self._lock:
            self._skipped[path] += 1
            self._words.setdefault(path, f"{where}: {reason}")

    def drain(self) -> ReadReport | None:
        """Hand over what has been noted since the last call; None if there is nothing."""
        if not self._skipped and not self.retries.count:
            return None
        with self._lock:
            skipped, self._skipped = self._skipped, Counter()
            words, self._words = self._words, {}
        return ReadReport(skipped=dict(skipped), words=words, retries=self.retries.take())


@final
class ReadCounter:
    """Adds up the notes of one iterator. Filled by the thread that reads, read by any."""

    def __init__(self, worker: int) -> None:
        """Start at zero."""
        self._worker = worker
        self._lock = new_lock()
        self._skipped: Counter[str] = Counter()
        self._retries = 0
        self._reading: Reading | None = None

    def sift(self, items: Iterable[T | ReadReport]) -> Iterator[T]:
        """Keep the notes, pass on the rest."""
        for item in items:
            if isinstance(item, ReadReport):
                self.add(item)
            else:
                yield item

    def add(self, notes: ReadReport | None) -> None:
        """Count; say once per file that records are left out."""
        if notes is None:
            return
        with self._lock:
            news = [path for path in notes.skipped if path not in self._skipped]
            self._skipped.update(notes.skipped)
            self._retries += notes.retries
            self._reading = notes.reading or self._reading
        for path in news:
            _log.warning(
                "worker %d skips bad records of %s: %s (more of them are only counted)",
                self._worker,
                path,
                notes.words[path],
            )

    @property
    def retries(self) -> int:
        """Requests that were made again."""
        return self._retries

    @property
    def reading(self) -> Reading | None:
        """What was read of a shared stream; None unless that is compared, and before its end."""
        with self._lock:
            return self._reading

    @property
    def skipped(self) -> dict[str, int]:
        """How many records of which file were left out."""
        with self._lock:
            return dict(self._skipped)
