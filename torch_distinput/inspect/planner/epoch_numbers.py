"""The numbers of an epoch that was planned, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_distinput.inspect.planner.known_files import KnownFiles
from torch_distinput.inspect.planner.readers import Readers
from torch_distinput.inspect.planner.totals.epoch_totals import NEVER, Integers
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
    def of(values: Integers | None) -> Spread | None:
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochNumbers:
    """What :class:`EpochPlan` shows, which says what each of them is."""

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
    examples_by_worker: Integers | None = field(default=None, repr=False)
    bytes_by_worker: Integers | None = field(default=None, repr=False)
    files_by_worker: Integers | None = field(default=None, repr=False)
    zero_row_batches_by_worker: Integers | None = field(default=None, repr=False)
    first_zero_row_step_by_worker: Integers | None = field(default=None, repr=False)
    known: KnownFiles | None = field(default=None, repr=False)
    readers: Readers | None = field(default=None, repr=False)

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

    def files_of(self, worker: int) -> Integers:
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
            if self.readers is None:
                return order
            return _drop_repeated(known.make_unit_files()[self.readers.parts_of(worker)])
        if not self.split_files:
            return order[worker :: self.num_workers]
        if known.split_parts is None:
            msg = (
                "files_of expects files that were looked into where their parts are dealt out, got "
                f"a plan of {self.source} without. Plan with count=True."
            )
            raise ValueError(msg)
        files = known.split_parts.files
        return _drop_repeated(files[known.order(len(files))[worker :: self.num_workers]])


def _drop_repeated(files: Integers) -> Integers:
    """Each number once, where it comes first."""
    _, first = np.unique(files, return_index=True)
    found: Integers = files[np.sort(first)]
    return found
