"""The recipe of a distributed dataset; ``iter()`` makes the run."""

# ruff: noqa: SLF001 - a dataset and its iterator know each other better than users know them

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch_distinput.cluster.agreement.agreement_channel import AgreementChannel
from torch_distinput.cluster.handshake import EXAMPLE, NOT_KNOWN
from torch_distinput.cluster.membership import check_alone
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.distribute import context
from torch_distinput.distribute.epoch_warnings import EpochWarnings, FirstOrder
from torch_distinput.distribute.iteration import EpochRun, Iteration
from torch_distinput.distribute.iterator import DistributedIterator
from torch_distinput.distribute.next_start import NextStart
from torch_distinput.distribute.static_shapes import LeafCheck
from torch_distinput.distribute.steps.distributed_steps import DistributedSteps
from torch_distinput.distribute.steps.replay import replay_step
from torch_distinput.engine.epoch_record import EpochRecord
from torch_distinput.engine.feeds import SourceTurn
from torch_distinput.engine.input import Input, Opening, PreparedEpoch
from torch_distinput.engine.zero_rows import Shapes, element_spec
from torch_distinput.options import InputOptions, check_count
from torch_distinput.plan.progress.state import check_recipe, from_state, to_current, to_state
from torch_distinput.values import Distributed

if TYPE_CHECKING:
    from torch_distinput.data.steps.padding import Padding
    from torch_distinput.distribute.session import Session
    from torch_distinput.plan.progress.position import Position
    from torch_distinput.plan.progress.state import Recipe
    from torch_distinput.values import ReplayedStep


