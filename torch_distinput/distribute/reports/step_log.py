"""The times of an iterator's last steps, and of all of them in a file, if one is asked for."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, final

from torch_distinput.distribute.reports.trace_file import TraceFile, name_of_rank

if TYPE_CHECKING:
    from torch_distinput.meter import StepMark

NUM_KEPT = 1024
"""Steps that are kept for a report: about 400 bytes each."""


@final
class StepLog:
    """Filled by the training loop, once a step.

    Attributes:
        marks: of the last steps delivered.
        first_step: of the first step, in which everything starts.
        is_shared: one rank reads for others.
    """

    def __init__(
        self, first_step: int, *, is_shared: bool = False, measurement: Measurement | None = None
    ) -> None:
        """Keep nothing yet."""
        self.marks: deque[StepMark] = deque(maxlen=NUM_KEPT)
        self.first_step = first_step
        self.is_shared = is_shared
        self._trace = None if measurement is None else measurement.file
        self._measurement = measurement  # which closes the file when nobody is left

    def add(self, mark: StepMark) -> None:
        """Keep a step that was handed over."""
        self.marks.append(mark)
        if self._trace is not None:
            self._trace.add(mark, is_shared=self.is_shared)

    def flush(self) -> None:
        """Write what is still to be written."""
        if self._trace is not None:
            self._trace.flush()


@final
class Measurement:
    """What a dataset measures: its iterators write to one file, one after another.

    Attributes:
        file: the file; None without one.
    """

    def __init__(self, path: str | None, *, dataset: int, rank: int, is_shared: bool) -> None:
        """Open the file of this dataset and rank, if there is to be one.

        Raises:
            ConfigurationError: if it cannot be written.
        """
        self._is_shared = is_shared
        self.file: TraceFile | None = None
        if path is not None:
            self.file = TraceFile(name_of_rank(path, dataset=dataset, rank=rank), rank=rank)
            weakref.finalize(self, self.file.close)

    def open(self, first_step: int) -> StepLog:
        """The log of an iterator, which begins with a step."""
        return StepLog(first_step, is_shared=self._is_shared, measurement=self)
