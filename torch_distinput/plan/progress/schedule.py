"""The steps of streams whose lengths are known beforehand: arithmetic instead of votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from torch_distinput.plan.assignment.batching import Idle, Splitter, idle


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
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
class KnownSteps:
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

    def pieces(self) -> Iterator[Piece]:
        """Yield this worker's part of each step to come that has an example in sync."""
        cut_sizes, steps = None, []
        first_batch, first_step = divmod(self.steps_done, self.splitter.steps_per_batch)
        for number in range(first_batch, self._num_batches):
            sizes = self._batch_sizes(number)
            if sizes != cut_sizes:  # else it is a full batch like the one before
                cuts = self.splitter.cuts(sizes[self._own])
                steps = list(enumerate(zip(cuts, _totals(self.splitter, sizes), strict=True), 1))
                cut_sizes = sizes
            first_row, steps_done = number * self._full, number * self.splitter.steps_per_batch
            for step, (cut, total) in steps[first_step:]:
                if total:
                    yield Piece(
                        start=first_row + cut.start,
                        sizes=cut.sizes,
                        num_examples=total,
                        steps_done=steps_done + step,
                    )
            first_step = 0

    def delivered(self, steps_done: int) -> tuple[int, ...]:
        """How many rows of each stream are delivered when so many steps are over."""
        batch, step = divmod(steps_done, self.splitter.steps_per_batch)
        return tuple(
            min(self._kept(length), batch * self._full) + self._rows_before(worker, batch, step)
            for worker, length in enumerate(self.lengths)
        )

    @property
    def num_steps(self) -> int:
        """How many pieces there are; rounds in which all workers have full batches are alike."""
        return sum(
            times * sum(total > 0 for total in _totals(self.splitter, sizes))
            for sizes, times in self._rounds_of_batches()
        )

    @property
    def idle(self) -> Idle:
        """The zero-row batches of all replicas in sync."""
        return sum(
            (idle(self.splitter, sizes).times(n) for sizes, n in self._rounds_of_batches()), Idle()
        )

    def _rounds_of_batches(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """The sizes of the batches of all workers, round by round; and how often they come."""
        if self._num_batches:
            alike = min(self.lengths) // self._full
            counts = dict.fromkeys(range(alike, self._num_batches), 1) | {0: max(1, alike)}
            yield from ((self._batch_sizes(number), times) for number, times in counts.items())

    @property
    def own_length(self) -> int:
        """Examples in the stream that this worker reads."""
        return self.lengths[self._own]

    @property
    def num_dropped(self) -> int:
        """Examples that ``drop_last`` leaves out, over all streams."""
        return sum(length % self._full for length in self.lengths) if self.drop_last else 0

    def _rows_before(self, worker: int, batch: int, step: int) -> int:
        """Rows of a worker in the first steps of a batch."""
        if not step or batch >= self._num_batches:
            return 0
        topology = replace(self.splitter.topology, worker_index=worker)
        cuts = replace(self.splitter, topology=topology).cuts(self._batch_sizes(batch)[worker])
        return sum(cut.num_rows for cut in cuts[:step])

    def _kept(self, length: int) -> int:
        return length - length % self._full if self.drop_last else length

    @property
    def _own(self) -> int:
        return 0 if self.splitter.shared else self.splitter.topology.worker_index

    @property
    def _full(self) -> int:
        assert self.splitter.global_batch_size is not None, "streams of examples have a batch size"
        return self.splitter.global_batch_size

    @property
    def _num_batches(self) -> int:
        longest = max(self.lengths)
        return longest // self._full if self.drop_last else -(-longest // self._full)

    def _batch_sizes(self, number: int) -> tuple[int, ...]:
        """The size of one batch in each stream: full, partial, or nothing left."""
        left = [max(0, length - number * self._full) for length in self.lengths]
        return tuple(
            self._full if rest >= self._full else 0 if self.drop_last else rest for rest in left
        )


@lru_cache(maxsize=64)
def _totals(splitter: Splitter, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Examples in sync of each step of one round of batches."""
    if splitter.shared:
        return sizes
    topology = splitter.topology
    if set(sizes) == {splitter.global_batch_size}:
        return sizes  # what the rotation is for: every step is full, and there are W of them
    workers = [
        replace(splitter, topology=replace(topology, worker_index=worker)).cuts(size)
        for worker, size in enumerate(sizes)
    ]
    return tuple(sum(cut.num_rows for cut in step) for step in zip(*workers, strict=True))
