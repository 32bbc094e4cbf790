"""The recipe of a distributed dataset; ``iter()`` makes the run."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch_distinput.cluster.handshake import shake_hands
from torch_distinput.cluster.meeting import Meeting
from torch_distinput.cluster.watch import Watch
from torch_distinput.data.read_log import Tally
from torch_distinput.distribute import current
from torch_distinput.distribute.inputs import Input, Opening
from torch_distinput.distribute.iterator import DistributedIterator
from torch_distinput.options import InputOptions, check_count

if TYPE_CHECKING:
    from torch_distinput.distribute.strategy import Strategy


class DistributedDataset:
    """A source together with a strategy (``tf.distribute.DistributedDataset``).

    Made by ``Strategy.distribute_dataset`` and ``distribute_datasets_from_function``. Each
    ``iter()`` plays a new epoch from its beginning: 0, 1, 2, ..., or what :meth:`set_epoch` says;
    also after the loop was left early. A new ``iter()`` closes the iterator before it; whoever
    needs two at once distributes twice. ``iter()`` is collective: all ranks call it, in one order.

    Not a DataLoader and not a subclass of one: trainers that wrap DataLoaders would cut it again.
    """

    def __init__(
        self,
        strategy: Strategy,
        source: Input,
        *,
        name: str,
        facts: dict[str, object],
        options: InputOptions,
    ) -> None:
        """Called by the strategy."""
        self._strategy = strategy
        self._input = source
        self._name = name
        self._facts = facts
        self._number = strategy.count_dataset()
        self._options = options
        self._meeting = Meeting(strategy.communicator, strategy.heartbeat)
        self._epoch = 0
        self._spec: Any = None
        self._running: weakref.ref[DistributedIterator] | None = None

    def __repr__(self) -> str:
        """Show the source and how it is cut."""
        shown = ", ".join(f"{k}={v!r}" for k, v in self._facts.items() if k.isidentifier())
        return f"DistributedDataset({self._name}, {shown})"

    def __iter__(self) -> DistributedIterator:
        """Start the next epoch on all ranks.

        Raises:
            MismatchError: the ranks do not iterate the same dataset in the same way.
            TooFewFilesError: FILE has fewer files than workers; on all ranks.
            PeerFailedError: another rank could not open its data.
            PeerTimeoutError: another rank did not come within ``InputOptions.timeout``.
        """
        iterator = self._start()
        self._epoch += 1
        return iterator

    def __bool__(self) -> bool:
        """True, so that ``if dataset:`` needs no length: it asks whether there is a dataset."""
        return True

    def __len__(self) -> int:
        """The number of steps of an epoch.

        Raises:
            TypeError: where it is not known before the data is read.
        """
        steps = self._input.num_steps(self._epoch)
        if steps is None:
            msg = (
                f"{self._name} has no length before it is read: only indexable sources know how "
                "many examples they have, and files that tell, once iter() has looked into them. "
                "Iterate it; the end is the same step on all ranks."
            )
            raise TypeError(msg)
        return steps

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` plays, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` plays; the same on all ranks."""
        self._epoch = check_count("epoch", epoch, minimum=0)

    @property
    def element_spec(self) -> Any:
        """The structure of a replica batch with a :class:`TensorSpec` for each leaf.

        Sources without an index must be read to know, so ask on all ranks. (TensorFlow wraps the
        specs in a PerReplicaSpec; here they are the same for any number of replicas.)
        """
        running = self._running() if self._running else None
        if running is not None and running.part_spec_so_far is not None:
            return running.part_spec_so_far[0]
        if self._spec is None:
            self._spec = self._input.spec()
        if self._spec is None:
            with self._start() as iterator:
                self._spec = iterator.part_spec
        return self._spec[0]

    def _start(self) -> DistributedIterator:
        current.check_cross_replica(self._strategy, "iter(dataset)")
        earlier = self._running() if self._running else None
        if earlier is not None:
            earlier.close()
        communicator, options = self._strategy.communicator, self._options
        topic = f"iteration {self._strategy.count_iteration()}"
        heartbeat = self._strategy.heartbeat
        heartbeat.start(options.timeout)
        shares = shake_hands(
            communicator, topic, self._prepared,
            heartbeat=heartbeat, name=self._name, timeout=options.timeout,
        )  # fmt: skip
        watch = Watch(heartbeat, topic, timeout=options.timeout)
        tally = Tally(communicator.rank)
        feed = self._input.open(
            Opening(
                epoch=self._epoch,
                shares=shares,
                tally=tally,
                watch=watch,
                meeting=self._meeting,
                timeout=options.timeout,
            )
        )
        iterator = DistributedIterator(
            feed,
            self._strategy,
            watch=watch,
            tally=tally,
            spec=self._spec,
            fetch_to_device=options.fetch_to_device,
            buffer_size=options.per_replica_buffer_size,
        )
        self._running = weakref.ref(iterator)
        return iterator

    def _prepared(self) -> tuple[dict[str, object], object]:
        """What must be equal on all ranks, and what this one has found out for all."""
        return self._all_facts(), self._input.share()

    def _all_facts(self) -> dict[str, object]:
        kind = self._name.partition("(")[0]  # paths may differ, if their files do not
        return {
            "dataset": f"number {self._number}, {kind}",
            **self._facts,
            "epoch": self._epoch,
            **self._input.facts(self._epoch),
        }
