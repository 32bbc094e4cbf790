"""The order of a mixture of sources with an index: which example comes at each place.

The indices of a mixture are those of its sources, one behind the other:

    sources     web: 5 examples    code: 3 examples
    indices     0 1 2 3 4          5 6 7
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import final

import numpy as np

from torch_distinput.plan.assignment.mixing import REPEAT, Numbers, SourceOrder, mix_known
from torch_distinput.plan.assignment.order import ExampleOrder
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.assignment.shares import ByNumber, Shares


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A source of a mixture.

    Attributes:
        name: it is shuffled by its name, too, so that other sources change nothing of it.
        num_examples: how many of its examples an epoch has.
        num_indices: how many indices it has; perhaps more, or fewer, if it is a mixture itself.
        make_order: its order by a seed and an epoch.
    """

    name: str
    num_examples: int
    num_indices: int
    make_order: Callable[[int, int], ExampleOrder]


@final
@dataclass(frozen=True, slots=True)
class MixedIndices:
    """Sources with an index, and how they are mixed.

    Attributes:
        members: the sources.
        stop: when an epoch ends.
        order: the source of each place.
        num_examples: places of an epoch.
    """

    members: tuple[Member, ...]
    stop: str
    order: SourceOrder
    num_examples: int

    @staticmethod
    def of(members: tuple[Member, ...], shares: Shares, stop: str) -> MixedIndices:
        """Mix sources, none of which is empty."""
        lengths = [member.num_examples for member in members]
        return MixedIndices(members, stop, *mix_known(shares, lengths, stop))

    @property
    def num_indices(self) -> int:
        """Those of all sources."""
        return sum(member.num_indices for member in self.members)

    @property
    def first_indices(self) -> ByNumber:
        """The index with which each source begins."""
        return tuple(accumulate((m.num_indices for m in self.members), initial=0))[:-1]

    def choose_samples(self) -> ByNumber:
        """Two indices of each source: of its first example, and of one in its middle."""
        pairs = zip(self.first_indices, self.members, strict=True)
        return tuple(
            index
            for first, member in pairs
            for index in sorted({first, first + member.num_indices // 2})
        )

    def make_order(self, seed: int, epoch: int) -> MixedOrder:
        """The order of an epoch."""
        return MixedOrder(self, seed, epoch)

    def count(self, place: int) -> ByNumber:
        """How many examples of each source come before a place."""
        return self.order.count(place)

    def count_steps(self, place: int, cuts: Sequence[Numbers]) -> Iterator[tuple[ByNumber, int]]:
        """What the steps of a batch are from that each worker plays for itself.

        Args:
            place: where the batch begins in the order.
            cuts: for each worker the rows of each replica in each step, ``(steps, replicas)``.

        Returns:
            For each step the examples of each source over all workers, and the place behind the
            last of them.
        """
        ends = np.cumsum([cut.sum(axis=1) for cut in cuts], axis=1)  # (workers, steps)
        sources, _ = self.order.take_range(place, place + int(ends.max()))
        had = np.zeros((len(sources) + 1, len(self.members)), dtype=np.int64)
        had[np.arange(1, len(had)), sources] = 1
        until = np.cumsum(had, axis=0)[ends].sum(axis=0)  # (steps, sources)
        counts = np.diff(until, axis=0, prepend=np.zeros_like(until[:1]))
        for own, end in zip(counts.tolist(), ends.max(axis=0).tolist(), strict=True):
            yield tuple(own), place + end

    def count_passes(self, counts: ByNumber) -> ByNumber:
        """How often each source has begun again when it has given so many examples."""
        pairs = zip(counts, self.members, strict=True)
        return tuple(max(0, count - 1) // member.num_examples for count, member in pairs)


@final
@dataclass(frozen=True, slots=True)
class MixedOrder:
    """The indices of a mixture in the order of one epoch."""

    mixture: MixedIndices
    seed: int
    epoch: int

    @property
    def num_examples(self) -> int:
        """Length of the order."""
        return self.mixture.num_examples

    def take_range(self, start: int, stop: int) -> Indices:
        """Return the indices of the positions ``start`` (inclusive) to ``stop`` (exclusive)."""
        return self._look_up(*self.mixture.order.take_range(start, min(stop, self.num_examples)))

    def take(self, positions: Indices) -> Indices:
        """Return the indices at positions, in an array of their own."""
        flat = self._look_up(*self.mixture.order.take(positions.ravel()))
        return flat.reshape(positions.shape)

    def _look_up(self, sources: Indices, numbers: Indices) -> Indices:
        """The indices of examples that are told by source and number."""
        out = np.empty_like(numbers)
        firsts = self.mixture.first_indices
        for source, (member, first) in enumerate(zip(self.mixture.members, firsts, strict=True)):
            own = np.flatnonzero(sources == source)
            if not own.size:
                continue
            if self.mixture.stop != REPEAT:
                out[own] = self._take_of_pass(member, 0, numbers[own]) + first
                continue
            passes, rows = np.divmod(numbers[own], member.num_examples)
            for number in np.unique(passes).tolist():
                these = passes == number
                out[own[these]] = self._take_of_pass(member, number, rows[these]) + first
        return out

    def _take_of_pass(self, member: Member, number: int, rows: Indices) -> Indices:
        """The indices of a source within itself."""
        seed = derive_seed(self.seed, member.name, number)
        return member.make_order(seed, self.epoch).take(rows)


def derive_seed(seed: int, name: str, number: int) -> int:
    """The seed of a source, and of each time that it is played."""
    text = f"{seed}/{number}/{name}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
