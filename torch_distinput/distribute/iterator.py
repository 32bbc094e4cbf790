"""The run over one epoch: it owns threads, streams, the position and ``close()``."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from torch_distinput.data.element_spec import merged, spec_of, zero_rows
from torch_distinput.data.local_step import Part, empty_step
from torch_distinput.data.structure import Structure, flatten, unflatten
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.distribute import current
from torch_distinput.distribute.regroup import regroup_batches
from torch_distinput.errors import SourceError, UsageError, again, let_go
from torch_distinput.plan.state import to_state
from torch_distinput.values import InputStats, OptionalStep, StepInfo

if TYPE_CHECKING:
    from typing_extensions import Self

    from torch_distinput.cluster.watch import Watch
    from torch_distinput.data.read_log import Tally
    from torch_distinput.distribute.audit import Audit
    from torch_distinput.distribute.feed import Delivery, Feed
    from torch_distinput.distribute.progress import Progress
    from torch_distinput.distribute.strategy import Strategy
    from torch_distinput.plan.position import Position
    from torch_distinput.plan.state import Recipe


class DistributedIterator(Iterator[Any]):
    """Yields one step after another (``tf.distribute.DistributedIterator``).

    A step has the structure of a batch. With one local replica its leaves are tensors of shape
    ``(rows, ...)``; with several they are :class:`PerReplica`. A replica without data gets a batch
    of zero rows with the right dtypes and trailing sizes. End of data is StopIteration, on all
    ranks at the same step.

    Made by ``iter(dataset)``; a context manager that closes itself.
    """

    def __init__(
        self,
        feed: Feed,
        strategy: Strategy,
        *,
        progress: Progress,
        recipe: Callable[[], Recipe],
        watch: Watch,
        tally: Tally,
        audit: Audit | None,
        spec: Any,
        fetch_to_device: bool,
        buffer_size: int,
    ) -> None:
        """Assemble the last stations of the street."""
        self._progress = progress
        self._recipe = recipe
        self._feed = feed
        self._strategy = strategy
        self._watch = watch
        self._tally = tally
        self._audit = audit
        self._shapes = _Shapes(spec)
        self._stats = InputStats(
            steps=0, examples=0, zero_row_batches=0, wait_seconds=0.0
        )
        self._last_step: StepInfo | None = None
        self._ending: BaseException | None = None
        devices = strategy.devices if fetch_to_device else _HOST * len(strategy.devices)
        host_steps = _host_steps(feed, self._shapes, len(devices))
        self._prefetcher = Prefetcher(host_steps, devices, buffer_size=buffer_size)
        self._finalizer = weakref.finalize(self, _close, feed, self._prefetcher)
        self._finalizer.atexit = False  # the threads are told, and waited for, all at once

    def __iter__(self) -> DistributedIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next step.

        Raises:
            StopIteration: after the last step, on all ranks.
            SourceError: this rank's source raised; PeerFailedError on the other ranks.
            UsageError: inside ``Strategy.run``, under another strategy's scope, or when closed.
        """
        current.check_may_iterate(self._strategy)
        if self._ending is not None:
            raise again(self._ending)
        started = time.perf_counter()
        try:
            self._watch.enter(self._progress.steps)
            replicas = self._next()
        except BaseException as error:  # noqa: BLE001 - raised again below
            ending = self._end(error)
            try:
                raise ending from error.__cause__
            finally:
                del ending  # which keeps this frame
        self._record(replicas.note, time.perf_counter() - started)
        pairs = zip(replicas.note.structures, replicas.leaves, strict=True)
        return regroup_batches(tuple(unflatten(structure, leaves) for structure, leaves in pairs))

    def _end(self, error: BaseException) -> BaseException:
        """Note how it ends. Asked again, it says the same: an error must not become an end.

        In other words: what is raised keeps the frame of the loop, and that keeps this iterator.
        Were it kept here, loader processes would wait for the garbage collector, and it for them.
        """
        ending = error if self._ending is None else again(self._ending)  # closed meanwhile
        self._ending = self._ending or again(error)
        let_go(error)
        self._watch.end(error)
        self._finalizer()
        return ending

    def _next(self) -> ReplicaLeaves:
        """Take the next step; an end that the audit finds fault with is an error."""
        step = next(self._prefetcher, None)
        if step is not None:
            return step
        if self._audit is not None and self._ending is None:
            self._audit.finish(self._progress.examples - self._progress.before.examples)
        raise StopIteration

    def get_next(self) -> Any:
        """Return the next step, as ``next`` does; StopIteration after the last one."""
        return next(self)

    def get_next_as_optional(self) -> OptionalStep[Any]:
        """Return the next step, or an empty :class:`OptionalStep` after the last one."""
        try:
            return OptionalStep(has_value=True, value=next(self))
        except StopIteration:
            return OptionalStep(has_value=False)

    @property
    def element_spec(self) -> Any:
        """The structure of a replica batch with a :class:`TensorSpec` for each leaf.

        Collective until the first step where lengths are not known: ask on all ranks.
        """
        return self.part_spec[0]

    @property
    def is_open(self) -> bool:
        """Whether there may be more steps."""
        return self._ending is None

    @property
    def part_spec_so_far(self) -> Any:
        """What the steps until now have shown; None before the first."""
        return self._shapes.spec

    @property
    def part_spec(self) -> Any:
        """The spec of a batch together with its ids."""
        if self._shapes.spec is None:
            self._shapes.spec = self._feed.spec()
        if self._shapes.spec is None:
            raise no_spec()
        return self._shapes.spec

    @property
    def last_step(self) -> StepInfo:
        """Facts about the step delivered last. Raises UsageError before the first one."""
        if self._last_step is None:
            msg = "last_step needs a step, but none has been delivered yet. Call next() first."
            raise UsageError(msg)
        return self._last_step

    def stats(self) -> InputStats:
        """Counters since this iterator was made."""
        tally = self._tally
        return replace(self._stats, retries=tally.retries, skipped=tally.skipped)

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`DistributedDataset.state_dict` says: where the epoch stands."""
        return to_state(self._progress.position, self._recipe())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse: an epoch under way reads ahead. Load into the dataset, before ``iter()``."""
        del state
        msg = (
            "A state is loaded into the dataset, and its next iter() goes on from there: "
            "dataset.load_state_dict(state). This iterator has begun already."
        )
        raise UsageError(msg)

    def close(self) -> None:
        """Stop reading ahead and let threads and loader processes go; further calls raise."""
        self.close_because("close()", "Call iter() again for the next epoch.")

    def close_because(self, what: str, cure: str) -> None:
        """Close; further calls say what closed it."""
        if self._ending is None:
            msg = f"Expected an open iterator, got one that was closed by {what}. {cure}"
            self._ending = UsageError(msg)
        self._finalizer()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _record(self, note: _Note, waited: float) -> None:
        info = StepInfo(
            index=self._progress.steps,
            num_examples=note.num_examples,
            local_counts=note.sizes,
            ids=regroup_batches(note.ids),
        )
        self._last_step = info
        if self._audit is not None:
            self._audit.add(note.ids)
        self._progress.deliver(note.num_examples, note.where)
        stats = self._stats
        self._stats = InputStats(
            steps=stats.steps + 1,
            examples=stats.examples + sum(note.sizes),
            zero_row_batches=stats.zero_row_batches + note.sizes.count(0),
            wait_seconds=stats.wait_seconds + waited,
        )
        self._watch.leave(info.index)
        current.delivered(self._strategy, info)


