"""The doctor on one rank: it watches, leaves a record, and on rank 0 reports for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from torch_distinput.inspect.doctor.watching.loader_watch import LoaderWatch, watching
from torch_distinput.inspect.doctor.watching.record_folder import RecordFolder, guarded
from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.report import write_report


@final
class DoctorSession:
    """One run of a script.

    Args:
        rank: this process, of ``num_ranks``.
        num_ranks: 1 needs no folder.
        steps: batches of one loader after which the script is ended.
        patience: seconds.
        folder: where ranks leave their records.

    Attributes:
        watch: what this rank sees.
    """

    def __init__(
        self, *, rank: int, num_ranks: int, steps: int, patience: float, folder: Path
    ) -> None:
        """Watch nothing yet."""
        self.watch = LoaderWatch(num_ranks=num_ranks, steps=steps)
        self._rank, self._num_ranks, self._patience = rank, num_ranks, patience
        self._folder = (
            RecordFolder(folder, rank=rank, num_ranks=num_ranks, patience=patience)
            if num_ranks > 1
            else None
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the loaders of this process, and guard it where there are others."""
        with watching(self.watch):
            if self._folder is None:
                yield
                return
            with guarded(
                self._folder,
                last_moment=lambda: self.watch.last_moment,
                give_up=self._give_up,
                say_quiet=self._say_quiet,
            ):
                yield

    def finish(self, outcome: str) -> None:
        """Bring the ranks together; the first of them reports."""
        record = self._record(outcome)
        if self._folder is None:
            print(write_report([record]))  # noqa: T201 - a command's result
            return
        self._folder.leave(record)
        if self._rank:
            self._folder.wait_for_report()
            return
        print(write_report(self._folder.wait_for_records()), flush=True)  # noqa: T201
        self._folder.mark_reported()

    def _give_up(self) -> int:
        """Finish for a rank that waits for others, and return its exit status."""
        assert self._folder is not None
        if self._folder.were_others_stopped():  # by the doctor: the script is not to blame
            self.finish("waited for ranks that were stopped, as asked")
            return 0
        self.finish("waited for ranks that had ended")
        return 1

    def _say_quiet(self) -> bool:
        """Report what was seen until now, if all ranks are quiet."""
        assert self._folder is not None
        outcome = f"fetched nothing for {self._patience:g} seconds"
        self._folder.leave(self._record(outcome), is_quiet=True)
        if self._rank:
            return True
        records = self._folder.read_quiet()
        if records:
            head = "No rank fetches a batch. They go on; this is what was seen until now."
            print(f"\n{head}\n{write_report(records)}", flush=True)  # noqa: T201
        return bool(records)

    def _record(self, outcome: str) -> RankRecord:
        return RankRecord(
            rank=self._rank,
            num_ranks=self._num_ranks,
            outcome=outcome,
            was_stopped=self.watch.has_seen_enough,
            loaders=self.watch.records(),
        )
