"""An epoch before it runs, as its user sees it: numbers, text, JSON and a page."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from torch_distinput.inspect.planner.known_files import KnownFiles
from torch_distinput.inspect.planner.totals import NEVER, Counts
from torch_distinput.options import AutoShardPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A number that each worker has.

    Attributes:
        least: of any worker.
        most: of any worker.
        mean: over all workers.
    """

    least: int
    most: int
    mean: float

    @staticmethod
    def of(values: Counts | None) -> Spread | None:
        """Sum up what the workers have; None where nobody knows."""
        if values is None:
            return None
        return Spread(least=int(values.min()), most=int(values.max()), mean=float(values.mean()))


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyCost:
    """What an epoch would be under one way to read its files.

    Attributes:
        name: FILE; FILE, split_files; or DATA.
        steps: steps; None where examples are not known.
        zero_row_steps: steps in which a replica has no example.
        imbalance: the most examples of a worker over the mean.
        num_bytes: read by all workers together; None where sizes are not known.
        most_bytes: read by one worker.
        requests: to a storage, by all workers together.
        is_exact: examples and parts were counted, and not estimated.
        refused: why a run refuses it; empty where it does not.
    """

    name: str
    steps: int | None = None
    zero_row_steps: int | None = None
    imbalance: float | None = None
    num_bytes: int | None = None
    most_bytes: int | None = None
    requests: int | None = None
    is_exact: bool = True
    refused: str = ""


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochPlan:
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
        first_zero_row_step: the first of them; None if there are none.
        examples: of a worker.
        bytes: that a worker reads.
        files: that a worker opens; parts of files, where these are dealt out.
        requests: to a storage, over all workers, reading each file from one end to the other.
        listing_requests: likewise, to list the files by pages of 1,000.
        costs: what each way to read the files comes to.
        notes: what was assumed, in words.
        examples_by_worker: an int64 array ``(num_workers,)``, as the three that follow.
        bytes_by_worker: bytes that each reads.
        files_by_worker: files, or parts, that each opens.
        zero_row_batches_by_worker: zero-row batches of its replicas.
        first_zero_row_step_by_worker: the step of the first of them, or -1.
    """

    source: str
    num_workers: int
    replicas_per_worker: int
    global_batch_size: Any
    policy: AutoShardPolicy
    split_files: bool = False
    num_files: int | None = None
    num_examples: int | None = None
    num_bytes: int | None = None
    is_exact: bool = True
    steps: int | None = None
    num_dropped: int | None = None
    zero_row_steps: int | None = None
    requests: int | None = None
    listing_requests: int | None = None
    costs: tuple[PolicyCost, ...] = ()
    notes: tuple[str, ...] = ()
    examples_by_worker: Counts | None = field(default=None, repr=False)
    bytes_by_worker: Counts | None = field(default=None, repr=False)
    files_by_worker: Counts | None = field(default=None, repr=False)
    zero_row_batches_by_worker: Counts | None = field(default=None, repr=False)
    first_zero_row_step_by_worker: Counts | None = field(default=None, repr=False)
    known: KnownFiles | None = field(default=None, repr=False)

    @property
    def examples(self) -> Spread | None:
        """Examples of a worker."""
        return Spread.of(self.examples_by_worker)

    @property
    def bytes(self) -> Spread | None:
        """Bytes that a worker reads."""
        return Spread.of(self.bytes_by_worker)

    @property
    def files(self) -> Spread | None:
        """Files, or parts of them, that a worker opens."""
        return Spread.of(self.files_by_worker)

    @property
    def zero_row_batches(self) -> int | None:
        """Zero-row batches of all replicas in sync."""
        batches = self.zero_row_batches_by_worker
        return None if batches is None else int(batches.sum())

    @property
    def first_zero_row_step(self) -> int | None:
        """The first step in which a replica gets a zero-row batch; None if there is none."""
        first = self.first_zero_row_step_by_worker
        if first is None or (first == NEVER).all():
            return None
        return int(first[first != NEVER].min())

    @property
    def imbalance(self) -> float | None:
        """The most examples of a worker over the mean: 1.25 keeps the others idle for a fifth."""
        spread = self.examples
        return None if spread is None or not spread.mean else spread.most / spread.mean

    def files_of(self, worker: int) -> Counts:
        """The numbers of the files that a worker opens, in the order in which it opens them.

        Raises:
            ValueError: without files, or for a worker that there is not.
        """
        if self.known is None or not 0 <= worker < self.num_workers:
            msg = (
                f"files_of expects a worker from 0 to {self.num_workers - 1} of a plan of files, "
                f"got {worker} of {self.source}. Plan files, or ask for another worker."
            )
            raise ValueError(msg)
        known, order = self.known, self.known.order(self.known.num_files)
        if self.policy is not AutoShardPolicy.FILE:
            return order
        if not self.split_files:
            return order[worker :: self.num_workers]
        if known.part_files is None:
            msg = (
                "files_of expects files that were looked into where their parts are dealt out, got "
                f"a plan of {self.source} without. Plan with count=True."
            )
            raise ValueError(msg)
        parts = known.part_files[known.order(len(known.part_files))[worker :: self.num_workers]]
        _, first = np.unique(parts, return_index=True)
        found: Counts = parts[np.sort(first)]
        return found

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
        from torch_distinput.inspect.planner.plan_text import describe  # noqa: PLC0415

        return describe(self)

    def _repr_html_(self) -> str:
        from torch_distinput.inspect.planner.plan_page import make_fragment  # noqa: PLC0415

        return make_fragment(self)