_HOST = (torch.device("cpu"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """What travels with a step through the prefetcher."""

    num_examples: int
    sizes: tuple[int, ...]
    ids: tuple[Any, ...]
    structures: tuple[Structure, ...]
    where: Callable[[], Position]


class _Shapes:
    """What batches and ids of this worker look like, for those without rows."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self._last: Any = None

    def observe(self, part: Part) -> None:
        """Note a real batch: the next zero-row batch gets its trailing sizes."""
        seen = spec_of(part)
        if seen == self._last:
            return
        self._last = seen
        self.spec = seen if self.spec is None else merged(self.spec, seen)

    def zero_rows(self, feed: Feed) -> Part:
        """Make a zero-row batch like the last real one on this worker, or like the spec."""
        if self._last is None and self.spec is None:
            self.spec = feed.spec()
        spec = self._last if self._last is not None else self.spec
        if spec is None:
            raise no_spec()
        return zero_rows(spec)  # type: ignore[no-any-return]


def _host_steps(feed: Feed, shapes: _Shapes, num_replicas: int) -> Iterator[ReplicaLeaves]:
    """Complete each delivery: every replica gets a batch."""
    while (delivery := feed.next()) is not None:
        yield _completed(delivery, feed, shapes, num_replicas)


def _completed(
    delivery: Delivery, feed: Feed, shapes: _Shapes, num_replicas: int
) -> ReplicaLeaves:
    step = delivery.step or empty_step(num_replicas)
    for part in step.parts:
        if part is not None:
            shapes.observe(part)
    full = [shapes.zero_rows(feed) if p is None else p for p in step.parts]
    ids = tuple(part[1] for part in full)
    flat = [flatten(batch) for batch, _ in full]
    note = _Note(
        num_examples=delivery.num_examples,
        sizes=step.sizes,
        ids=ids,
        structures=tuple(structure for _, structure in flat),
        where=delivery.where,
    )
    return ReplicaLeaves(leaves=tuple(leaves for leaves, _ in flat), note=note)


def no_spec() -> SourceError:
    """The error for a source that has shown no example to anybody."""
    msg = (
        "Expected at least one step to know the structure of a batch, got none from any worker: "
        "the source is empty, or drop_last left all of it out."
    )
    return SourceError(msg)


def _close(feed: Feed, prefetcher: Prefetcher) -> None:
    """Runs once: at close, at the end of data, or when the iterator is collected."""
    prefetcher.stop()
    feed.close()  # frees a prefetch thread that waits for the other workers
    prefetcher.join()
