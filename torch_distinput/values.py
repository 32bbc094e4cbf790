"""The values that users get: per-replica tuples, optional steps, facts about a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import torch

from torch_distinput.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)
_OF_DATA_LOADERS = {"batch_sampler", "batch_size", "collate_fn", "dataset", "sampler"}


class PerReplica(tuple[T_co, ...], Generic[T_co]):
    """One value per local replica, in replica order (``tf.distribute.DistributedValues``).

    A tuple subclass, so it can be indexed and unpacked; tree functions of this package treat it as
    one leaf. ``Strategy.run`` replaces it by each replica's own value.
    """

    __slots__ = ()

    @property
    def values(self) -> tuple[T_co, ...]:
        """The values as a plain tuple, in local replica order."""
        return tuple(self)

    def __repr__(self) -> str:
        """Show each replica's value on a line of its own, as TensorFlow does."""
        rows = "\n".join(f"  {replica}: {value!r}" for replica, value in enumerate(self))
        return f"PerReplica:{{\n{rows}\n}}"

    def _repr_html_(self) -> str:
        """Draw the rows of each replica, for notebooks."""
        from torch_distinput.rendering.notebook import show_per_replica  # noqa: PLC0415 - if shown

        return show_per_replica(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the class and its values."""
        return (PerReplica, (tuple(self),))


class Distributed:
    """What is distributed already: no folder may take it for a source, no trainer for a DataLoader.

    It stays in its process, and says so to who asks it for what a DataLoader has.
    """

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: its ranks and threads belong to one process."""
        name = type(self).__name__
        msg = (
            f"Expected a {name} to be used where it was made, got a pickle or a copy of it: its "
            "ranks and threads cannot be copied. Make the strategy and distribute in the process "
            "that iterates: in the function that each worker runs."
        )
        raise TypeError(msg)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass for one

        def __getattr__(self, name: str) -> NoReturn:
            """Say to what prepares DataLoaders that this is none."""
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_DATA_LOADERS:
                msg += (
                    ": expected a DataLoader, got what is distributed already. Iterate it as it "
                    "is; do not pass it to what prepares DataLoaders, which would cut it again."
                )
            raise AttributeError(msg)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one leaf of a batch (``tf.TensorSpec``).

    Attributes:
        shape: sizes of the dimensions; None where a size varies. Dimension 0, the rows, is None
            unless batches are padded.
        dtype: a torch dtype, a NumPy dtype for array leaves, or a Python type (``str``, ``bytes``,
            ``object``) for list leaves.
        layout: ``torch.jagged`` for jagged tensors, and for :class:`PackedStrings`, whose dtype is
            ``str`` or ``bytes``.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    layout: torch.layout = torch.strided


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInfo:
    """Facts about the step delivered last, from ``DistributedIterator.last_step``.

    Attributes:
        index: number of the step within its epoch, from 0.
        num_examples: examples in this step over all replicas in sync.
        local_counts: examples of each local replica, in replica order.
        ids: an int64 array that names the examples, in order, PerReplica with several local
            replicas. Shape ``(rows,)`` with the index into an indexable source or the running
            number in a stream; shape ``(rows, 2)`` with file number and record number for files,
            or of shards that are dealt out one by one.
            Ready batches and those of ``distribute_datasets_from_function`` number their rows.
            Of a :func:`mix` of sources with an index, the index counts through all of them, one
            behind the other; of one with streams, there are the number of the source, how often it
            was played before, and its own ids.
        padded_rows: rows that each batch was filled up to (``partial_batch="pad"``), the examples
            first; None where the rows are the examples.
        sources: of a :func:`mix`, the examples in sync by source; else None.
        num_tokens: tokens in this step over all replicas in sync, by the lengths of its examples;
            None where they are not known beforehand.
        cp_dim: the dimension of the mesh over whose ranks its sequences are cut, as
            :class:`InputOptions` has it; None: they are whole.
    """

    index: int
    num_examples: int
    local_counts: tuple[int, ...]
    ids: NDArray[np.int64] | PerReplica[NDArray[np.int64]]
    padded_rows: int | None = None
    sources: Mapping[str, int] | None = None
    num_tokens: int | None = None
    cp_dim: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no local replica has an example: its batches have zero rows, or only padding.

        For code that cannot take zero rows and is no collective call: ``if not step.is_empty:
        metric.update(...)``. A step of the model must not be left out where DDP or FSDP wait.
        """
        return not any(self.local_counts)

    def _repr_html_(self) -> str:
        """Draw which rows this rank has, for notebooks."""
        return self._show(None)

    def _show(self, first_replica: int | None) -> str:
        from torch_distinput.rendering.notebook import show_step  # noqa: PLC0415 - if shown

        several = self.ids if isinstance(self.ids, PerReplica) else (self.ids,)
        return show_step(
            f"Step {self.index}",
            {
                "examples, all ranks": self.num_examples,
                "examples, this rank": sum(self.local_counts),
                "tokens, all ranks": self.num_tokens,
                "rows of a padded batch": self.padded_rows,
                **{f"from {name}": count for name, count in (self.sources or {}).items()},
            },
            lambda: [
                tuple(":".join(map(str, row.ravel())) for row in ids[:count])
                for ids, count in zip(several, self.local_counts, strict=True)
            ],
            num_examples=self.num_examples,
            first_replica=first_replica,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedStep:
    """One step of all replicas in sync, from ``DistributedDataset.replay``.

    Attributes:
        index: number of the step within its epoch, from 0.
        num_examples: examples in it.
        batches: the batch of each replica in sync, in order, in host memory; None for a replica
            that had no examples.
        ids: for each of them the names of its examples, as in :class:`StepInfo`; None as well.
    """

    index: int
    num_examples: int
    batches: tuple[Any, ...]
    ids: tuple[NDArray[np.int64] | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BalanceStats:
    """How well the rows of steps were dealt (``balance=``), from :class:`InputStats`.

    A step lasts as long as its slowest replica. So both are the sum over the steps of what the
    slowest replica costs, over the sum of what a replica costs on average: 1.25 means that the
    steps take 1.25 times as long as if all replicas had the same to do. The average is without
    padding (:class:`PaddedCost`). Counted are the steps since the iterator was made, and the
    replicas among which rows are dealt: all in sync, or those of this worker where rows stay on it.

    Attributes:
        before: if the same global batches had been cut without ``balance``.
        after: as they were dealt; never more than ``before``.
    """

    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingStats:
    """What packed rows (:func:`pack`) were filled with, from :class:`InputStats`.

    Counted are the rows that this worker's replicas got since the iterator was made. So the counts
    of all workers add up to those of all replicas in sync.

    Attributes:
        rows: how many there were.
        documents: how many documents they held; one that is cut counts in each of its rows.
        tokens: of these documents, without padding.
        waste: the share of padding in the rows; jagged ones leave it out, and count alike.
    """

    rows: int
    documents: int
    tokens: int
    waste: float


@dataclass(frozen=True, kw_only=True, slots=True)
class InputStats:
    """Counters of one iterator, from ``DistributedIterator.stats``.

    Attributes:
        steps: steps delivered.
        examples: examples delivered to this worker's replicas.
        zero_row_batches: replica batches without examples that this worker's replicas got.
        wait_seconds: time this worker's training loop spent inside ``next``.
        skipped: how often this worker has met something bad and left it out, by file: a record,
            or what follows it in its part of the file where a format cannot go on. Also for steps
            that are read and not delivered yet. Under DATA every worker meets all of it.
        retries: requests to a storage that were made again after a failure.
        sources: of a :func:`mix`, the examples in sync by source; else empty.
        repeats: of a :func:`mix`, how often each source has begun again since the epoch began
            (``stop="repeat"``); where each worker mixes its own, on the one that did most often.
        num_tokens: tokens in sync of the steps delivered, by the lengths of their examples; None
            where they are not known.
        balance: with ``balance=``, how evenly the work was dealt; else None.
        packing: of packed rows, what they were filled with; None as long as there are none, and for
            a :func:`mix` of packed rows and others.
    """

    steps: int
    examples: int
    zero_row_batches: int
    wait_seconds: float
    skipped: Mapping[str, int] = field(default_factory=dict)
    retries: int = 0
    sources: Mapping[str, int] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    num_tokens: int | None = None
    balance: BalanceStats | None = None
    packing: PackingStats | None = None

    def _repr_html_(self) -> str:
        """List what was counted, for notebooks."""
        from torch_distinput.rendering.notebook import show_stats  # noqa: PLC0415 - if shown

        return show_stats({one.name: getattr(self, one.name) for one in fields(self)})


class OptionalStep(Generic[T_co]):
    """What ``get_next_as_optional`` returns (``tf.experimental.Optional``)."""

    __slots__ = ("_has_value", "_value")

    def __init__(self, *, has_value: bool, value: T_co | None = None) -> None:
        """Hold a step, or nothing after the end of data."""
        self._has_value = has_value
        self._value = value

    def has_value(self) -> bool:
        """Whether any replica in sync has an example in this step; the same on all ranks."""
        return self._has_value

    def get_value(self) -> T_co:
        """Return the step. Raises :class:`UsageError` after the end of data."""
        if not self._has_value:
            msg = (
                "get_value() needs a step, but the end of data has been reached. "
                "Ask has_value() first."
            )
            raise UsageError(msg)
        return self._value  # type: ignore[return-value]


class StepIterator(Iterator[Any]):
    """An iterator that also answers to the names of ``tf.distribute.DistributedIterator``."""

    def get_next(self) -> Any:
        """Return the next step, as ``next`` does; StopIteration after the last one."""
        return self.__next__()  # next() looks for signals when it has the step

    def get_next_as_optional(self) -> OptionalStep[Any]:
        """Return the next step, or an empty :class:`OptionalStep` after the last one."""
        found: OptionalStep[Any] = OptionalStep(has_value=True)
        try:
            found._value = self.__next__()  # noqa: SLF001 - our own; the step is kept at once
        except StopIteration:
            return OptionalStep(has_value=False)
        return found
