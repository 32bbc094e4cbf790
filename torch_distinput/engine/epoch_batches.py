"""The global batches of each epoch of a source with an index: our order, or that of a sampler."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch_distinput.cluster.handshake import ORDER
from torch_distinput.data.sources.source import IndexedSource
from torch_distinput.data.steps.planned_steps import num_steps
from torch_distinput.data.user_sources.sampler import length_of, sample_batches
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.bounds import BatchBudget, Size
from torch_distinput.plan.assignment.budget_batches import (
    BudgetBatches,
    make_no_lengths_error,
)
from torch_distinput.plan.assignment.order import (
    ExampleOrder,
    GivenBatches,
    GlobalBatches,
    UniformBatches,
)
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.state import LENGTHS


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What a sampler of the user's gave for an epoch."""

    epoch: int
    batches: GlobalBatches


@dataclass(frozen=True, slots=True)
class _Planned:
    """The batches of an epoch by a budget: worked out as a whole, so once.

    ``sampled``: the order, if a sampler gave it: it may give another each time.
    """

    epoch: int
    sampled: ExampleOrder | None
    size: BatchBudget
    batches: BudgetBatches

    def holds(self, epoch: int, sampled: ExampleOrder | None, size: BatchBudget) -> bool:
        """Whether they are those of this order and size."""
        return (self.epoch, self.size) == (epoch, size) and self.sampled is sampled


class EpochBatches:
    """Makes the batches of an epoch, or samples them.

    A sampler may give another order each time it is iterated. So it is iterated when an epoch
    begins, as a DataLoader does it; what that gave holds as long as the epoch is played.
    """

    def __init__(self, source: IndexedSource, *, seed: int) -> None:
        """Take a source; nothing is sampled yet, nor measured."""
        self._source = source
        self._seed = seed
        budget = source.request.budget
        self._lengths = None if budget is None else source.find_lengths(budget.length)
        self._planned: _Planned | None = None
        self._played: _Sampled | None = None
        self._described: tuple[int, dict[str, object]] | None = None  # of the epoch that is played
        self._looked_up: _Sampled | None = None  # of another epoch: to compare states, to replay

    def begin(self, position: Position) -> None:
        """Sample the epoch that ``iter()`` is about to play, unless it goes on with it."""
        self._described = position.epoch, self._source.describe_order()
        goes_on = self._played is not None and self._played.epoch == position.epoch
        if self._source.sampler is not None and not (position.steps and goes_on):
            self._played = self._sample(position.epoch)

    def describe(self, epoch: int) -> dict[str, object]:
        """What decides the order: the user may give a ``Subset`` other indices between epochs."""
        if self._described is not None and self._described[0] == epoch:
            return self._described[1]
        return self._source.describe_order()

    def of(self, epoch: int, size: Size | None = None) -> GlobalBatches:
        """The global batches; of the size that was asked for, or another.

        Raises:
            ConfigurationError: a ValueError; a budget was asked for, and no lengths are known, or
                an example is longer.
        """
        size = self._source.request.size if size is None else size
        if self._source.sampler is None:
            assert size is not None, "only a batch sampler has no batch size"
            order = self._source.make_order(self._seed, epoch)
            return self._cut(order, size, epoch)
        batches = self._look_up(epoch).batches
        if isinstance(batches, GivenBatches) or size is None:
            return batches
        assert isinstance(batches, (UniformBatches, BudgetBatches)), "there is no other"
        return self._cut(batches.order, size, epoch)

    def num_steps(self, position: Position, splitter: Splitter) -> int | None:
        """Steps of an epoch; of a sampler only its length is asked, which changes nothing."""
        epoch, sampler = position.epoch, self._source.sampler
        if sampler is None or (self._played is not None and self._played.epoch == epoch):
            return _count_steps(self.of(epoch), position, splitter)
        length, size = length_of(sampler), self._source.request.size
        if isinstance(size, BatchBudget):
            return None  # it depends on the order that will be sampled
        if size is None:
            return length if splitter.shared else None  # it depends on the sizes of its batches
        if not length:
            return length
        order = self._source.make_order(self._seed, epoch, length)
        return _count_steps(self._cut(order, size, epoch), position, splitter)

    def first_index(self) -> int:
        """An example that there is: a sampler may leave out example 0."""
        if self._played is not None and self._played.batches.num_batches:
            return int(self._played.batches.take(0)[0])
        return 0

    def facts(self, epoch: int) -> dict[str, object]:
        """The order where a sampler gives it: it must be the same on all workers."""
        sampler = self._source.sampler
        return {} if sampler is None else _describe_order(self.of(epoch), type(sampler).__name__)

    def describe_lengths(self) -> dict[str, object]:
        """The lengths that batches are filled by, if they are: all workers need the same."""
        return {} if self._lengths is None else {LENGTHS: self._lengths.digest()}

    def _cut(self, order: ExampleOrder, size: Size, epoch: int) -> GlobalBatches:
        drop_last = self._source.request.drop_last
        if not isinstance(size, BatchBudget):
            return UniformBatches(order=order, global_batch_size=size, drop_last=drop_last)
        if self._lengths is None:
            raise make_no_lengths_error(size)
        sampled = None if self._source.sampler is None else order
        planned = self._planned
        if planned is None or not planned.holds(epoch, sampled, size):
            lengths = self._lengths.read()
            batches = BudgetBatches.of(order, lengths, size, drop_last=drop_last)
            self._planned = planned = _Planned(epoch, sampled, size, batches)
        return planned.batches

    def _look_up(self, epoch: int) -> _Sampled:
        for known in (self._played, self._looked_up):
            if known is not None and known.epoch == epoch:
                return known
        self._looked_up = self._sample(epoch)
        return self._looked_up

    def _sample(self, epoch: int) -> _Sampled:
        request = self._source.request
        assert self._source.sampler is not None, "asked for by the caller"
        batches = sample_batches(
            self._source.sampler,
            1 if isinstance(request.size, BatchBudget) else request.size,  # cut later
            drop_last=request.drop_last,
            key=(self._seed, epoch),
        )
        return _Sampled(epoch, batches)


def _count_steps(batches: GlobalBatches, position: Position, splitter: Splitter) -> int:
    """The steps before a position and those after it, which may be cut in another way."""
    if not splitter.shared:
        return num_steps(batches, splitter)
    left = batches.skip(steps=position.steps, examples=position.examples)
    return position.steps + num_steps(left, splitter)


def _describe_order(batches: GlobalBatches, sampler: str) -> dict[str, object]:
    """Facts about the batches 0, 1, 2 to 3, 4 to 7, ...: the first that differs tells the place."""
    facts: dict[str, object] = {f"number of batches from {sampler}": batches.num_batches}
    start = 0
    while start < batches.num_batches:
        stop = min(2 * start or 1, batches.num_batches)
        digest = hashlib.blake2b(digest_size=8)
        for number in range(start, stop):
            digest.update(batches.take(number).tobytes())
            digest.update(b"|")
        first = ", ".join(map(str, batches.take(start)[:5].tolist()))
        facts[f"{ORDER}{sampler} in batches {start} to {stop - 1}"] = (
            f"{first}, ... (digest {digest.hexdigest()})"
        )
        start = stop
    return facts
