"""How a global batch is cut into replica batches, and which pieces are this worker's.

A global batch of n examples becomes N pieces, one for each replica in sync. Rows keep their order:
piece i holds the rows from ``bound(i)`` to ``bound(i + 1)``. The three rules are those of
docs/semantics.md, Splitting:

    split   pieces of ceil(n / N); the last ones are short or empty
    even    sizes differ by at most one
    cycle   the sizes of a *full* batch, filled in order; a partial batch is not balanced again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.bounds import FixedBounds, Size
from torch_distinput.plan.assignment.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """One step of this worker within one global batch: skip to ``start``, then take ``sizes``."""

    start: int
    sizes: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of this worker in the step."""
        return sum(self.sizes)

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.start + self.num_rows

    def fill(self, num_rows: int) -> tuple[int, ...]:
        """Return the sizes when only the first ``num_rows`` rows of the step exist."""
        bounds = [min(num_rows, bound) for bound in accumulate(self.sizes, initial=0)]
        return tuple(stop - start for start, stop in pairwise(bounds))


@dataclass(frozen=True, kw_only=True, slots=True)
class Splitter:
    """Cuts global batches for one worker.

    Attributes:
        topology: the cluster, and which worker this is.
        rebatch: the rule.
        global_batch_size: examples in a full batch, or the budget of one; None for batches of
            sizes of their own. A number is needed by ``cycle`` and ``most_rows`` only.
        shared: True (DATA): all workers see the same batches, piece i goes to replica i in sync,
            one step a batch. False (FILE, OFF): the batch is this worker's own, its N pieces are
            *rotated* left by the worker's first replica and played in order, R a step; so that a
            step in which all workers have full batches holds exactly ``global_batch_size``
            examples, also when N does not divide it.
    """

    topology: Topology
    rebatch: Rebatch
    global_batch_size: Size | None
    shared: bool

    @property
    def bounds(self) -> FixedBounds:
        """Where the global batches begin; asked only where they have a size."""
        return FixedBounds(size=self._full_size())

    @property
    def most_rows(self) -> int:
        """Rows of the largest piece, by every rule."""
        return -(-self._full_size() // self.topology.num_replicas_in_sync)

    @property
    def steps_per_batch(self) -> int:
        """Steps that one batch is played in."""
        return 1 if self.shared else self.topology.num_workers

    def cut(self, num_examples: int) -> tuple[Cut, ...]:
        """Return this worker's steps of a global batch of ``num_examples`` rows."""
        sizes = self._sizes(num_examples)
        num_replicas = self.topology.replicas_per_worker
        starts = list(accumulate(sizes, initial=self._first_row(num_examples)))
        return tuple(
            Cut(start=starts[i], sizes=sizes[i : i + num_replicas])
            for i in range(0, len(sizes), num_replicas)
        )

    def count_rows(self, num_examples: int, steps: int) -> int:
        """Rows of the first steps of this worker's own batch, without cutting it."""
        in_sync, first = self.topology.num_replicas_in_sync, self.topology.first_replica
        rows = self._full_size() if self.rebatch is Rebatch.CYCLE else num_examples
        last = first + steps * self.topology.replicas_per_worker
        counted = self._bound(rows, min(last, in_sync)) - self._bound(rows, first)
        if last > in_sync:  # rotated
            counted += self._bound(rows, last - in_sync)
        return min(counted, num_examples)

    def list_sizes(self, num_examples: int) -> NDArray[np.int64]:
        """The sizes in this worker's own batch, a row for each step: ``(steps, replicas)``.

        As :meth:`cut`, for whoever asks for those of many workers.
        """
        num_replicas, rows = self.topology.replicas_per_worker, num_examples
        in_sync, first = self.topology.num_replicas_in_sync, self.topology.first_replica
        pieces = np.arange(in_sync + 1)
        if self.rebatch is Rebatch.SPLIT:
            bounds = pieces * -(-rows // in_sync)
        else:
            assert self.rebatch in (Rebatch.EVEN, Rebatch.CYCLE), f"no rule {self.rebatch}"
            rows = self._full_size() if self.rebatch is Rebatch.CYCLE else rows
            size, longer = divmod(rows, in_sync)
            bounds = pieces * size + np.minimum(pieces, longer)
        sizes = np.diff(np.minimum(rows, bounds))
        ends = np.cumsum(np.concatenate([sizes[first:], sizes[:first]]))
        played: NDArray[np.int64] = np.diff(np.minimum(ends, num_examples), prepend=0)
        return played.reshape(-1, num_replicas)

    def _first_row(self, num_examples: int) -> int:
        first = self.topology.first_replica if self.shared else 0
        return self._bound(num_examples, first)

    def _sizes(self, num_examples: int) -> tuple[int, ...]:
        """Sizes of the pieces this worker plays, in order."""
        first = self.topology.first_replica
        if self.shared:
            last = first + self.topology.replicas_per_worker
            return self._piece_sizes(num_examples, range(first, last))
        in_sync = self.topology.num_replicas_in_sync
        rotated = [(first + i) % in_sync for i in range(in_sync)]
        if self.rebatch is Rebatch.CYCLE:
            # The full sizes are rotated first and filled then, so that rows flow in order.
            full = self._piece_sizes(self._full_size(), rotated)
            return Cut(start=0, sizes=full).fill(num_examples)
        return self._piece_sizes(num_examples, rotated)

    def _piece_sizes(self, num_examples: int, pieces: range | list[int]) -> tuple[int, ...]:
        return tuple(
            self._bound(num_examples, i + 1) - self._bound(num_examples, i) for i in pieces
        )

    def _bound(self, num_examples: int, piece: int) -> int:
        """First row of a piece, without rotation."""
        in_sync = self.topology.num_replicas_in_sync
        if self.rebatch is Rebatch.SPLIT:
            return min(num_examples, piece * -(-num_examples // in_sync))
        assert self.rebatch in (Rebatch.EVEN, Rebatch.CYCLE), f"there is no rule {self.rebatch}"
        rows = self._full_size() if self.rebatch is Rebatch.CYCLE else num_examples
        size, longer = divmod(rows, in_sync)
        return min(num_examples, piece * size + min(piece, longer))

    def _full_size(self) -> int:
        assert isinstance(self.global_batch_size, int), "what needs it is refused without it"
        return self.global_batch_size


@dataclass(frozen=True, slots=True)
class Idle:
    """Replicas in sync that have no examples while others have.

    Attributes:
        steps: in how many steps there are some.
        batches: how many zero-row batches they get in all of these.
    """

    steps: int = 0
    batches: int = 0

    def __add__(self, other: Idle) -> Idle:
        """Both together."""
        return Idle(self.steps + other.steps, self.batches + other.batches)

    def __mul__(self, count: int) -> Idle:
        """The same, so many times."""
        return Idle(self.steps * count, self.batches * count)


@lru_cache(maxsize=64)
def count_in_sync(splitter: Splitter, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Count the examples in sync of each step of one round of batches.

    ``sizes``: of a shared batch; of one of each worker; or of one that all of them have alike.
    """
    if splitter.shared:
        return sizes
    if set(sizes) == {splitter.global_batch_size}:
        return sizes[:1] * splitter.topology.num_workers  # what the rotation is for
    totals: NDArray[np.int64] = np.zeros(splitter.steps_per_batch, dtype=np.int64)
    for cut in cut_for_all(splitter, sizes):
        totals += cut.sum(axis=1)
    return tuple(totals.tolist())


@lru_cache(maxsize=16)
def count_idle(splitter: Splitter, sizes: tuple[int, ...]) -> Idle:
    """Count the idle replicas in one round of batches, as in :func:`count_in_sync`."""
    rows: NDArray[np.int64] = np.zeros(splitter.steps_per_batch, dtype=np.int64)
    empty = rows.copy()
    for cut in cut_for_all(splitter, sizes):
        rows += cut.sum(axis=1)
        empty += (cut == 0).sum(axis=1)
    uneven = empty[(rows > 0) & (empty > 0)]
    return Idle(len(uneven), int(uneven.sum()))


def cut_for_all(splitter: Splitter, sizes: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    """Yield the sizes of each worker, ``(steps, replicas)``; of a shared batch of all replicas.

    ``sizes``: as in :func:`count_in_sync`.
    """
    topology = splitter.topology
    if splitter.shared:
        topology = Topology(replicas_per_worker=topology.num_replicas_in_sync)
        (size,) = sizes
        (cut,) = replace(splitter, topology=topology).cut(size)
        yield np.array([cut.sizes], dtype=np.int64)
        return
    num_workers = topology.num_workers
    for worker, size in enumerate(sizes * num_workers if len(sizes) == 1 else sizes):
        yield replace(splitter, topology=replace(topology, worker_index=worker)).list_sizes(size)
