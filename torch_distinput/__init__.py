"""Distributed input for PyTorch, after TensorFlow's tf.distribute.

State the *global* batch size, hand over the data, and train: every example reaches exactly one
replica once per epoch, and all ranks make the same number of steps.

    source -> shard -> batch / rebatch -> end-of-data agreement -> device prefetch -> per replica
    |---------- data ----------------|    |----- cluster -----|    |--- device ---|   distribute
    |------------------------- plan: who gets what, integers only ------------------------------|

Each folder does a part of that and imports only what lies below it. What not every
script needs (files, the test kit) is imported when it is asked for.
"""

import importlib as _importlib
import typing as _typing

from torch_distinput import errors
from torch_distinput.cluster.data_parallel_group import form_data_parallel_group
from torch_distinput.cluster.launch import init_distributed
from torch_distinput.data.batch.collate import collate
from torch_distinput.data.user_sources.sequences.buckets import bucket
from torch_distinput.data.user_sources.sequences.mixture import mix, schedule
from torch_distinput.data.user_sources.sequences.packing import pack
from torch_distinput.data.user_sources.sequences.padded_cost import PaddedCost
from torch_distinput.data.user_sources.sequences.token_budget import TokenBudget
from torch_distinput.distribute.creator import DatasetCreator
from torch_distinput.distribute.dataset import DistributedDataset
from torch_distinput.distribute.iterator import DistributedIterator
from torch_distinput.distribute.replicas.replica import ReplicaContext, get_replica_context
from torch_distinput.distribute.steps.groups import StepGroup, accumulate
from torch_distinput.distribute.steps.loss import compute_average_loss
from torch_distinput.distribute.steps.step import Step
from torch_distinput.distribute.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
)
from torch_distinput.distribute.strategy import Strategy, get_strategy
from torch_distinput.errors import (
    AuditError,
    ClosureCancelledError,
    ConfigurationError,
    DistinputError,
    MismatchError,
    PeerFailedError,
    PeerTimeoutError,
    ServerLostError,
    SourceError,
    TooFewFilesError,
    UsageError,
    WorkerLostError,
)
from torch_distinput.options import AutoShardPolicy, InputOptions, ReduceOp
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.plan.assignment.topology import InputContext, Topology, ValueContext
from torch_distinput.values import (
    BalanceStats,
    InputStats,
    OptionalStep,
    PerReplica,
    ReplayedStep,
    StepInfo,
    TensorSpec,
)

if _typing.TYPE_CHECKING:
    from torch_distinput import coordinator, integrations, preprocessing, readers, testing
    from torch_distinput.data.building_blocks import DataShardDataset, FileShardDataset
    from torch_distinput.data.files.dataset import FileDataset
    from torch_distinput.data.sources.sequences.document_bounds import cu_seqlens, document_mask
    from torch_distinput.data.sources.sequences.pad_collate import pad_collate
    from torch_distinput.data.steps.rebatch_sampler import RebatchSampler
    from torch_distinput.distribute.reports.rank_times import RankTimes
    from torch_distinput.distribute.reports.run_report import RunReport
    from torch_distinput.distribute.reports.verdict import InputVerdict

    __version__: str

__all__ = [
    "AuditError",
    "AutoShardPolicy",
    "BalanceStats",
    "ClosureCancelledError",
    "ConfigurationError",
    "DataShardDataset",
    "DatasetCreator",
    "DistinputError",
    "DistributedDataset",
    "DistributedIterator",
    "FileDataset",
    "FileShardDataset",
    "InputContext",
    "InputOptions",
    "InputStats",
    "InputVerdict",
    "MirroredStrategy",
    "MismatchError",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "OptionalStep",
    "PackedStrings",
    "PaddedCost",
    "PeerFailedError",
    "PeerTimeoutError",
    "PerReplica",
    "RankTimes",
    "RebatchSampler",
    "ReduceOp",
    "ReplayedStep",
    "ReplicaContext",
    "RunReport",
    "ServerLostError",
    "SourceError",
    "Step",
    "StepGroup",
    "StepInfo",
    "Strategy",
    "TPUStrategy",
    "TensorSpec",
    "TokenBudget",
    "TooFewFilesError",
    "Topology",
    "UsageError",
    "ValueContext",
    "WorkerLostError",
    "accumulate",
    "bucket",
    "collate",
    "compute_average_loss",
    "coordinator",
    "cu_seqlens",
    "document_mask",
    "errors",
    "form_data_parallel_group",
    "get_replica_context",
    "get_strategy",
    "init_distributed",
    "integrations",
    "mix",
    "pack",
    "pad_collate",
    "preprocessing",
    "readers",
    "schedule",
    "testing",
]

_LATE = {
    "DataShardDataset": "data.building_blocks",
    "FileDataset": "data.files.dataset",
    "FileShardDataset": "data.building_blocks",
    "InputVerdict": "distribute.reports.verdict",
    "RankTimes": "distribute.reports.rank_times",
    "RebatchSampler": "data.steps.rebatch_sampler",
    "RunReport": "distribute.reports.run_report",
    "cu_seqlens": "data.sources.sequences.document_bounds",
    "document_mask": "data.sources.sequences.document_bounds",
    "pad_collate": "data.sources.sequences.pad_collate",
}
_LATE_MODULES = ("coordinator", "integrations", "preprocessing", "readers", "testing")


def __getattr__(name: str) -> _typing.Any:
    """Import what is asked for the first time."""
    if name == "__version__":
        version = _importlib.import_module("torch_distinput.version")
        value = globals()[name] = version.find_version()
        return value
    if name in _LATE_MODULES:
        return _importlib.import_module(f"torch_distinput.{name}")
    if name not in _LATE:
        msg = f"module 'torch_distinput' has no attribute {name!r}"
        raise AttributeError(msg)
    module = _importlib.import_module(f"torch_distinput.{_LATE[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """The public names, whether they are imported yet or not."""
    return sorted({*__all__, "__version__"})
