"""The value that ``data`` hands over: one step of this worker, in host memory."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from torch_distinput.data.batch.leaf_kind import windows
from torch_distinput.data.batch.leaf_kinds import bytes_of, kind_of
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.data.stream.chunk import Ids
from torch_distinput.meter import Work
from torch_distinput.plan.assignment.balancing import StepCosts
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.tally import NO_TALLY, Tally
from torch_distinput.values import BalanceStats, PackingStats


class ReplicaBatch(NamedTuple):
    """A replica batch, taken apart once: it is put together when it is handed to the user.

    Attributes:
        leaves: with a row for each example.
        structure: puts them together.
        ids: the names of the rows, ``(rows,)`` or ``(rows, k)``.
    """

    leaves: Sequence[Any]
    structure: Structure
    ids: Ids

    @property
    def batch(self) -> Batch:
        """The batch as a tree."""
        return self.structure.build(self.leaves)


def take_apart(batch: Batch, ids: Ids) -> ReplicaBatch:
    """Take a batch apart."""
    leaves, structure = flatten(batch)
    return ReplicaBatch(leaves, structure, ids)


def copy_part(part: ReplicaBatch) -> ReplicaBatch:
    """A batch that shares no memory with this one, but for its ids."""
    return part._replace(leaves=[kind_of(leaf).copy(leaf) for leaf in part.leaves])


class SourceCounts(NamedTuple):
    """What a global batch of a mixture is from.

    Attributes:
        examples: of each source, by name.
        repeats: how often each source has begun again in this epoch, as far as the batch tells.
    """

    examples: dict[str, int]
    repeats: dict[str, int]


class PackedCounts(NamedTuple):
    """What packed rows of this worker are filled with.

    Attributes:
        rows: how many there are.
        documents: documents in each of them, added up.
        tokens: of these, without padding.
        places: of tokens and padding.
    """

    rows: int
    documents: int
    tokens: int
    places: int

    @staticmethod
    def of(contents: Indices) -> PackedCounts:
        """Add up rows; ``contents``: ``(rows, 3)``, documents, tokens and places of each."""
        return PackedCounts(len(contents), *contents.sum(0).tolist())


@final
class PackedTotals:
    """Adds up what packed rows are filled with."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._total = PackedCounts(0, 0, 0, 0)

    def add(self, counts: PackedCounts) -> None:
        """Add a step."""
        self._total = PackedCounts(*map(operator.add, self._total, counts))

    @property
    def packing(self) -> PackingStats | None:
        """The totals; None without a row."""
        rows, documents, tokens, places = self._total
        if not rows:
            return None
        waste = 1 - tokens / places
        return PackingStats(rows=rows, documents=documents, tokens=tokens, waste=waste)


@final
class SourceTotals:
    """Adds up what the steps of an iterator are from."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.examples: Counter[str] = Counter()
        self.repeats: dict[str, int] = {}

    def add(self, counts: SourceCounts) -> None:
        """Add a step; of a source without examples in it the count so far stays."""
        self.examples.update(counts.examples)
        for name, times in counts.repeats.items():
            self.repeats[name] = max(times, self.repeats.get(name, 0))


@final
class CostTotals:
    """Adds up what steps cost the replicas among which their rows were dealt."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._before = self._after = self._total = 0

    def add(self, costs: StepCosts) -> None:
        """Add a step; the slowest replica counts as often as there are replicas."""
        self._before += costs.before * costs.num_replicas
        self._after += costs.after * costs.num_replicas
        self._total += costs.total

    @property
    def balance(self) -> BalanceStats | None:
        """The slowest over the mean; None as long as nothing has cost anything."""
        if not self._total:
            return None
        return BalanceStats(
            before=self._before / self._total, after=self._after / self._total
        )


