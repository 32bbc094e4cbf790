"""The run over one epoch: it owns threads, streams, the position and ``close()``.

thread     writes               reads     guarded by
main       record, counters,    all       the only writer of these
           _last_step, _ending
prefetch   shapes               feed      only one thread pulls host steps: this one, or main where
                                          the devices are CPUs. It comes with the first step, after
                                          which shapes know the spec and main need not ask the feed
any        _ending              _ending   one assignment; the finalizer that ends threads runs once
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from torch_distinput import meter
from torch_distinput.data.steps.local_step import NO_FACTS, FactTotals
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.distribute import context
from torch_distinput.distribute.replicas.per_replica import regroup_leaves
from torch_distinput.distribute.steps.host_steps import make_host_steps
from torch_distinput.distribute.steps.step import Step
from torch_distinput.engine.zero_rows import element_spec, make_spec_error
from torch_distinput.errors import UsageError, again, let_go, refer
from torch_distinput.plan.progress.state import to_state
from torch_distinput.threads import call_in_child
from torch_distinput.values import Distributed, InputStats, PerReplica, StepInfo, StepIterator

if TYPE_CHECKING:
    from typing_extensions import Self

    from torch_distinput.distribute.iteration import EpochRun
    from torch_distinput.distribute.reports.run_report import RunReport
    from torch_distinput.distribute.session import Session
    from torch_distinput.options import InputOptions
    from torch_distinput.plan.progress.delivered import Progress

_log = logging.getLogger(__name__)


class DistributedIterator(Distributed, StepIterator):
    """Yields one step after another (``tf.distribute.DistributedIterator``).

    A step has the structure of a batch. With one local replica its leaves are tensors of shape
    ``(rows, ...)``; with several they are :class:`PerReplica`. A replica without data gets a batch
    of zero rows with the right dtypes and trailing sizes. With ``partial_batch="pad"`` a step is a
    pair ``(batch, mask)`` and has the same rows throughout. End of data is StopIteration, on all
    ranks at the same step.

    Made by ``iter(dataset)``; a context manager that closes itself.
    """

    _is_exiting = staticmethod(sys.is_finalizing)
    """Whether Python exits, where modules have no names any more, and nothing is left to close."""

    def __init__(self, session: Session, run: EpochRun, options: InputOptions) -> None:
        """Put the last stages together: zero rows, and prefetch."""
        self._session = session
        self._run = run
        self._compare = run.compare
        self._loss_steps = session.loss_steps.open(run.record.dataset)
        self._num_examples = self._num_empty = 0  # of this worker's replicas
        self._num_tokens: int | None = None
        self._waited = 0.0
        self._num_loops = 0  # which have begun over it, and then those when all was delivered
        self._num_late_loops = 0
        self._totals = FactTotals()
        self._last_step: StepInfo | None = None
        self._ending: BaseException | None = None
        devices = session.devices if options.fetch_to_device else _HOST * len(session.devices)
        host_steps = make_host_steps(
            run.feed,
            run.shapes,
            len(devices),
            first_step=run.record.steps,
            cp_dim=run.cp_dim,
            clock=None if run.log is None else run.log.clock,
            is_reader=session.is_reader,
        )
        size = options.per_replica_buffer_size
        self._prefetcher = Prefetcher(host_steps, devices, buffer_size=size)
        session.ended_loops.begin(run.record)
        self._finalizer = weakref.finalize(self, _close, session, run, self._prefetcher)
        self._finalizer.atexit = False  # the threads are told, and waited for, all at once
        call_in_child(self, DistributedIterator._leave_to_parent)

    def __repr__(self) -> str:
        """Show where the epoch stands."""
        record, state = self._run.record, "open" if self._ending is None else "ended"
        return f"DistributedIterator(epoch={record.before.epoch}, steps={record.steps}, {state})"

    def __iter__(self) -> DistributedIterator:
        """Return itself; says so if it is looped over in further epochs, where nothing is left.

        Who takes steps in groups, by ``islice``, asks often, and once after the end. A group of a
        whole epoch looks like a loop.
        """
        record = self._run.record
        self._num_loops += not record.ended
        self._num_late_loops += record.ended
        if record.ended and self._num_late_loops == min(2, max(1, self._num_loops)):
            _log.warning(
                "Expected an iterator with steps to come, got that of epoch %d, of which all were "
                "delivered: a loop over it has none. For another epoch call iter(dataset), or "
                "dataset.steps(), again.",
                record.before.epoch,
            )
        return self

    def __next__(self) -> Any:
        """Return the next step.

        Raises:
            StopIteration: after the last step, on all ranks.
            SourceError: this rank's source raised; PeerFailedError on the other ranks.
            UsageError: inside ``Strategy.run``, under another strategy's scope, or when closed.
        """
        return self._take(as_step=False)

    def _next_step(self) -> Step:
        """Return the next step as a value of its own."""
        step: Step = self._take(as_step=True)
        return step

    def _take(self, *, as_step: bool) -> Any:
        context.check_may_iterate(self._session)
        if self._ending is not None:
            raise again(self._ending)
        asked = meter.now()
        try:
            self._run.monitor.enter(self._run.record.steps)
            return self._hand_over(self._next(), asked, as_step=as_step)
        except BaseException as error:  # noqa: BLE001 - raised again below
            ending = self._end(error)
            try:
                raise ending from error.__cause__
            finally:
                del ending  # ending -> traceback -> this frame -> ending

    def _hand_over(self, step: ReplicaLeaves, asked: float, *, as_step: bool) -> Any:
        """Make what is handed over, then count it: what cannot be made was not delivered."""
        info, structures, progress, facts, pull = step.note
        if facts is not NO_FACTS:
            self._totals.add(facts)
        had = meter.now()
        self._waited += had - asked
        if self._run.log is not None:
            self._session.step_log = self._run.log
            self._run.log.add((info.index, info.num_examples, asked, had, pull))
        handed: Any = regroup_leaves(structures, step.leaves)
        if as_step:
            handed = self._make_step(handed, info, progress)
        self._count(info, progress)
        return handed

    def _end(self, error: BaseException) -> BaseException:
        """Note how it ends. Asked again, it says the same: an error must not become an end.

        What is kept is a copy without a traceback. With one there would be a circle,

            iterator -> _ending -> traceback -> frame of the loop -> iterator

        and the loader processes behind it would live until the garbage collector comes.
        """
        if self._ending is None:
            self._run.record.ended = isinstance(error, StopIteration)
            self._run.record.failed = not self._run.record.ended
        ending = error if self._ending is None else again(self._ending)  # closed meanwhile
        self._ending = self._ending or again(error)
        self._loss_steps.is_open = False
        let_go(error)
        self._run.monitor.end(error)
        self._flush()
        self._finalizer()
        return ending

    def _next(self) -> ReplicaLeaves:
        """Take the next step; an end that the audit finds fault with is an error."""
        step = next(self._prefetcher, None)
        if self._compare is not None and self._run.shapes.kinds is not None:
            self._compare(self._run.shapes.kinds, self._run.shapes.texts)
            self._compare = None
        if step is not None:
            return step
        if self._ending is None:
            self._run.end()
        raise StopIteration

    @property
    def element_spec(self) -> Any:
        """The structure of a replica batch with a :class:`TensorSpec` for each leaf.

        Collective until the first step where lengths are not known: ask on all ranks.
        """
        return element_spec(self._part_spec, self._run.shapes.padding)

    @property
    def _can_tell_spec(self) -> bool:
        """Whether there may be more steps, or the steps until now have shown it."""
        return self._ending is None or self._run.shapes.spec is not None

    @property
    def _part_spec(self) -> Any:
        """The spec of a batch together with its ids."""
        if self._run.shapes.spec is None:
            self._run.shapes.spec = self._run.feed.spec()
        if self._run.shapes.spec is None:
            raise make_spec_error()
        return self._run.shapes.spec

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
            steps=self._run.record.steps - self._run.record.before.steps,
            examples=self._num_examples,
            zero_row_batches=self._num_empty,
            wait_seconds=self._waited,
            retries=self._run.read_counter.retries,
            skipped=self._run.read_counter.skipped,
            sources=dict(self._totals.sources.examples),
            repeats=dict(self._totals.sources.repeats),
            num_tokens=self._num_tokens,
            balance=self._totals.costs.balance,
            packing=self._totals.packed.packing,
        )

    def report(self) -> RunReport:
        """Where the time of this rank's steps went, of the last 1,024 since this iterator was made.

        :meth:`Strategy.report` has all ranks, and so can tell who waits for whom.

        Raises:
            UsageError: without ``InputOptions(trace=...)``: then nothing is measured.
        """
        from torch_distinput.distribute.reports.run_report import report_log  # noqa: PLC0415 - late

        return report_log(self._session, self._run.log)

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`DistributedDataset.state_dict` says: where the epoch stands."""
        position = self._run.record.position
        return to_state(position, self._run.recipe(position))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse: an epoch under way reads ahead. Load into the dataset, before ``iter()``."""
        del state
        msg = (
            "A state is loaded into the dataset, and its next iter() continues from there: "
            "dataset.load_state_dict(state). This iterator has already begun."
        )
        raise UsageError(msg)

    def close(self) -> None:
        """Stop reading ahead and let threads and loader processes go; further calls raise."""
        if not self._is_exiting():
            self._close_because("close()", "Call iter() again for the next epoch.")

    def _close_because(self, what: str, cure: str, explained_in: str | None = None) -> None:
        """Close; further calls say what closed it."""
        if self._ending is None:
            msg = f"Expected an open iterator, got one that was closed by {what}. {cure}"
            self._ending = UsageError(msg)
            if explained_in is not None:
                refer(self._ending, explained_in)
            self._loss_steps.is_open = False
            self._flush()
        self._finalizer()

    def _flush(self) -> None:
        if self._run.log is not None:
            self._run.log.flush()

    def _leave_to_parent(self) -> None:
        """In a child: the threads, loader processes and streams behind this are the parent's."""
        self._finalizer.detach()
        self._close_because(
            "a fork: this process is a child of the one that iterates",
            "Iterate in the parent, and hand the child what it needs.",
            "docs/errors.md#forks",
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _make_step(self, batch: Any, info: StepInfo, progress: Progress | int | None) -> Step:
        """The step that is about to be delivered."""
        return Step(
            batch=batch,
            info=info,
            _end=self._run.record.find_end(info.index, info.num_examples, progress),
            _recipe=self._run.recipe,
            _session=weakref.ref(self._session),  # a step that is kept keeps no process group
        )

    def _count(self, info: StepInfo, progress: Progress | int | None) -> None:
        self._last_step = info
        if self._run.audit is not None:
            self._run.audit.add(info.ids if isinstance(info.ids, PerReplica) else [info.ids])
        self._num_examples += sum(info.local_counts)
        self._num_empty += info.local_counts.count(0)
        if info.num_tokens is not None:
            self._num_tokens = info.num_tokens + (self._num_tokens or 0)
        self._run.monitor.leave(info.index)
        context.note_delivered(self._session, self._loss_steps, info)
        # Last: a step that an interrupt keeps from the loop is still to come in a state. Python
        # looks for signals where it calls something, so nothing is called from here to the loop.
        self._run.record.deliver(info.index, info.num_examples, progress)


_HOST = (torch.device("cpu"),)


def _close(session: Session, run: EpochRun, prefetcher: Prefetcher) -> None:
    """Runs once: at close, at the end of data, or when the iterator is collected."""
    session.ended_loops.add(run.record)
    run.monitor.close()
    prefetcher.stop()
    run.feed.close()  # frees a prefetch thread that waits for the other workers
    prefetcher.join()
