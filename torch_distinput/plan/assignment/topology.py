"""The cluster as the input sees it: workers, their replicas, and which of them I am."""

from __future__ import annotations

from dataclasses import dataclass

from torch_distinput.options import check_count


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """``num_workers`` x ``replicas_per_worker`` replicas, seen from worker ``worker_index``."""

    num_workers: int = 1
    replicas_per_worker: int = 1
    worker_index: int = 0

    def __post_init__(self) -> None:
        """Refuse counts below one and an index outside the workers."""
        check_count("num_workers", self.num_workers, minimum=1)
        check_count("replicas_per_worker", self.replicas_per_worker, minimum=1)
        check_count("worker_index", self.worker_index, minimum=0)
        if self.worker_index >= self.num_workers:
            msg = f"worker_index must be below {self.num_workers} workers, got {self.worker_index}."
            raise ValueError(msg)

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas over all workers."""
        return self.num_workers * self.replicas_per_worker

    @property
    def first_replica(self) -> int:
        """Index in sync of this worker's first replica."""
        return self.worker_index * self.replicas_per_worker

    def _repr_html_(self) -> str:
        """Draw the replicas of each worker, for notebooks."""
        from torch_distinput.rendering.notebook import show_topology  # noqa: PLC0415 - if shown

        return show_topology(self.num_workers, self.replicas_per_worker, self.worker_index)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputContext:
    """What ``dataset_fn`` is told about its place in the cluster (``tf.distribute.InputContext``).

    Attributes:
        num_input_pipelines: how often ``dataset_fn`` is called over all workers.
        input_pipeline_id: which of these calls this is, from 0.
        num_replicas_in_sync: replicas over all workers.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return ``global_batch_size`` divided by the replicas in sync.

        Raises:
            TypeError: if it is no number of examples; a :class:`TokenBudget` is none.
            ValueError: if it does not divide.
        """
        global_batch_size = check_count("global_batch_size", global_batch_size, minimum=0)
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            msg = (
                f"The global_batch_size {global_batch_size} is not divisible by "
                f"num_replicas_in_sync {self.num_replicas_in_sync}. Choose a multiple, or let "
                "distribute_dataset cut global batches of any size."
            )
            raise ValueError(msg)
        return size

    def __str__(self) -> str:
        """Print as TensorFlow's InputContext does."""
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueContext:
    """What ``value_fn`` is told about its replica (``tf.distribute.experimental.ValueContext``).

    Attributes:
        replica_id_in_sync_group: the replica's index over all workers, from 0.
        num_replicas_in_sync: replicas over all workers.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        """Print as TensorFlow's ValueContext does."""
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group},  "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )
