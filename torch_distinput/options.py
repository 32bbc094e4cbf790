"""The frozen options and the enums whose names come from tf.distribute."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

_E = TypeVar("_E", bound=enum.Enum)

TIMEOUT = 120.0
"""Seconds that a worker waits for another where nobody says how long."""


class AutoShardPolicy(str, enum.Enum):
    """Who reads what (``tf.data.experimental.AutoShardPolicy``).

    Attributes:
        AUTO: FILE if the source has files or shards to deal out, else DATA.
        FILE: file i goes to worker i modulo the number of workers.
        DATA: global batches are cut, and each worker delivers its own pieces.
        OFF: nothing is dealt; every worker plays everything.
    """

    AUTO = "auto"
    FILE = "file"
    DATA = "data"
    OFF = "off"


class ReduceOp(str, enum.Enum):
    """How values are combined over the replicas (``tf.distribute.ReduceOp``)."""

    SUM = "sum"
    MEAN = "mean"


class Rebatch(str, enum.Enum):
    """How a global batch is split over the replicas.

    The rules are in ``plan/assignment/batching.py``.
    """

    SPLIT = "split"
    EVEN = "even"
    CYCLE = "cycle"


class PartialBatch(str, enum.Enum):
    """What a replica gets that has fewer examples than its share of a full batch."""

    AUTO = "auto"
    ZERO_ROWS = "zero_rows"
    PAD = "pad"


class ReplicationMode(str, enum.Enum):
    """How often ``dataset_fn`` is called (``tf.distribute.InputReplicationMode``)."""

    PER_WORKER = "per_worker"
    PER_REPLICA = "per_replica"


def parse_enum(kind: type[_E], value: object, what: str) -> _E:
    """Read an enum given as itself or as its name in any case; say what is allowed otherwise."""
    allowed = ", ".join(repr(member.value) for member in kind)
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        msg = f"{what} must be one of {allowed}, got {value!r} of type {type(value).__name__}."
        raise TypeError(msg)
    try:
        return kind(value.lower())
    except ValueError:
        msg = f"{what} must be one of {allowed}, got {value!r}."
        raise ValueError(msg) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputOptions:
    """How a distributed dataset is read, cut and handed over (``tf.distribute.InputOptions``).

    Attributes:
        auto_shard_policy: ``"auto"``, ``"file"``, ``"data"`` or ``"off"``, see
            :class:`AutoShardPolicy`.
        rebatch: ``"split"`` (pieces of ceil(n / N)), ``"even"`` (sizes differ by at most one) or
            ``"cycle"`` (the sizes of a full batch, filled in order).
        partial_batch: ``"zero_rows"`` (as many rows as there are examples, also none), ``"pad"``,
            or ``"auto"``: ``"pad"`` under a :class:`TPUStrategy`, else ``"zero_rows"``. Padded,
            each step is a pair ``(batch, mask)`` of one shape, for ``torch.compile`` and XLA. All
            leaves have ceil(global batch size / replicas in sync) rows, and ``mask`` (bool, a row
            each) is True for the examples, which come first. After them the last one is repeated,
            or the rows are zeros where there is none. Counts, ids, states and
            :func:`compute_average_loss` know of the examples only.
        fetch_to_device: False leaves the batches in host memory.
        per_replica_buffer_size: batches per replica copied to an accelerator ahead of the one in
            use; 0 copies at the call. On the CPU there is nothing to copy.
        replication_mode: ``"per_replica"`` calls ``dataset_fn`` once per local replica; only for
            ``distribute_datasets_from_function``.
        cp_dim: a dimension of the strategy's ``device_mesh``, beside those of the data, over which
            sequences are cut for context parallelism. Each of its ranks gets two chunks of every
            sequence, one from its head and one from its tail, in the order of torch's ring
            attention. None gives them whole sequences alike. To a batch that is a mapping without
            ``position_ids`` these are added. See the docs on sequences.
        cp_columns: what of a batch holds sequences: keys, or a mapping of keys to the dimensions
            along which they are cut. None: all dense tensors with a dimension 1, along that one,
            and if their lengths differ an error.
        audit: at the end of each epoch, check that every example was delivered exactly once, and
            that a stream which all workers read was the same on all of them (:class:`AuditError`
            on all ranks if not). At its start, not at that of the first one only, check that
            sources with an index have the same examples on all ranks, and that sources with shards
            to deal out begin with the same. The time it takes depends on the source; see the docs
            on checkpoints.
        trace: measure where the time of each step goes, by station, for
            :meth:`DistributedIterator.report` and :meth:`Strategy.report`. With a path the steps
            are also written as trace events, for Perfetto: ``"trace.json"`` becomes
            ``trace.dataset0.rank3.json`` and so on, a file for each dataset and rank.
        timeout: seconds that a call of ours (``iter``, ``next``) waits for another rank before it
            raises PeerTimeoutError, whatever that rank does meanwhile: reading, training, an
            evaluation, saving. Choose more than the longest pause of one rank alone. After a
            quarter of it the late rank is named in a warning. Also the seconds after which a rank
            that gives no sign of life at all is taken for lost.
    """

    auto_shard_policy: AutoShardPolicy | Literal["auto", "file", "data", "off"] = "auto"
    rebatch: Literal["split", "even", "cycle"] = "split"
    partial_batch: Literal["auto", "zero_rows", "pad"] = "auto"
    fetch_to_device: bool = True
    per_replica_buffer_size: int = 1
    replication_mode: Literal["per_worker", "per_replica"] = "per_worker"
    cp_dim: str | None = None
    cp_columns: Mapping[Any, int] | Sequence[Any] | None = None
    audit: bool = False
    trace: bool | str | os.PathLike[str] = False
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        """Normalise the names and refuse what has no meaning."""
        policy = parse_enum(AutoShardPolicy, self.auto_shard_policy, "auto_shard_policy")
        object.__setattr__(self, "auto_shard_policy", policy)
        rebatch = parse_enum(Rebatch, self.rebatch, "rebatch")
        object.__setattr__(self, "rebatch", rebatch.value)
        partial = parse_enum(PartialBatch, self.partial_batch, "partial_batch")
        object.__setattr__(self, "partial_batch", partial.value)
        mode = parse_enum(ReplicationMode, self.replication_mode, "replication_mode")
        object.__setattr__(self, "replication_mode", mode.value)
        for name in ("fetch_to_device", "audit"):
            if not isinstance(getattr(self, name), bool):
                msg = f"{name} must be True or False, got {getattr(self, name)!r}."
                raise TypeError(msg)
        object.__setattr__(self, "cp_columns", _check_columns(self.cp_columns, self.cp_dim))
        object.__setattr__(self, "trace", _check_trace(self.trace))
        size = check_count("per_replica_buffer_size", self.per_replica_buffer_size, minimum=0)
        object.__setattr__(self, "per_replica_buffer_size", size)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            msg = f"timeout must be a number of seconds, got {self.timeout!r}."
            raise TypeError(msg)
        if not self.timeout > 0:
            msg = f"timeout must be more than 0 seconds, got {self.timeout!r}."
            raise ValueError(msg)


def _check_trace(trace: object) -> bool | str:
    """True or False, or a path as text."""
    if isinstance(trace, bool):
        return trace
    if isinstance(trace, (str, os.PathLike)):
        path = str(os.fspath(trace))
        if os.path.basename(path) not in ("", ".", ".."):  # noqa: PTH119 - a Path drops the slash
            return path
    msg = f'trace must be True, False or the path of a file, as "trace.json", got {trace!r}.'
    raise TypeError(msg)


def _check_columns(columns: object, cp_dim: object) -> dict[Any, int] | None:
    """The dimension along which each column is cut; None where all that have one are."""
    if cp_dim is not None and not isinstance(cp_dim, str):
        msg = f"cp_dim must be the name of a dimension of the mesh, got {cp_dim!r}."
        raise TypeError(msg)
    if columns is None:
        return None
    if cp_dim is None:
        msg = (
            f"cp_columns names what is cut over cp_dim, got {columns!r} without cp_dim. Pass both, "
            "or neither."
        )
        raise ValueError(msg)
    if isinstance(columns, str) or not isinstance(columns, (Mapping, Sequence)) or not columns:
        msg = (
            "cp_columns must be keys of a batch, or a mapping of them to dimensions, got "
            f'{columns!r}. Write for example cp_columns=("input_ids", "labels").'
        )
        raise TypeError(msg)
    dims = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, 1)
    return {
        key: check_count(f"the dimension of {key!r} in cp_columns", dim, minimum=1)
        for key, dim in dims.items()
    }


def check_options(options: object) -> InputOptions:
    """Return the options, or those that hold where none were given."""
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        msg = (
            f"options must be an InputOptions, got {options!r:.80}. Write for example "
            'InputOptions(auto_shard_policy="file").'
        )
        raise TypeError(msg)
    return options


def check_flag(name: str, value: object) -> bool:
    """Return a bool, or say what came instead: ``"no"`` and 100 would be taken for True."""
    if not isinstance(value, (bool, np.bool_)):
        msg = f"{name} must be True or False, got {value!r:.80} of type {type(value).__name__}."
        raise TypeError(msg)
    return bool(value)


def check_function(name: str, value: object, parameter: str) -> None:
    """Refuse what cannot be called, where it is given rather than where it would be called."""
    if not callable(value):
        msg = (
            f"{name} must be a function of {parameter}, got {value!r:.80} of type "
            f"{type(value).__name__}."
        )
        raise TypeError(msg)


def check_count(name: str, value: object, *, minimum: int) -> int:
    """Return a whole number of at least ``minimum``, or say what came instead."""
    index = getattr(type(value), "__index__", None)
    if isinstance(value, bool) or index is None:
        msg = f"{name} must be a whole number, got {value!r:.80} of type {type(value).__name__}."
        raise TypeError(msg)
    number = int(index(value))
    if number < minimum:
        msg = f"{name} must be at least {minimum}, got {number}."
        raise ValueError(msg)
    return number
