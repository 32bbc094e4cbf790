"""The steps of streams whose lengths are known beforehand: arithmetic instead of votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch_distinput.plan.assignment.batching import Idle, Splitter, count_idle, count_in_sync
from torch_distinput.plan.assignment.bounds import FixedBounds


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledStep:
    """One step of this worker in its own stream, or in the shared one.

    Attributes:
        start: the row of the stream at which it begins.
        sizes: rows of each local replica.
        num_examples: examples over all replicas in sync.
        steps_done: steps that are over after this one, also those that nobody had an example in.
    """

    start: int
    sizes: tuple[int, ...]
    num_examples: int
    steps_done: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """All steps of an epoch, or of what is left of one.

    Attributes:
        splitter: cuts global batches for this worker; knows their size.
        lengths: examples in the stream of each worker; where the stream is shared, in that one.
        drop_last: leave out each stream's last partial batch.
        steps_done: steps that are over already.
    """

    splitter: Splitter
    lengths: tuple[int, ...]
    drop_last: bool
    steps_done: int = 0

    def iterate_steps(self) -> Iterator[ScheduledStep]:
        """Yield this worker's part of each step to come that has an example in sync."""
        cut_sizes, steps, alike = None, [], self._count_alike()
        bounds, steps_per_batch = self._bounds, self.splitter.steps_per_batch
        first_batch, first_step = divmod(self.steps_done, steps_per_batch)
        for number in range(first_batch, self._num_batches):
            if cut_sizes is None or number >= alike:  # else full ones, like those before
                sizes = self._list_sizes(number)
            if sizes != cut_sizes:
                cuts = self.splitter.cut(sizes[self._own])
                totals = count_in_sync(self.splitter, sizes)
                steps = list(enumerate(zip(cuts, totals, strict=True), 1))
                cut_sizes = sizes
            first_row, steps_done = bounds.begin(number), number * steps_per_batch
            for step, (cut, total) in steps[first_step:]:
                if total:
                    yield ScheduledStep(
                        start=first_row + cut.start,
                        sizes=cut.sizes,
                        num_examples=total,
                        steps_done=steps_done + step,
                    )
            first_step = 0

    def count_delivered(self, steps_done: int) -> tuple[int, ...]:
        """Return how many rows of each stream are delivered when so many steps are over."""
        batch, step = divmod(steps_done, self.splitter.steps_per_batch)
        bounds, begin = self._bounds, self._bounds.begin(batch)
        return tuple(
            min(bounds.find_last_end(length, drop_last=self.drop_last), begin)
            + self._count_rows_before(worker, batch, step)
            for worker, length in enumerate(self.lengths)
        )

    @property
    def num_left(self) -> int:
        """How many steps there are to come."""
        batch, step = divmod(self.steps_done, self.splitter.steps_per_batch)
        begun = count_in_sync(self.splitter, self._list_sizes(batch))[:step]
        return self._count_steps(batch) - sum(total > 0 for total in begun)

    @property
    def idle(self) -> Idle:
        """The zero-row batches of all replicas in sync."""
        return sum(
            (count_idle(self.splitter, sizes) * n for sizes, n in self._list_rounds(0)), Idle()
        )

    def _count_steps(self, batch: int) -> int:
        """The steps from a batch on."""
        return sum(
            times * sum(total > 0 for total in count_in_sync(self.splitter, sizes))
            for sizes, times in self._list_rounds(batch)
        )

    def _list_rounds(self, first: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """The sizes of the batches of all workers from one on, and how often they come.

        Rounds in which all workers have full batches are alike.
        """
        alike = max(first, self._count_alike())
        if first < alike:
            yield self._list_sizes(first), alike - first
        yield from ((self._list_sizes(number), 1) for number in range(alike, self._num_batches))

    @property
    def own_length(self) -> int:
        """Examples in the stream that this worker reads."""
        return self.lengths[self._own]

    @property
    def num_dropped(self) -> int:
        """Examples that ``drop_last`` leaves out, over all streams."""
        bounds, drop_last = self._bounds, self.drop_last
        return sum(
            length - bounds.find_last_end(length, drop_last=drop_last) for length in self.lengths
        )

    def _count_alike(self) -> int:
        """How many batches, from the first on, are full in all streams."""
        return self._bounds.count_batches(min(self.lengths), drop_last=True)

    def _count_rows_before(self, worker: int, batch: int, step: int) -> int:
        """Rows of a worker in the first steps of a batch."""
        if not step or batch >= self._num_batches:
            return 0
        topology = replace(self.splitter.topology, worker_index=worker)
        size = self._measure(batch, self.lengths[worker])
        return replace(self.splitter, topology=topology).count_rows(size, step)

    @property
    def _own(self) -> int:
        return 0 if self.splitter.shared else self.splitter.topology.worker_index

    @property
    def _bounds(self) -> FixedBounds:
        return self.splitter.bounds

    @property
    def _num_batches(self) -> int:
        return self._bounds.count_batches(max(self.lengths), drop_last=self.drop_last)

    def _list_sizes(self, number: int) -> tuple[int, ...]:
        """The size of one batch in each stream."""
        sizes = {length: self._measure(number, length) for length in set(self.lengths)}
        return tuple(sizes[length] for length in self.lengths)

    def _measure(self, number: int, length: int) -> int:
        """The size of one batch in a stream of a length: full, partial, or nothing left."""
        begin, end = self._bounds.begin(number), self._bounds.end(number)
        if length >= end:
            return end - begin
        return 0 if self.drop_last else min(end - begin, max(0, length - begin))
