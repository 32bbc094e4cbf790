"""An epoch before it runs, as its user sees it: numbers, text, JSON and a page."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from torch_distinput.inspect.planner.epoch_numbers import EpochNumbers


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochPlan(EpochNumbers):
    """What an epoch will be, from :func:`plan_epoch`; ``print`` shows it, and so do notebooks.

    Attributes:
        source: what was planned.
        num_workers: workers.
        replicas_per_worker: local replicas of each.
        global_batch_size: as it was asked for.
        policy: who reads what; never AUTO.
        split_files: parts of files are dealt out.
        num_files: files; None where there are none.
        num_examples: examples of an epoch; None where nobody has counted them.
        num_bytes: bytes of all files, each counted once.
        is_exact: examples were counted or given. If not, all that follows from them is estimated.
        steps: steps, the same on all ranks.
        num_dropped: examples that ``drop_last`` leaves out.
        zero_row_steps: steps in which a replica in sync gets a zero-row batch.
        requests: to a storage, over all workers, reading each file from one end to the other.
        listing_requests: to a storage, to list the files by pages of 1,000.
        costs: what each way to read the files comes to.
        notes: what was assumed, in words.
        examples_by_worker: an int64 array ``(num_workers,)``, as the three that follow.
        bytes_by_worker: bytes that each reads.
        files_by_worker: files, or parts, that each opens.
        zero_row_batches_by_worker: zero-row batches of its replicas.
        first_zero_row_step_by_worker: the step of the first of them, or -1.
        known: what the plan was made from; None where there are no files.
        readers: who reads each part of files that all share, where parts are passed over.
    """

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the arrays, for JSON."""
        shown = {
            name: getattr(self, name)
            for name in (
                *("source", "num_workers", "replicas_per_worker", "split_files", "num_files"),
                *("num_examples", "num_bytes", "is_exact", "steps", "num_dropped"),
                *("zero_row_steps", "zero_row_batches", "first_zero_row_step", "imbalance"),
                *("requests", "listing_requests"),
            )
        }
        size = self.global_batch_size
        return {
            **shown,
            "global_batch_size": size if isinstance(size, int) else repr(size),
            "policy": self.policy.value,
            "examples": self.examples and asdict(self.examples),
            "bytes": self.bytes and asdict(self.bytes),
            "files": self.files and asdict(self.files),
            "costs": [asdict(cost) for cost in self.costs],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that opens in any browser, without a network."""
        from torch_distinput.inspect.planner.plan_page import make_page  # noqa: PLC0415

        Path(path).write_text(make_page(self), encoding="utf-8")

    def __str__(self) -> str:
        """Everything but the arrays."""
        from torch_distinput.inspect.planner.plan_text import describe_plan  # noqa: PLC0415

        return describe_plan(self)

    def _repr_html_(self) -> str:
        from torch_distinput.inspect.planner.plan_page import make_fragment  # noqa: PLC0415

        return make_fragment(self)
