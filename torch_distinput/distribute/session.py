"""What the parts of a strategy share, so that none of them needs the strategy itself.

Strategy --> Session <-- DistributedDataset, DistributedIterator, ReplicaContext, scope
^           |
+-- weak ---+        the strategy is found again, but not kept, by what it has made
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.membership import Membership
from torch_distinput.cluster.mesh import find_context_dim
from torch_distinput.cluster.process_group import ProcessGroupCommunicator
from torch_distinput.cluster.step_broadcast import StepBroadcast
from torch_distinput.communicator import Alone
from torch_distinput.distribute.steps.ended_loops import EndedLoops
from torch_distinput.distribute.steps.loss_steps import LossSteps
from torch_distinput.meter import WorkClock
from torch_distinput.options import InputOptions
from torch_distinput.plan.assignment.topology import Topology

if TYPE_CHECKING:
    from torch_distinput.communicator import Communicator
    from torch_distinput.data.steps.sequence_slices import SequenceSlices
    from torch_distinput.distribute.reports.step_log import Measurement, StepLog


@final
class Session:
    """One strategy's cluster, and what has happened in it.

    Attributes:
        topology: the workers and their replicas.
        devices: one for each local replica.
        communicator: the way to the other workers.
        partners: the ranks that get the same data; None if there are none.
        mesh_dims: of the mesh that all these ranks lie on; none without one.
        heartbeat: tells the others where this worker is, and hears where they are: all ranks that
            play the same steps, partners too.
        has_static_shapes: whether the devices are to see one shape in all steps.
        loss_steps: which steps a loss may belong to.
        ended_loops: where loops have ended, for what is combined afterwards.
        is_merging: whether a ``merge_call`` is under way, whose arguments the replicas have made.
        of_each_replica: tensors that every local replica has returned, the same one each.
        step_log: of the iterator that delivered last, of those that measure; None without one.
        first_orders: by data that was distributed: which orders of it were played, and whether a
            warning said so.
        datasets: numbers the strategy's datasets, alike on all ranks.
        iterations: numbers what ``iter()`` of them starts, in the same way.
        scopes: numbers the ends of scopes, in the same way.
    """

    def __init__(
        self,
        strategy: Any,
        topology: Topology,
        devices: Sequence[torch.device],
        cluster: Membership,
        *,
        has_static_shapes: bool = False,
    ) -> None:
        """Called by the strategy."""
        assert len(devices) == topology.replicas_per_worker, "a device for each local replica"
        self._strategy = weakref.ref(strategy)
        self.topology = topology
        self.devices = tuple(devices)
        self.communicator = cluster.communicator
        self.partners = cluster.partners
        self.mesh_dims = cluster.mesh_dims
        self.has_static_shapes = has_static_shapes
        self.loss_steps = LossSteps()
        self.ended_loops = EndedLoops()
        self.is_merging = False
        self.of_each_replica = WeakIdKeyDictionary()
        self.step_log: StepLog | None = None
        self.heartbeat = Heartbeat(self.communicator)
        if self.partners is not None:
            self.heartbeat = Heartbeat(self.partners.everyone, self.partners.names)
        self.first_orders = WeakIdKeyDictionary()
        self.datasets = itertools.count()
        self.iterations = itertools.count()
        self.scopes = itertools.count()
        self._groups = cluster.groups
        self._along: dict[str, Communicator] = {}
        weakref.finalize(self, self.heartbeat.close).atexit = False  # threads end all at once

    @property
    def rank(self) -> int:
        """A number that no other rank has: the worker's, or with partners that of the mesh."""
        if self.partners is None:
            return self.topology.worker_index
        return self.partners.meeting.ranks[self.partners.meeting.rank]

    @property
    def is_alone(self) -> bool:
        """Whether it is of one worker on purpose: a strategy without other ranks."""
        return isinstance(self.communicator, Alone) and self.communicator.on_purpose

    @property
    def is_reader(self) -> bool:
        """Whether this rank reads data; else a partner sends it."""
        return self.partners is None or self.partners.is_reader

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all: the first worker, and the first of its partners."""
        is_first_partner = self.partners is None or self.partners.meeting.rank == 0
        return not self.topology.worker_index and is_first_partner

    def make_broadcast(self) -> StepBroadcast | None:
        """The way from the partner that reads to the others, for a dataset; None where all read."""
        if self.partners is None or not self.partners.broadcasts:
            return None
        return StepBroadcast(self.partners, self.heartbeat)

    def make_slices(self, options: InputOptions) -> SequenceSlices | None:
        """What this rank gets of the sequences of a dataset; None if all of them."""
        if options.cp_dim is None:
            return None
        # Imported here, because most sequences are not cut.
        from torch_distinput.data.steps.sequence_slices import SequenceSlices  # noqa: PLC0415

        dim, columns = find_context_dim(self.mesh_dims, options.cp_dim), options.cp_columns
        return SequenceSlices(
            index=dim.index,
            num_slices=dim.size,
            columns=tuple(columns.items()) if isinstance(columns, Mapping) else None,
        )

    def measure(
        self, dataset: int, options: InputOptions, clock: WorkClock | None
    ) -> Measurement | None:
        """What measures the steps of a dataset; None where nothing does."""
        if clock is None:
            return None
        # Imported here, because most datasets are not measured.
        from torch_distinput.distribute.reports.step_log import (  # noqa: PLC0415
            Measurement,
            name_of_rank,
        )

        path = None if options.trace is True else str(options.trace)
        is_shared = self.partners is not None and self.partners.broadcasts
        file = None if path is None else name_of_rank(path, dataset=dataset, rank=self.rank)
        return Measurement(clock, file, rank=self.rank, is_shared=is_shared)

    def join_slices(self, cp_dim: str) -> Communicator:
        """The way to the ranks that have the other slices of this one's sequences."""
        if cp_dim not in self._along:
            self._along[cp_dim] = ProcessGroupCommunicator(self._groups[cp_dim])
        return self._along[cp_dim]

    @property
    def strategy(self) -> Any:
        """The strategy; None if only an iterator is left of it."""
        return self._strategy()
