"""Distributed input for PyTorch, after TensorFlow's tf.distribute.

State the *global* batch size, hand over the data, and train: every example reaches exactly one
replica once per epoch, and all ranks make the same number of steps.

    source -> shard -> batch / rebatch -> end-of-data agreement -> device prefetch -> per replica
    |---------- data ----------------|    |----- cluster -----|    |--- device ---|   distribute
    |------------------------- plan: who gets what, integers only ------------------------------|

Each folder does a part of that and imports only what lies below it. Every name is imported when it
is asked for: who plans an epoch imports no torch, and no script what it does not use.
"""

import gc as _gc
import importlib as _importlib
import threading as _threading
import typing as _typing

if _typing.TYPE_CHECKING:  # what follows, for who reads types: a test compares the two
    from torch_distinput import coordinator, errors, integrations, preprocessing, readers, testing
    from torch_distinput.cluster.data_parallel_group import form_data_parallel_group
    from torch_distinput.cluster.launch import init_distributed
    from torch_distinput.data.batch.collate import collate
    from torch_distinput.data.building_blocks import DataShardDataset, FileShardDataset
    from torch_distinput.data.files.dataset import FileDataset
    from torch_distinput.data.sources.sequences.document_bounds import cu_seqlens, document_mask
    from torch_distinput.data.sources.sequences.pad_collate import pad_collate
    from torch_distinput.data.steps.rebatch_sampler import RebatchSampler
    from torch_distinput.data.user_sources.sequences.buckets import bucket
    from torch_distinput.data.user_sources.sequences.mixture import mix, schedule
    from torch_distinput.data.user_sources.sequences.packing import pack
    from torch_distinput.data.user_sources.sequences.padded_cost import PaddedCost
    from torch_distinput.data.user_sources.sequences.token_budget import TokenBudget
    from torch_distinput.distribute.creator import DatasetCreator
    from torch_distinput.distribute.dataset import DistributedDataset
    from torch_distinput.distribute.iterator import DistributedIterator
    from torch_distinput.distribute.replicas.replica import ReplicaContext, get_replica_context
    from torch_distinput.distribute.reports.rank_times import RankTimes
    from torch_distinput.distribute.reports.run_report import RunReport
    from torch_distinput.distribute.reports.verdict import InputVerdict
    from torch_distinput.distribute.steps.distributed_steps import DistributedSteps
    from torch_distinput.distribute.steps.groups import StepGroup, accumulate
    from torch_distinput.distribute.steps.loss import compute_average_loss
    from torch_distinput.distribute.steps.step import Step
    from torch_distinput.distribute.strategies import (
        MirroredStrategy,
        MultiWorkerMirroredStrategy,
        OneDeviceStrategy,
        TPUStrategy,
        get_strategy,
    )
    from torch_distinput.distribute.strategy import Strategy
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
    from torch_distinput.inspect.doctor.explain import explain
    from torch_distinput.inspect.doctor.explanation import Explanation, Finding
    from torch_distinput.inspect.planner.epoch_plan import EpochPlan
    from torch_distinput.inspect.planner.planner import plan_epoch
    from torch_distinput.inspect.progress.progress import progress
    from torch_distinput.options import AutoShardPolicy, InputOptions, ReduceOp
    from torch_distinput.packed_strings import PackedStrings
    from torch_distinput.plan.assignment.topology import InputContext, Topology, ValueContext
    from torch_distinput.values import (
        BalanceStats,
        InputStats,
        OptionalStep,
        PackingStats,
        PerReplica,
        ReplayedStep,
        StepInfo,
        TensorSpec,
    )

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
    "DistributedSteps",
    "EpochPlan",
    "Explanation",
    "FileDataset",
    "FileShardDataset",
    "Finding",
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
    "PackingStats",
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
    "explain",
    "form_data_parallel_group",
    "get_replica_context",
    "get_strategy",
    "init_distributed",
    "integrations",
    "mix",
    "pack",
    "pad_collate",
    "plan_epoch",
    "preprocessing",
    "progress",
    "readers",
    "schedule",
    "testing",
]

