"""The run over one epoch: it owns threads, streams, the position and ``close()``."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from torch_distinput.data.steps.local_step import empty_step
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.distribute import context
from torch_distinput.distribute.replicas.per_replica import regroup_leaves
from torch_distinput.engine.zero_rows import Shapes, element_spec, no_spec
from torch_distinput.errors import UsageError, again, let_go
from torch_distinput.plan.progress.state import to_state
from torch_distinput.threads import call_in_child
from torch_distinput.values import Distributed, InputStats, OptionalStep, PerReplica, StepInfo

if TYPE_CHECKING:
    from typing_extensions import Self

    from torch_distinput.cluster.peer_monitor import Watch
    from torch_distinput.data.stream.bad_records import ReadCounter
    from torch_distinput.distribute.session import Session
    from torch_distinput.engine.audit import Audit
    from torch_distinput.engine.epoch_record import EpochRecord
    from torch_distinput.engine.feeds import Feed
    from torch_distinput.plan.progress.delivered import Progress
    from torch_distinput.plan.progress.position import Position
    from torch_distinput.plan.progress.state import Recipe


class DistributedIterator(Distributed, Iterator[Any]):
    """Yields one step after another (``tf.distribute.DistributedIterator``).

    A step has the structure of a batch. With one local replica its leaves are tensors of shape
    ``(rows, ...)``; with several they are :class:`PerReplica`. A replica without data gets a batch
    of zero rows with the right dtypes and trailing sizes. With ``partial_batch="pad"`` a step is a
    pair ``(batch, mask)`` and has the same rows throughout. End of data is StopIteration, on all
    ranks at the same step.

    Made by ``iter(dataset)``; a context manager that closes itself.
    """

    def __init__(
        self,
        feed: Feed,
        session: Session,
        *,
        record: EpochRecord,
        recipe: Callable[[Position], Recipe],
        watch: Watch,
        read_counter: ReadCounter,
        audit: Audit | None,
        spec: Any,
        padded_rows: int | None,
        fetch_to_device: bool,
        buffer_size: int,
    ) -> None:
        """Assemble the last stations of the street."""
        self._record = record
        self._recipe = recipe
        self._feed = feed
        self._session = session
        self._watch = watch
        self._read_counter = read_counter
        self._audit = audit
        self._shapes = Shapes(spec, padded_rows)
        self._delivered = session.deliveries.open()
        self._num_examples = self._num_empty = 0  # of this worker's replicas
        self._waited = 0.0
        self._last_step: StepInfo | None = None
        self._ending: BaseException | None = None
        devices = session.devices if fetch_to_device else _HOST * len(session.devices)
        host_steps = _host_steps(feed, self._shapes, len(devices), record.steps)
        self._prefetcher = Prefetcher(host_steps, devices, buffer_size=buffer_size)
        self._finalizer = weakref.finalize(self, _close, feed, self._prefetcher)
        self._finalizer.atexit = False  # the threads are told, and waited for, all at once
        call_in_child(self, DistributedIterator._leave_to_parent)

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
        context.check_may_iterate(self._session)
        if self._ending is not None:
            raise again(self._ending)
        started = time.perf_counter()
        try:
            self._watch.enter(self._record.steps)
            step = self._next()
        except BaseException as error:  # noqa: BLE001 - raised again below
            ending = self._end(error)
            try:
                raise ending from error.__cause__
            finally:
                del ending  # which keeps this frame
        info, structures, progress = step.note
        self._count(info, progress, time.perf_counter() - started)
        return regroup_leaves(structures, step.leaves)

    def _end(self, error: BaseException) -> BaseException:
        """Note how it ends. Asked again, it says the same: an error must not become an end.

        In other words: what is raised keeps the frame of the loop, and that keeps this iterator.
        Were it kept here, loader processes would wait for the garbage collector, and it for them.
        """
        if self._ending is None:
            self._record.ended = isinstance(error, StopIteration)
            self._record.failed = not self._record.ended
        ending = error if self._ending is None else again(self._ending)  # closed meanwhile
        self._ending = self._ending or again(error)
        self._delivered.is_open = False
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
            self._audit.finish(self._record.examples - self._record.before.examples)
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
        return element_spec(self.part_spec, self._shapes.padded_rows)

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
        return InputStats(
            steps=self._record.steps - self._record.before.steps,
            examples=self._num_examples,
            zero_row_batches=self._num_empty,
            wait_seconds=self._waited,
            retries=self._read_counter.retries,
            skipped=self._read_counter.skipped,
        )

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`DistributedDataset.state_dict` says: where the epoch stands."""
        position = self._record.position
        return to_state(position, self._recipe(position))

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
            self._delivered.is_open = False
        self._finalizer()

    def _leave_to_parent(self) -> None:
        """In a child: the threads, loader processes and streams behind this are the parent's."""
        self._finalizer.detach()
        self.close_because(
            "a fork: this process is a child of the one that iterates",
            "Iterate in the parent, and hand the child what it needs.",
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _count(self, info: StepInfo, progress: Progress | int | None, waited: float) -> None:
        self._last_step = info
        if self._audit is not None:
            self._audit.add(info.ids if isinstance(info.ids, PerReplica) else [info.ids])
        self._record.deliver(info.index, info.num_examples, progress)
        self._num_examples += sum(info.local_counts)
        self._num_empty += info.local_counts.count(0)
        self._waited += waited
        self._watch.leave(info.index)
        context.note_delivered(self._session, self._delivered, info)


_HOST = (torch.device("cpu"),)


def _host_steps(
    feed: Feed, shapes: Shapes, num_replicas: int, first_step: int
) -> Iterator[ReplicaLeaves]:
    """Complete each delivery: every replica gets a batch. Steps are numbered here, for all.

    With a step travels what is told of it when it is handed over, which may be later.
    """
    for index in itertools.count(first_step):
        delivery = feed.next(index)
        if delivery is None:
            return
        step = empty_step(num_replicas) if delivery.step is None else delivery.step
        parts = shapes.completed(step.parts, feed.spec)
        if shapes.padded_rows is not None:
            parts = list(map(shapes.filled, parts))
        leaves, structures, ids = zip(*parts, strict=True)
        info = StepInfo(
            index=index,
            num_examples=delivery.num_examples,
            local_counts=step.sizes,
            ids=ids[0] if num_replicas == 1 else PerReplica(ids),
            padded_rows=shapes.padded_rows,
        )
        note = (info, structures, delivery.progress)
        yield ReplicaLeaves(leaves=leaves, note=note, owned=step.owned)


def _close(feed: Feed, prefetcher: Prefetcher) -> None:
    """Runs once: at close, at the end of data, or when the iterator is collected."""
    prefetcher.stop()
    feed.close()  # frees a prefetch thread that waits for the other workers
    prefetcher.join()
