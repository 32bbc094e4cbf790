"""The times of an iterator's last steps, and of all of them in a file, if one is asked for."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from typing import final

from torch_distinput.distribute.reports.trace_file import TraceFile
from torch_distinput.meter import RawMark, StepMark, WorkClock, read_mark

_NUM_KEPT = 1024
"""Steps that are kept for a report: about 400 bytes each."""


@final
class StepLog:
    """Filled by the training loop, once a step.

    Attributes:
        clock: counts what is decoded and collated where steps are pulled.
        add: keeps a step that was handed over.
    """

    def __init__(self, measurement: Measurement, first_step: int) -> None:
        """Keep nothing yet."""
        self.clock = measurement.clock
        self._measurement = measurement  # which closes the file when nobody is left
        self._file = measurement.file
        self._first_step = first_step
        self._raw: deque[RawMark] = deque(maxlen=_NUM_KEPT)
        self.add: Callable[[RawMark], None] = self._raw.append if self._file is None else self._add

    @property
    def is_shared(self) -> bool:
        """Whether one rank reads for others."""
        return self._measurement.is_shared

    @property
    def marks(self) -> list[StepMark]:
        """The last steps delivered, without the first one, in which everything starts."""
        raw = list(self._raw)
        read = [read_mark(mark, before) for before, mark in itertools.pairwise(raw)]
        if raw and raw[0][0] != self._first_step:
            read.insert(0, read_mark(raw[0], None))
        return read

    def flush(self) -> None:
        """Write what is still to be written."""
        if self._file is not None:
            self._file.flush()

    def _add(self, raw: RawMark) -> None:
        self._raw.append(raw)
        assert self._file is not None, "else the deque does it"
        self._file.add(raw)


@final
class Measurement:
    """What a dataset measures: its iterators write to one file, one after another.

    Attributes:
        clock: of what is decoded and collated.
        is_shared: one rank reads for others.
        file: None where steps are not written down, and before :meth:`open_file`.
    """

    def __init__(
        self, clock: WorkClock, path: str | None = None, *, rank: int = 0, is_shared: bool = False
    ) -> None:
        """Open no file yet: a rank that cannot has to tell the others, who listen at ``iter()``."""
        self.clock = clock
        self.is_shared = is_shared
        self.file: TraceFile | None = None
        self._path = path
        self._rank = rank

    def open_file(self) -> None:
        """Open the file, if there is to be one; all ``iter()``s after the first write on in it.

        Raises:
            ConfigurationError: if it cannot be written.
        """
        if self._path is None or self.file is not None:
            return
        self.file = TraceFile(self._path, rank=self._rank, is_shared=self.is_shared)
        weakref.finalize(self, self.file.close)

    def open(self, first_step: int) -> StepLog:
        """The log of an iterator, which begins with a step."""
        return StepLog(self, first_step)


def name_of_rank(path: str, *, dataset: int, rank: int) -> str:
    """The path of one rank's file: ``trace.json`` is ``trace.dataset0.rank3.json``."""
    pure = PurePath(path)
    return str(pure.with_name(f"{pure.stem}.dataset{dataset}.rank{rank}{pure.suffix or '.json'}"))