_LATE = {
    "AuditError": "errors",
    "AutoShardPolicy": "options",
    "BalanceStats": "values",
    "ClosureCancelledError": "errors",
    "ConfigurationError": "errors",
    "DataShardDataset": "data.building_blocks",
    "DatasetCreator": "distribute.creator",
    "DistinputError": "errors",
    "DistributedDataset": "distribute.dataset",
    "DistributedIterator": "distribute.iterator",
    "DistributedSteps": "distribute.steps.distributed_steps",
    "EpochPlan": "inspect.planner.epoch_plan",
    "Explanation": "inspect.doctor.explanation",
    "FileDataset": "data.files.dataset",
    "FileShardDataset": "data.building_blocks",
    "Finding": "inspect.doctor.explanation",
    "InputContext": "plan.assignment.topology",
    "InputOptions": "options",
    "InputStats": "values",
    "InputVerdict": "distribute.reports.verdict",
    "MirroredStrategy": "distribute.strategies",
    "MismatchError": "errors",
    "MultiWorkerMirroredStrategy": "distribute.strategies",
    "OneDeviceStrategy": "distribute.strategies",
    "OptionalStep": "values",
    "PackedStrings": "packed_strings",
    "PackingStats": "values",
    "PaddedCost": "data.user_sources.sequences.padded_cost",
    "PeerFailedError": "errors",
    "PeerTimeoutError": "errors",
    "PerReplica": "values",
    "RankTimes": "distribute.reports.rank_times",
    "RebatchSampler": "data.steps.rebatch_sampler",
    "ReduceOp": "options",
    "ReplayedStep": "values",
    "ReplicaContext": "distribute.replicas.replica",
    "RunReport": "distribute.reports.run_report",
    "ServerLostError": "errors",
    "SourceError": "errors",
    "Step": "distribute.steps.step",
    "StepGroup": "distribute.steps.groups",
    "StepInfo": "values",
    "Strategy": "distribute.strategy",
    "TPUStrategy": "distribute.strategies",
    "TensorSpec": "values",
    "TokenBudget": "data.user_sources.sequences.token_budget",
    "TooFewFilesError": "errors",
    "Topology": "plan.assignment.topology",
    "UsageError": "errors",
    "ValueContext": "plan.assignment.topology",
    "WorkerLostError": "errors",
    "accumulate": "distribute.steps.groups",
    "bucket": "data.user_sources.sequences.buckets",
    "collate": "data.batch.collate",
    "compute_average_loss": "distribute.steps.loss",
    "cu_seqlens": "data.sources.sequences.document_bounds",
    "document_mask": "data.sources.sequences.document_bounds",
    "explain": "inspect.doctor.explain",
    "form_data_parallel_group": "cluster.data_parallel_group",
    "get_replica_context": "distribute.replicas.replica",
    "get_strategy": "distribute.strategies",
    "init_distributed": "cluster.launch",
    "mix": "data.user_sources.sequences.mixture",
    "pack": "data.user_sources.sequences.packing",
    "pad_collate": "data.sources.sequences.pad_collate",
    "plan_epoch": "inspect.planner.planner",
    "progress": "inspect.progress.progress",
    "schedule": "data.user_sources.sequences.mixture",
}
_LATE_MODULES = ("coordinator", "errors", "integrations", "preprocessing", "readers", "testing")
_WITHOUT_TORCH = {
    *("errors", "inspect.planner.epoch_plan", "inspect.planner.planner", "options"),
    *("plan.assignment.topology", "version"),
}


def __dir__() -> list[str]:
    """The public names, whether they are imported yet or not."""
    return sorted({*__all__, "__version__"})


def _import(module: str) -> _typing.Any:
    if module not in _WITHOUT_TORCH:
        # First, and by itself: a thread that begins with a part of torch while another one is
        # inside of torch's own import would make Python hand out half of it to both.
        _importlib.import_module("torch")
    # What a module makes stays. A garbage collection on the way would find nothing, and take 50 ms,
    # since it walks through all of torch. But another thread might fork meanwhile, and the child
    # would never collect.
    if _threading.active_count() > 1 or not _gc.isenabled():
        return _importlib.import_module(f"torch_distinput.{module}")
    _gc.disable()
    try:
        return _importlib.import_module(f"torch_distinput.{module}")
    finally:
        _gc.enable()


if not _typing.TYPE_CHECKING:  # or every misspelt name would pass for one

    def __getattr__(name: str) -> _typing.Any:
        """Import what is asked for the first time."""
        if name in _LATE_MODULES:
            return _import(name)
        if name == "__version__":
            value = _import("version").find_version()
        elif name in _LATE:
            value = getattr(_import(_LATE[name]), name)
        else:
            msg = f"module 'torch_distinput' has no attribute {name!r}"
            raise AttributeError(msg)
        globals()[name] = value
        return value