class DistributedDataset(Distributed):
    """A source together with a strategy (``tf.distribute.DistributedDataset``).

    Made by ``Strategy.distribute_dataset`` and ``distribute_datasets_from_function``. Each
    ``iter()`` plays a new epoch from its beginning: 0, 1, 2, ..., or what :meth:`set_epoch` says;
    also after the loop was left early. Only the first one after :meth:`load_state_dict` goes on
    inside the epoch that was saved. A new ``iter()`` closes the iterator before it; whoever
    needs two at once distributes twice. ``iter()`` is collective: all ranks call it, in one order.

    Not a DataLoader and not a subclass of one: trainers that wrap DataLoaders would cut it again.
    """

    def __init__(
        self,
        session: Session,
        source: Input,
        *,
        name: str,
        recipe: dict[str, object],
        facts: dict[str, object],
        options: InputOptions,
        padding: Padding | None = None,
        order: FirstOrder | None = None,
    ) -> None:
        """Called by the strategy."""
        self._session = session
        self._strategy = session.strategy  # lives as long as its datasets
        self._input = source
        self._name = name
        self._static_recipe = recipe
        self._facts = {**recipe, **facts}
        self._number = next(session.datasets)
        self._title = f"dataset {self._number} ({name})"  # there may be a second of its class
        self._options = options
        self._padding = padding
        self._agreement_channel = AgreementChannel(session.communicator, session.heartbeat)
        self._broadcast = session.make_broadcast()
        self._slices = session.make_slices(options)
        self._turn = SourceTurn()
        self._measurement = session.measure(self._number, options, source.clock)
        self._next = NextStart(source.first)
        self._spec: Any = None
        self._running: weakref.ref[DistributedIterator] | None = None
        self._warnings = EpochWarnings(
            self._title,
            source,
            speaks=session.is_first,
            num_workers=session.topology.num_workers,
            allows_zero_rows=padding is None,
            order=order,
        )
        is_checked = session.has_static_shapes and options.fetch_to_device
        self._checks = [LeafCheck(self._title)] if is_checked else []

    def __repr__(self) -> str:
        """Show the source and how it is cut."""
        shown = ", ".join(f"{k}={v!r}" for k, v in self._facts.items() if k.isidentifier())
        return f"DistributedDataset({self._name}, {shown})"

    def _repr_html_(self) -> str:
        """Draw who gets which rows of a full step, for notebooks."""
        from torch_distinput.distribute.notebook.dataset_html import show_dataset  # noqa: PLC0415

        topology, start = self._session.topology, self._next
        return show_dataset(self._name, self._facts, topology, lambda: start.position)

    def __iter__(self) -> DistributedIterator:
        """Start the next epoch on all ranks.

        Raises:
            MismatchError: the ranks do not iterate the same dataset in the same way.
            TooFewFilesError: FILE has fewer files than workers; on all ranks.
            PeerFailedError: another rank could not open its data.
            PeerTimeoutError: another rank did not come within ``InputOptions.timeout``.
            ConfigurationError: the state that was loaded is of other data, or cannot be continued
                by this cluster; or the file of ``InputOptions.trace`` cannot be written.
        """
        record = EpochRecord(self._next.position, self._number)
        self._warnings.end_look(self._next.left)
        iterator = self._start(record)
        self._next.begin(record)
        return iterator

    def steps(self) -> DistributedSteps:
        """Play the next epoch as ``iter()`` does, each step as a value of its own.

        For whatever trains later than it reads: a step knows its examples and the state after it,
        whatever was delivered since. ``iter()`` is called when the first step is asked for. What is
        returned has ``report()`` and ``close()``, as :class:`DistributedIterator` has.
        """
        return DistributedSteps(self)

    def __bool__(self) -> bool:
        """True, so that ``if dataset:`` needs no length: it asks whether there is a dataset."""
        return True

    def __len__(self) -> int:
        """The number of steps of the epoch that the next ``iter()`` plays.

        Where it goes on from a loaded state, those that were delivered before are counted as they
        were, and those to come as this cluster cuts them: who counts steps ends with the data.

        Raises:
            TypeError: where it is not known before the data is read.
        """
        steps = self._input.num_steps(self._next.position)
        if steps is None:
            msg = (
                f"{self._name} has no length before it is read: only indexable sources know how "
                "many examples they have (with a sampler, if it has a len(); with a token budget, "
                "without one), and counted files, once iter() has opened them: `with "
                "dataset.set_aside(): iter(dataset)`. Iterate it; all ranks end at the same step."
            )
            raise TypeError(msg)
        return steps

    @property
    def strategy(self) -> Any:
        """The :class:`Strategy` over whose replicas it is distributed."""
        return self._strategy

    @property
    def auto_shard_policy(self) -> str | None:
        """How the source is dealt out to workers; None for datasets from a function."""
        policy = self._facts.get("auto_shard_policy")
        return None if policy is None else str(policy)

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` plays, from 0."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` plays; the same on all ranks.

        After :meth:`load_state_dict`, the epoch that was saved goes on where it was; any other
        starts from its beginning.
        """
        self._next.set_epoch(epoch)

    def set_aside(self) -> AbstractContextManager[None]:
        """Let an ``iter()`` inside play the next epoch from its beginning, and still be to come.

        A position that was loaded, or that a state shows, is there again afterwards. For a look at
        the data between two loops, as ``iter()`` closes an open one; on all ranks.
        """
        return self._next.set_aside()

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after the last step delivered, for :meth:`load_state_dict`.

        A small dict for JSON, ``torch.save`` or ``torch.distributed.checkpoint``, the same on all
        workers: one of them may save it for all. It counts what was delivered, not what was read
        ahead, and no other rank is asked for it. After the last step of an epoch it continues with
        an empty rest of that epoch. ``DataLoader``'s counterpart is torchdata's
        ``StatefulDataLoader``.
        """
        if self._next.loaded is not None:
            return self._next.copy_loaded()
        position = self._next.position_shown
        return to_state(position, self._recipe(position))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()`` go on where a state was taken; on all ranks.

        The number of workers, of replicas and of loader processes, the global batch size, the
        rule of splitting, ``drop_last`` and the buffers may be others than those it was taken with.

        Raises:
            ValueError: if it is no state.
            ConfigurationError: a ValueError; if it is the state of another recipe. Files are
                compared by ``iter()``.
        """
        state = to_current(state, self._static_recipe, self._input.read_version_1, name=self._name)
        from_state(state)  # refuses what is no position
        running = self._running() if self._running else None
        if running is not None:
            running._close_because("load_state_dict()", "Call iter() again: it goes on from there.")
        self._next.load(state)
        self._session.ended_loops.forget(self._number)

    @property
    def element_spec(self) -> Any:
        """The structure of a replica batch with a :class:`TensorSpec` for each leaf.

        Ask on all ranks: where nothing was delivered yet and the source has no index, this starts
        an iteration, reads its first step and closes it. (TensorFlow wraps the specs in a
        PerReplicaSpec; here they are the same for any number of replicas.)
        """
        running = self._running() if self._running else None
        if running is not None and running._can_tell_spec:
            return running.element_spec
        if self._spec is None:
            with self._turn.lock:
                spec = self._input.spec(self.epoch)
            self._spec = spec if self._slices is None else self._slices.cut_spec(spec)
        if self._spec is None:
            with self._start(EpochRecord(self._input.first(self.epoch), self._number)) as iterator:
                self._spec = iterator._part_spec
        return element_spec(self._spec, self._padding)

    def _leave_at_beginning(self) -> None:
        """See :meth:`NextStart.leave_at_beginning`; for trainers that read ahead."""
        self._next.leave_at_beginning()

    def _recipe(self, position: Position) -> Recipe:
        return {**self._static_recipe, **self._input.recipe(position)}

    def replay(self, state: dict[str, Any], step: int) -> ReplayedStep:
        """Return one step as all replicas got it, on this rank alone, whatever the cluster was.

        For looking at the batch that broke something: ``step`` is ``last_step.index`` of the run.
        It reads from the state to the step, so take one that was saved shortly before; where
        there is an index, any will do.

        Args:
            state: a state of the epoch, taken at or before the step by the cluster that played it.
            step: number of the step within its epoch.

        Raises:
            ValueError: if the step is not in what follows the state.
            UsageError: for datasets from a function: their batches are not ours to make.
        """
        state = to_current(state, self._static_recipe, self._input.read_version_1, name=self._name)
        position = from_state(state)
        check_recipe(state, self._recipe(position), name=self._name)
        step = check_count("step", step, minimum=0)
        found = replay_step(self._input, self._turn, position, step)
        # Again, as costs are measured now: a state may hold them before the first step.
        check_recipe(state, self._recipe(position), name=self._name, dealt_alike=True)
        return found

    def _start(self, record: EpochRecord) -> DistributedIterator:
        context.check_cross_replica(self._session, "iter(dataset)")
        check_alone(self._session.communicator, self._options.auto_shard_policy)
        earlier = self._running() if self._running else None
        if earlier is not None:
            cure = "Distribute a dataset twice to have two iterators at once."
            earlier._close_because("a newer iter() of its dataset", cure)
        iteration = Iteration(self._session, self._title, self._turn, timeout=self._options.timeout)
        try:
            iterator = self._open(iteration, record)
        except BaseException as error:
            iteration.fail(error)
            raise
        self._running = weakref.ref(iterator)
        return iterator

    def _open(self, iteration: Iteration, record: EpochRecord) -> DistributedIterator:
        options, static, one_kind = self._options, self._static_recipe, self._input.has_one_kind
        prepared, shares = self._shake_hands(iteration, record.position)
        self._session.ended_loops.forget(self._number)  # they have compared where it was left
        counter = ReadCounter(self._session.topology.worker_index)
        opening = Opening(
            shares=shares,
            read_counter=counter,
            monitor=iteration.monitor(),
            agreement_channel=self._agreement_channel,
            timeout=iteration.timeout,
            exchange=iteration.exchange(),
            checks_data=options.audit,
        )
        feed = iteration.open(prepared, opening, self._broadcast, self._slices)
        record.open(feed.origin)
        self._warnings.begin(record.position)
        run = EpochRun(
            feed=feed,
            record=record,
            recipe=lambda after: {**static, **prepared.recipe(after)},
            monitor=opening.monitor,
            read_counter=counter,
            barrier=iteration.barrier(opening.monitor),
            audit=iteration.audit(counter, record, self._input) if options.audit else None,
            shapes=Shapes(self._spec, self._padding, *self._checks, has_one_kind=one_kind),
            compare=iteration.compare_first_batches(has_one_kind=one_kind),
            warnings=self._warnings,
            cp_dim=options.cp_dim,
            log=self._measurement and self._measurement.open(record.steps),
        )
        return DistributedIterator(self._session, run, options)

    def _shake_hands(
        self, iteration: Iteration, position: Position
    ) -> tuple[PreparedEpoch, list[Any]]:
        """Prepare, and compare with the other ranks; with what each has found out for all."""
        prepared: list[PreparedEpoch] = []

        def prepare() -> tuple[dict[str, object], object]:
            if self._measurement is not None:
                self._measurement.open_file()
            prepared.append(self._input.prepare(position))
            facts = self._all_facts(prepared[0], position)
            if self._next.loaded is not None:
                check_recipe(self._next.loaded, self._recipe(position), name=self._name)
            return facts, prepared[0].share() if self._session.is_reader else None

        shares = iteration.shake_hands(prepare)
        return prepared[0], shares

    def _all_facts(self, prepared: PreparedEpoch, position: Position) -> dict[str, object]:
        """What must be equal on all ranks."""
        cut, reads = self._slices, self._session.is_reader
        sliced = {"cp_dim": self._options.cp_dim, "cp_columns": cut.columns} if cut else {}
        example = prepared.first_example(audited=self._options.audit) if reads else None
        return {
            "dataset": f"number {self._number}, {self._name.partition('(')[0]}",  # paths may differ
            **self._facts,
            **sliced,
            **self._next.facts(position),
            **prepared.facts,
            EXAMPLE: NOT_KNOWN if example is None else example,
        }
