"""Examples by index: all counts are arithmetic, so steps are planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, final

import numpy as np

from torch_distinput.data.batch.spec import spec_of
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.sources.source import IndexedSource
from torch_distinput.data.sources.spot_check import Fingerprints, SpotCheck
from torch_distinput.data.steps import step_facts
from torch_distinput.data.steps.local_step import LocalStep, cut_step, take_apart
from torch_distinput.data.steps.planned_steps import (
    PlannedStep,
    StepFetch,
    fetch_steps,
    make_loader,
    pad_to,
    plan_steps,
)
from torch_distinput.data.user_sources.epochs import AtEpoch, tell_epoch
from torch_distinput.engine.epoch_batches import EpochBatches
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.engine.feeds import Delivery, FailedSteps, Feed, PlannedFeed
from torch_distinput.engine.input import Opening
from torch_distinput.engine.same_data import confirm, find_difference, refuse_other_data
from torch_distinput.errors import SourceError, UsageError
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Idle, Splitter, count_idle
from torch_distinput.plan.assignment.budget_batches import BudgetBatches
from torch_distinput.plan.assignment.order import GlobalBatches, count_by_size
from torch_distinput.plan.assignment.sharding import assign_items
from torch_distinput.plan.progress.checksum import IdSum, Reading, sum_ids, sum_range
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import (
    Position,
    begin_epoch,
    gather_layout,
    make_cluster_error,
    make_layout,
)
from torch_distinput.plan.progress.state import SAMPLED, SUBSET, Recipe
from torch_distinput.plan.progress.state_version_1 import Flat

if TYPE_CHECKING:
    from torch_distinput.data.steps.balanced import ExampleDealer

_log = logging.getLogger(__name__)
_MOST_COLUMNS, _MOST_FETCHED = 10, 3
"""Examples that are compared with those of the other workers."""


@final
class IndexedInput:
    """Examples by index: all counts are arithmetic."""

    def __init__(
        self, source: IndexedSource, splitter: Splitter, *, seed: int, dealer: ExampleDealer | None
    ) -> None:
        """Take an indexed source, and who deals its examples, if they are dealt by cost."""
        self._source = source
        self._splitter = splitter
        self._batches = EpochBatches(source, seed=seed)
        self._dealer = dealer
        self._loader = make_loader(source)
        self.clock = source.clock
        self.has_one_kind = source.request.has_one_kind
        self._is_checked = False
        self._said_dropped = False

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch: what is delivered is a number of examples."""
        return begin_epoch(epoch, make_layout(self._splitter), 0)

    def read_version_1(self, flat: Flat) -> Start:
        """There is none: what is delivered is a number of examples."""
        msg = f"{list(flat)} is a place in a stream, of examples by index"
        raise ValueError(msg)

    def recipe(self, position: Position) -> Recipe:
        """The number of examples, and the order that a sampler of the user's gives.

        At the beginning of an epoch any order will do: nothing of it has been delivered.
        """
        is_told = self._source.sampler is not None and position.steps
        sampled = self._batches.of(position.epoch) if is_told else None
        return self.name_order(self._batches.describe(position.epoch), sampled, position)

    def name_order(
        self, described: Recipe, sampled: GlobalBatches | None, position: Position
    ) -> Recipe:
        """The same; of a mixture also how many examples of each source are delivered there."""
        counts = {**described, **self._describe_sizes(position)}
        if sampled is not None:
            return {**counts, SAMPLED: sampled.digest}
        mixture = self._source.counted_mixture
        if mixture is None or not self._splitter.shared:
            return counts
        delivered = list(mixture.count(position.examples))
        return {**counts, "examples delivered of each source": delivered}

    def _describe_sizes(self, position: Position) -> Recipe:
        """What examples are measured by, if they are."""
        costs = {} if self._dealer is None else self._dealer.describe(position, self._splitter)
        return {**costs, **self._batches.describe_lengths()}

    def prepare(self, position: Position) -> PreparedIndices:
        """Sample the order where a sampler of the user gives it; find out what examples cost."""
        self._batches.describe_lengths()  # before a later epoch is told, as costs are
        if self._dealer is not None:
            self._dealer.costs.measure()
        tell_epoch(self._source.dataset, position.epoch)  # loader processes tell theirs
        self._source.check_length(position.epoch)
        self._check_mixture(position.epoch)
        self._batches.begin(position)
        part, order = self._source.describe_dataset(), self._batches.facts(position.epoch)
        described = self._batches.describe(position.epoch)
        facts = {**described, **self._describe_sizes(position), **part, **order}
        facts.pop(SUBSET, None)  # the part says more of a Subset; others may differ where loaded
        sampled = None if self._source.sampler is None else self._batches.of(position.epoch)
        return PreparedIndices(
            facts=facts,
            _owner=self,
            _position=position,
            _described=described,
            _sampled=sampled,
        )

    def _check_mixture(self, epoch: int) -> None:
        """Compare the sources of a mixture at the first ``iter()``, where they are read here."""
        source = self._source
        if source.mixture is None or self._is_checked or source.loader.num_workers:
            return
        from torch_distinput.data.sources.mixing.mixed_rows import MixedFetch  # noqa: PLC0415 - who mixes has it

        assert isinstance(source.fetch, MixedFetch), "made with the mixture"
        with AtEpoch(source.dataset, epoch):
            source.fetch.check()

    def open(self, before: Position, opening: Opening) -> Feed:
        """Plan what is left of the epoch and start fetching."""
        origin = self.follow(before)
        position = origin.position
        batches = self._batches.of(position.epoch)
        if batches.num_dropped and not self._said_dropped:
            self._said_dropped = True
            _log.info("drop_last leaves out %d examples at the end", batches.num_dropped)
        fetched = self._fetch(opening, position, batches)
        num_tokens = None
        if isinstance(batches, BudgetBatches):
            num_tokens = self._count_tokens(batches, position)
        fetched = step_facts.with_facts(
            fetched, self._source, batches, self._splitter, position, num_tokens=num_tokens
        )
        return PlannedFeed(
            starmap(Delivery, fetched),
            opening.monitor,
            origin=origin,
            worker=self._splitter.topology.worker_index,
            spec=partial(self.spec, position.epoch),
        )

    def follow(self, before: Position) -> Origin:
        """Where the epoch starts, cut for this cluster."""
        layout = make_layout(self._splitter)
        if not self._splitter.shared and before.layout != layout:
            raise make_cluster_error(before, layout, "AutoShardPolicy.OFF")
        return Origin(position=replace(before, layout=layout))

    def _fetch(
        self, opening: Opening, position: Position, batches: GlobalBatches
    ) -> Iterator[tuple[LocalStep, int]]:
        """Start fetching, and compare some examples with those of the other workers."""
        check = self._make_check(opening, batches)
        try:
            found, fetched = fetch_steps(
                self._plan(batches, position),
                self._loader,
                epoch=position.epoch,
                owned=self._source.owns_batches,
                check=check,
                is_timed=self.clock is not None,
            )
        except SourceError as error:  # a loader process was lost: told to all at the first step
            found, fetched = [], FailedSteps(error)
        if check is not None:
            self._compare(opening, position, check, found)
        return fetched

    def _compare(
        self, opening: Opening, position: Position, check: SpotCheck, found: Fingerprints
    ) -> None:
        """Compare what the check has found; before two ranks are said to differ, look again."""
        difference = find_difference(opening.exchange(found))
        if difference is None:
            return
        index = check.indices[difference[0]]
        one = min(1, self._source.loader.num_workers)
        alone = replace(self._source.loader, num_workers=one, num_threads=0, persistent=False)
        loader = TaskLoader(StepFetch(self._source.fetch), alone)
        looks = loader.run(iter([check.again(index)]), position.epoch)
        (now,) = next(looks) or [[]]
        still = confirm(found[difference[0]], now) if found else []
        refuse_other_data(opening.exchange([still]), index, self._source.name)

    def _make_check(self, opening: Opening, batches: GlobalBatches) -> SpotCheck | None:
        """What to compare: the first examples of some batches, at the first ``iter()``.

        Where code of the user's fetches them, three: the start should not be felt. Of a mixture
        two of each source: the first examples of batches may all be of one.
        """
        is_due = opening.checks_data or not self._is_checked
        self._is_checked = True
        count = batches.num_batches
        if not (is_due and count and self._splitter.shared and len(opening.shares) > 1):
            return None
        if self._source.mixture is not None:
            there = self._source.loader.num_workers > 0
            return SpotCheck(self._source.mixture.choose_samples(), compares_sources=there)
        most = _MOST_COLUMNS if isinstance(self._source.fetch, ColumnFetch) else _MOST_FETCHED
        places = np.linspace(0, count - 1, min(count, most)).astype(int).tolist()
        return SpotCheck(tuple(int(batches.take(n)[0]) for n in places))

    def _plan(self, batches: GlobalBatches, position: Position) -> Iterator[PlannedStep]:
        """The steps from a position on: an example of the order, or a step of each worker's own."""
        plan = plan_steps if self._dealer is None else self._dealer.plan_steps
        lengths = self._source.padded_lengths
        if self._splitter.shared:
            left = _skip_delivered(batches, position)
            return plan(left, self._splitter, padded_lengths=lengths)
        steps = plan(batches, self._splitter, padded_lengths=lengths)
        return islice(steps, position.steps, None)

    def _count_tokens(self, batches: BudgetBatches, position: Position) -> Iterator[int]:
        """The tokens in sync of each step from a position on."""
        if self._splitter.shared:
            left = batches.skip(steps=position.steps, examples=position.examples)
            return left.count_tokens(self._splitter)
        return islice(batches.count_tokens(self._splitter), position.steps, None)

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Fetch the step as one worker with all the replicas."""
        if not self._splitter.shared:
            msg = "replay needs one order for all workers, got AutoShardPolicy.OFF. Use DATA."
            raise UsageError(msg)
        with AtEpoch(self._source.dataset, position.epoch):
            return self._replay(position, step)

    def _replay(self, position: Position, step: int) -> list[LocalStep] | None:
        splitter = gather_layout(self._splitter, position.layout)
        whole = self._batches.of(position.epoch, position.layout.global_batch_size)
        batches, number = _skip_delivered(whole, position), step - position.steps
        if number >= batches.num_batches:
            return None
        indices = batches.take(number)
        sizes = splitter.cut(len(indices))[0].sizes
        if self._dealer is not None:
            self._dealer.costs.measure()
            dealt = self._dealer.deal(indices, splitter)
            indices, sizes = indices[dealt.rows], dealt.sizes
        fetch, lengths = self._source.fetch, self._source.padded_lengths
        if lengths is not None:
            fetch = pad_to(fetch, int(lengths[indices].max()))
        return [cut_step(take_apart(fetch(indices), indices), sizes)]

    def expected_ids(
        self,
        before: Position,
        after: Position,  # noqa: ARG002
        reading: Reading | None,  # noqa: ARG002
    ) -> IdSum | None:
        """Of a whole epoch, every W-th part of the indices; else every W-th planned batch."""
        if not self._splitter.shared:
            return None  # all of it comes many times
        topology, count = self._splitter.topology, self._source.num_examples
        worker, num_workers = topology.worker_index, topology.num_workers
        batches = _skip_delivered(self._batches.of(before.epoch), before)
        is_plain = self._source.sampler is None and self._source.mixture is None
        whole = is_plain and not before.examples and not batches.num_dropped
        if whole and count is not None:
            return sum_range(worker * count // num_workers, (worker + 1) * count // num_workers)
        mine = map(batches.take, assign_items(batches.num_batches, num_workers, worker))
        return sum(map(sum_ids, mine), IdSum())

    def num_steps(self, position: Position) -> int | None:
        """Steps of the epoch, before the position and after; None if a sampler is silent."""
        return self._batches.num_steps(position, self._splitter)

    def idle(self, epoch: int) -> Idle:
        """The zero-row batches of an epoch: all workers cut the same batches."""
        splitter = self._splitter
        if self._dealer is not None and splitter.shared:  # nobody is without rows
            splitter = replace(splitter, rebatch=Rebatch.EVEN)
        counts = count_by_size(self._batches.of(epoch).runs)
        idle_steps = (count_idle(splitter, (size,)) * n for size, n in counts.items())
        return sum(idle_steps, Idle())

    def num_parts(self) -> None:
        """It has an index, and no files."""

    def spec(self, epoch: int) -> Any:
        """Fetch one example; None if there is none."""
        if self._source.num_examples == 0:
            return None
        with AtEpoch(self._source.dataset, epoch):
            first = np.array([self._batches.first_index()], dtype=np.int64)
            return spec_of((self._source.fetch(first), first))


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedIndices:
    """An epoch of a source with an index, whose order is known."""

    facts: dict[str, object]
    _owner: IndexedInput
    _position: Position
    _described: Recipe  # as of this epoch: the source may change after it
    _sampled: GlobalBatches | None

    def recipe(self, position: Position) -> Recipe:
        """The order that was sampled: a sampler asked again might give another."""
        sampled = self._sampled if position.steps else None
        return self._owner.name_order(self._described, sampled, position)

    def share(self) -> None:
        """Nothing: each worker computes the order by itself."""

    def first_example(self, *, audited: bool) -> None:
        """Examples are compared by a spot check, where they are fetched."""

    def open(self, opening: Opening) -> Feed:
        """Plan what is left of the epoch and start fetching."""
        return self._owner.open(self._position, opening)

    def follow(self, shares: list[Any]) -> Origin:  # noqa: ARG002
        """Where the epoch starts."""
        return self._owner.follow(self._position)


def _skip_delivered(batches: GlobalBatches, position: Position) -> GlobalBatches:
    return batches.skip(steps=position.steps, examples=position.examples)
