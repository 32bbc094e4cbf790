"""The facade: what the replicas in sync do together."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torch_distinput import scope_registry
from torch_distinput.cluster.liveness.coordinated_stop import handle_signal
from torch_distinput.cluster.membership import check_alone
from torch_distinput.data.sources.source import Request
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.sequences.padded_cost import PaddedCost
from torch_distinput.data.user_sources.sequences.token_budget import TokenBudget
from torch_distinput.distribute import context, reductions
from torch_distinput.distribute.build import build_dataset, build_from_function
from torch_distinput.distribute.creator import DatasetCreator, refuse_settings
from torch_distinput.distribute.replicas import replica
from torch_distinput.distribute.replicas.replicated_module import ReplicatedModule
from torch_distinput.distribute.replicas.values_from_function import make_values
from torch_distinput.distribute.scope_check import compare
from torch_distinput.distribute.session import Session
from torch_distinput.options import InputOptions, ReduceOp, check_options, parse_enum
from torch_distinput.plan.assignment.topology import InputContext, Topology, ValueContext

if TYPE_CHECKING:
    from torch import nn

    from torch_distinput.cluster.membership import Membership
    from torch_distinput.distribute.dataset import DistributedDataset
    from torch_distinput.distribute.reports.run_report import RunReport


class Strategy(ABC):
    """Workers and their replicas (``tf.distribute.Strategy``).

    What all strategies can do; make a :class:`MultiWorkerMirroredStrategy`,
    :class:`MirroredStrategy`, :class:`OneDeviceStrategy` or :class:`TPUStrategy`. They differ in
    their constructors, and in what the devices ask of their input.
    """

    @abstractmethod
    def __init__(
        self,
        topology: Topology,
        devices: Sequence[torch.device],
        cluster: Membership,
        *,
        has_static_shapes: bool = False,
    ) -> None:
        """Join a topology, this worker's devices, what they ask for, and the ways to the others."""
        self._session = Session(
            self, topology, devices, cluster, has_static_shapes=has_static_shapes
        )
        self.topology = topology
        self.devices = self._session.devices

    def __repr__(self) -> str:
        """Show the numbers that matter."""
        return (
            f"{type(self).__name__}(worker {self.worker_index} of {self.num_workers}, "
            f"devices {', '.join(map(str, self.devices))})"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a process group and threads belong to one process."""
        name = type(self).__name__
        msg = (
            f"Expected a {name} to be used where it was made, got a pickle or a copy of it: its "
            f"ranks and threads cannot be copied. Make a {name} in the process that needs one."
        )
        raise TypeError(msg)

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas over all workers."""
        return self.topology.num_replicas_in_sync

    @property
    def num_workers(self) -> int:
        """Workers (ranks) that take part."""
        return self.topology.num_workers

    @property
    def worker_index(self) -> int:
        """This worker's index, from 0."""
        return self.topology.worker_index

    @property
    def device(self) -> torch.device:
        """The first local replica's device."""
        return self.devices[0]

    def distribute_dataset(
        self,
        source: Any,
        *,
        global_batch_size: int | TokenBudget | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0, num_threads: int = 0,
        balance: Length | PaddedCost | None = None,
        options: InputOptions | None = None,
    ) -> DistributedDataset:  # fmt: skip
        """Distribute a source over the replicas (``experimental_distribute_dataset``).

        Args:
            source: a DataLoader built with the global batch size; a FileDataset; a tensor, array,
                or tuple or dict of them; a map-style dataset or list; an object with
                ``num_shards`` and ``shard()``; an IterableDataset, generator function or torchdata
                node; or a :class:`DatasetCreator`, and nothing beside it but ``options``.
            global_batch_size: examples, or a :class:`TokenBudget`, of one step over all replicas in
                sync; None with a DataLoader, which has it, and for streams of global batches.
            shuffle: a new order every epoch, of examples with an index or of a FileDataset's files.
            seed: key of all our randomness; the same on all ranks.
            drop_last: leave out the last partial global batch (FILE: of each worker).
            collate_fn: from a list of examples to a batch; the default keeps their structure.
            num_workers: loader processes. A stream runs in one, whatever the number.
            num_threads: threads instead, where the work releases the interpreter lock.
            balance: deal the rows of a global batch by what they cost, a whole number for each
                example: a column, an array, a function of an example, or a :class:`PaddedCost`.
            options: see :class:`InputOptions`.

        Raises:
            TypeError: if the source is none of these.
            ConfigurationError: if the arguments do not fit the source.
        """
        request = Request(
            global_batch_size=global_batch_size, shuffle=shuffle, drop_last=drop_last,
            collate_fn=collate_fn, num_workers=num_workers, num_threads=num_threads,
        )  # fmt: skip
        if isinstance(source, DatasetCreator):
            refuse_settings(request, seed=seed, balance=balance)
            return self.distribute_datasets_from_function(source.dataset_fn, options)
        return build_dataset(
            self._session, source, request, seed=seed, options=check_options(options), cost=balance
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Play replica batches that ``dataset_fn(InputContext)`` makes on each worker.

        Nothing is sharded or cut: each step takes one element per local replica, in replica order;
        a replica that has none gets zero rows.

        Args:
            dataset_fn: from an :class:`InputContext` to an iterable of replica batches. Called once
                per worker, or per local replica with ``InputOptions(replication_mode=...)``.
            options: see :class:`InputOptions`.

        Raises:
            TypeError: if it does not return something that can be iterated once per epoch.
        """
        return build_from_function(self._session, dataset_fn, options=check_options(options))

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Call ``value_fn(ValueContext)`` for each local replica and group the results.

        ``experimental_distribute_values_from_function``; values are kept as they are.

        Raises:
            ConfigurationError: under a :class:`TPUStrategy`, as values may have any shape.
        """
        return make_values(self._session, value_fn)

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``fn`` once per local replica (``tf.distribute.Strategy.run``).

        The calls take turns in replica order and hand over at collective calls of
        :func:`get_replica_context`; grad mode, autocast, device, hooks of saved tensors and modes
        of torch are carried over.

        Args:
            fn: called with one replica's arguments, on its device.
            args: a tuple or list. Each :class:`PerReplica` in it, at any depth, is replaced by the
                replica's own value; everything else is passed to all replicas as it is.
            kwargs: as ``args``, by name.

        Returns:
            What ``fn`` returns. With several local replicas each leaf is a PerReplica, unless it is
            one object on all of them (None, say, but no number or string).

        Raises:
            UsageError: inside ``run``, or if the replicas make different collective calls.
            TypeError: if ``args`` is no tuple or list, or ``kwargs`` no dict.
        """
        context.check_cross_replica(self._session, "Strategy.run")
        replica.check_arguments(args, kwargs)
        return replica.run_replicas(self._session, fn, args, kwargs or {})

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """This worker's results, one per local replica (``experimental_local_results``).

        A value without :class:`PerReplica` in it is the only result.
        """
        return replica.split_results(value, len(self.devices))

    def reduce(
        self, reduce_op: ReduceOp | str, value: Any, axis: int | tuple[int, ...] | None = None
    ) -> Any:
        """Sum or average over all replicas in sync; the result is the same on every worker.

        Halves are added up in float32, and the result is a half again. Sums of whole numbers and
        bools are int64; of Python's floats, float64, unless another worker has a tensor.

        Args:
            reduce_op: ``"sum"`` or ``"mean"``.
            value: a structure of tensors or numbers, PerReplica with several local replicas. A
                value that is none is that of each replica; ``"sum"`` refuses it.
            axis: None combines whole values of one shape. Otherwise each replica's tensor is first
                reduced over these axes, and the mean is weighted by what they held: partial and
                zero-row batches count right.

        Returns:
            The structure with reduced, detached tensors; integers average to float32.

        Raises:
            ValueError: for another ``reduce_op``, an axis that a tensor does not have, or shapes
                that differ between local replicas.
            TypeError: for a leaf that is no dense tensor or number.
            MismatchError: on all workers, if their values differ in structure, dtype or shape, or
                they have left the last loop over a dataset at different steps.
            PeerFailedError: if another worker's value is refused.
        """
        self._check_collective("Strategy.reduce")
        op = parse_enum(ReduceOp, reduce_op, "reduce_op")
        return reductions.reduce_values(self._session, value, op=op, axis=axis)

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Join tensors, lists or packed strings of all replicas in sync along ``axis``, in order.

        The result is detached, and the same on every worker.

        Args:
            value: a structure of them, PerReplica with several local replicas. Sizes along ``axis``
                may differ, also be 0; the others are equal. Lists and strings have axis 0 only.
            axis: counted from 0, or from the end if it is negative.

        Raises:
            MismatchError: on all workers, if the other sizes, the dtypes or the structures differ,
                or they have left the last loop over a dataset at different steps.
        """
        self._check_collective("Strategy.gather")
        return reductions.gather_values(self._session, value, axis=axis)

    def gather_in_order(self, index: Any, value: Any) -> Any:
        """Gather rows and sort them by their indices, for predictions in the source's order.

        Args:
            index: int64 ``(rows,)``, the place of each row; each of 0..n-1 once over all replicas
                (nobody knows of rows that are missing at the end). Or ``(rows, 2)`` with file and
                record numbers, the ``last_step.ids`` of files: repetitions are refused, but gaps go
                unnoticed, as filters leave some too.
            value: a structure of tensors or lists with a row for each index: of padded batches
                ``values[mask]``.

        Raises:
            ValueError: for gaps or repetitions, or other rows than indices.
        """
        self._check_collective("Strategy.gather_in_order")
        return reductions.gather_in_order(self._session, index, value)

    def report(self) -> RunReport:
        """Where the time of steps went on all ranks, and which holds up the others; all call it.

        Of the last 1,024 steps of the iterator that delivered a step last, of those whose dataset
        has ``InputOptions(trace=...)``; on a mesh, of this rank's workers.

        Raises:
            UsageError: on all ranks, if one of them has measured nothing.
        """
        from torch_distinput.distribute.reports.run_report import report_all  # noqa: PLC0415 - late

        self._check_collective("Strategy.report")
        return report_all(self._session)

    def replicate(self, module: nn.Module) -> ReplicatedModule:
        """Move a module to the first device and let each replica compute on its own.

        For several local devices in one process; gradients arrive in the one set of parameters.
        (One process per GPU with DDP or FSDP is faster.)
        """
        return ReplicatedModule(module.to(self.device))

    @contextmanager
    def scope(self, *, replicate: bool = False) -> Iterator[Strategy]:
        """Make this strategy current: ``get_strategy()`` returns it, and another is refused.

        Preprocessing layers that are made inside are compared across workers when it ends; with
        ``replicate`` they get worker 0's state first, and only their configuration is compared.
        Where layers are compared, leaving it is a collective call: all workers must enter it.

        Raises:
            MismatchError: at the end, on all workers, naming those whose layers differ.
        """
        with context.scope(self._session), scope_registry.collected() as made:
            yield self
        if made and self.num_workers > 1:
            compare(made, self._session, replicate=replicate)

    def stop_on_signal(self, signum: int = signal.SIGTERM) -> None:
        """Let a signal to any rank stop all ranks at the same step; see :attr:`stop_requested`.

        Call it on all ranks, in the main thread; call it again for another signal. The handler
        before this one is called too if it is a function, except the one that raises
        KeyboardInterrupt; the default action, to end the process, is not taken. Later signals
        change nothing: torchrun may pass on what the scheduler has sent to all already. To undo,
        call ``signal.signal``.

        Raises:
            UsageError: outside the main thread; there use :meth:`request_stop`.
        """
        handle_signal(signum, self._session.heartbeat.request_stop)

    def request_stop(self) -> None:
        """Ask all ranks to stop at the same step, as the signal does. Call it on any of them."""
        self._session.heartbeat.request_stop()

    @property
    def stop_requested(self) -> bool:
        """True on all ranks from the same step on, once any of them was asked to stop.

        Ask after each step: ``if strategy.stop_requested: break``. It changes only when a step is
        delivered, some steps after the request, and stays True; if an epoch ends before, it changes
        in the next one. A loop that asks for no more steps does not see it. After an error it is
        False until the next step.
        """
        return self._session.heartbeat.stop.is_due

    def _check_collective(self, call: str) -> None:
        """Refuse a call of all replicas from inside one, or of fewer ranks than there are."""
        context.check_cross_replica(self._session, call)
        check_alone(self._session.communicator)

    experimental_distribute_dataset = distribute_dataset
    experimental_distribute_datasets_from_function = distribute_datasets_from_function
    experimental_distribute_values_from_function = distribute_values_from_function
    experimental_local_results = local_results