@final
class StepFacts(NamedTuple):
    """Where a step was read; enough to read it again.

    Attributes:
        resume_point: a place at or before the step from which the stream can be read again.
        num_touched: how many of the files assigned to this worker the rows up to here are from.
        source_counts: of the whole step of a mixture; None where this worker does not know it.
        num_tokens: of the whole step, where batches are filled by a token budget; None where this
            worker does not know it.
        tally: numbers of this worker's rows, to be joined with those of others: see
            :class:`StepTally`.
        costs: of the step, where its rows were dealt by them.
        packed: of the rows of this worker, where they are packed.
        work: what making the step took, where that is measured.
    """

    resume_point: ResumePoint | None = None
    num_touched: int = 0
    source_counts: SourceCounts | None = None
    num_tokens: int | None = None
    tally: Tally = NO_TALLY
    costs: StepCosts | None = None
    packed: PackedCounts | None = None
    work: Work | None = None


NO_FACTS = StepFacts()


def with_work(facts: StepFacts, work: Work) -> StepFacts:
    """As ``facts._replace``, which costs more than what is measured here."""
    return StepFacts(*facts[:-1], work)


@final
class FactTotals:
    """Adds up what the steps of an iterator tell."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.sources, self.costs, self.packed = SourceTotals(), CostTotals(), PackedTotals()

    def add(self, facts: StepFacts) -> None:
        """Add a step."""
        if facts.source_counts is not None:
            self.sources.add(facts.source_counts)
        if facts.costs is not None:
            self.costs.add(facts.costs)
        if facts.packed is not None:
            self.packed.add(facts.packed)


class LocalStep(NamedTuple):
    """The replica batches of this worker's replicas in one step.

    Attributes:
        parts: for each local replica its rows; None where it has none.
        sizes: rows of each local replica.
        mark: fingerprint of the whole global batch where all workers must have read it alike;
            0 where they need not, or it was not taken.
        facts: where it was read.
        owned: the memory of the parts is written to by nobody while anybody refers to it. Else the
            source may do so as soon as it is asked for the next step.
        is_alike: its leaves have the same dtypes and trailing sizes as those of all other steps.
    """

    parts: tuple[ReplicaBatch | None, ...]
    sizes: tuple[int, ...]
    mark: int = 0
    facts: StepFacts = NO_FACTS
    owned: bool = False
    is_alike: bool = False

    @property
    def resume_point(self) -> ResumePoint | None:
        """That of its facts."""
        return self.facts.resume_point

    @property
    def num_touched(self) -> int:
        """That of its facts."""
        return self.facts.num_touched

    @property
    def tally(self) -> Tally:
        """Numbers of this worker in the step, where they are joined."""
        return self.facts.tally

    @property
    def num_rows(self) -> int:
        """Examples of this worker in the step."""
        return sum(self.sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the batches in host memory, and of their ids."""
        return sum(
            sum(map(bytes_of, part.leaves)) + part.ids.nbytes
            for part in self.parts
            if part is not None
        )


def cut_step(
    part: ReplicaBatch,
    sizes: tuple[int, ...],
    *,
    mark: int = 0,
    facts: StepFacts = NO_FACTS,
    owned: bool = False,
    is_alike: bool = False,
) -> LocalStep:
    """Cut rows, which belong to the local replicas in order, into views for each."""
    parts: tuple[ReplicaBatch | None, ...] = (part if sizes[0] else None,)
    if len(sizes) > 1:
        parts = tuple(_cut(part, sizes))
    return LocalStep(parts, sizes, mark, facts, owned, is_alike)


def _cut(part: ReplicaBatch, sizes: tuple[int, ...]) -> list[ReplicaBatch | None]:
    columns = [kind_of(leaf).split(leaf, sizes) for leaf in part.leaves]
    ids = [part.ids[window] for window in windows(sizes)]
    pieces = zip(zip(*columns, strict=True), ids, sizes, strict=True)
    return [
        ReplicaBatch(leaves, part.structure, own) if size else None for leaves, own, size in pieces
    ]


def empty_step(num_replicas: int, *, mark: int = 0, facts: StepFacts = NO_FACTS) -> LocalStep:
    """Return a step in which this worker's replicas have no rows."""
    return LocalStep((None,) * num_replicas, (0,) * num_replicas, mark, facts)
