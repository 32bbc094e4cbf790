"""Kinds that are single calls: values, contexts, reduce, gather, and what stands on its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import torch_distinput as tdi
from tests.golden.errors import describe
from tests.golden.values import Json, decode, encode


def leaf_types(value: Any) -> Iterator[str]:
    """How the leaves of a step are wrapped, by TensorFlow's names."""
    if isinstance(value, tdi.PerReplica):
        yield "PerReplica"
    elif isinstance(value, tuple):
        for item in value:
            yield from leaf_types(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaf_types(item)
    else:
        yield "EagerTensor"


def _results(strategy: tdi.Strategy, value: Any) -> list[Json]:
    return [encode(result) for result in strategy.local_results(value)]


def _distributed(strategy: tdi.Strategy, values: list[Json]) -> Any:
    """Recorded values, one for each replica in sync, as a value of this worker's replicas."""
    return strategy.distribute_values_from_function(
        lambda context: decode(values[context.replica_id_in_sync_group])
    )


# ---- values from a function


def _raise_on_1(context: tdi.ValueContext) -> Any:
    if context.replica_id_in_sync_group == 1:
        raise KeyError("boom")
    return context.replica_id_in_sync_group


def _int32(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int32)


_VALUE_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "replica_id": lambda c: _int32(c.replica_id_in_sync_group),
    "num_replicas": lambda c: c.num_replicas_in_sync,
    "ratio": lambda c: c.replica_id_in_sync_group / c.num_replicas_in_sync,
    "vector": lambda c: torch.arange(c.replica_id_in_sync_group + 1, dtype=torch.int32),
    "const": lambda c: torch.tensor(7.0),
    "py_const": lambda c: 5,
    "numpy": lambda c: np.array([3.0, 2.0, 1.0, 0.0])[c.replica_id_in_sync_group],
    "dict": lambda c: {
        "a": _int32(c.replica_id_in_sync_group),
        "b": (torch.tensor([1.0, 2.0]) * c.replica_id_in_sync_group,),
    },
    "string": lambda c: f"r{c.replica_id_in_sync_group}",
    "none": lambda c: None,
    "raise_on_1": _raise_on_1,
}

_RUN_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"identity": lambda x: x, "mul2": lambda x: x * 2}


def _values_from_function(case: Json, strategy: tdi.Strategy) -> Json:
    value = strategy.distribute_values_from_function(_VALUE_FUNCTIONS[case["fn"]])
    types = sorted(set(leaf_types(value)))
    seen: Json = {
        "type": {"structure": types} if isinstance(value, dict) else types[0],
        "local_results": _results(strategy, value),
    }
    if "run" in case:
        results = strategy.run(_RUN_FUNCTIONS[case["run"]], args=(value,))
        seen["run_results"] = _results(strategy, results)
    return seen


# ---- replica contexts


def _replica_context() -> Any:
    context = tdi.get_replica_context()
    assert context is not None, "run() gives each replica its context"
    return context


def _run_replica_ids(case: Json, strategy: tdi.Strategy) -> Json:
    def facts() -> tuple[int, int]:
        context = _replica_context()
        return int(context.replica_id_in_sync_group), context.num_replicas_in_sync

    ids, numbers = zip(*strategy.local_results(strategy.run(facts)), strict=True)
    return {"ids": list(ids), "num": list(numbers)}


def _contexts(case: Json, strategy: tdi.Strategy) -> Json:
    def facts() -> str:
        current, replica = tdi.get_strategy(), tdi.get_replica_context()
        described = {
            "has_strategy": current is not None,
            "in_cross_replica_context": current is not None and replica is None,
            "replica_context_is_none": replica is None,
            "get_strategy_is_this": current is strategy,
        }
        return json.dumps(described)

    outside = facts()
    with strategy.scope():
        inside = facts()
    (in_run,) = set(strategy.local_results(strategy.run(facts)))
    places = {"outside": outside, "scope": inside, "run": in_run}
    return {"contexts_seen": {place: json.loads(text) for place, text in places.items()}}


def _merge_call(case: Json, strategy: tdi.Strategy) -> Json:
    def summed(current: tdi.Strategy, value: Any) -> Any:
        return current.reduce("sum", value, axis=None)

    def replica() -> Any:
        context = _replica_context()
        number = torch.tensor(float(context.replica_id_in_sync_group) + 1)
        return context.merge_call(summed, args=(number,))

    return {"local_results": _results(strategy, strategy.run(replica))}


def _all_reduce(case: Json, strategy: tdi.Strategy) -> Json:
    def replica(value: torch.Tensor) -> Any:
        return _replica_context().all_reduce(case["reduce_op"], value)

    value = _distributed(strategy, case["values"])
    return {"local_results": _results(strategy, strategy.run(replica, args=(value,)))}


def _all_gather(case: Json, strategy: tdi.Strategy) -> Json:
    def replica(value: torch.Tensor) -> Any:
        return _replica_context().all_gather(value, axis=case["axis"])

    value = _distributed(strategy, case["values"])
    return {"local_results": _results(strategy, strategy.run(replica, args=(value,)))}


def _reduce_in_replica_context(case: Json, strategy: tdi.Strategy) -> Json:
    strategy.run(lambda: strategy.reduce("sum", torch.tensor(1.0), axis=None))
    return {}


def _gather_in_replica_context(case: Json, strategy: tdi.Strategy) -> Json:
    strategy.run(lambda: strategy.gather(torch.tensor([1.0]), axis=0))
    return {}


def _run_bad_args(case: Json, strategy: tdi.Strategy) -> Json:
    not_a_sequence: Any = torch.tensor(1.0)
    strategy.run(lambda value: value, args=not_a_sequence)
    return {}


# ---- over all replicas in sync


def _reduce(case: Json, strategy: tdi.Strategy) -> Json:
    if "value" in case:
        value = decode(case["value"])
    else:
        value = _distributed(strategy, case["values"])
    axis = tuple(case["axis"]) if isinstance(case["axis"], list) else case["axis"]
    return {"result": encode(strategy.reduce(case["reduce_op"], value, axis=axis))}


def _gather(case: Json, strategy: tdi.Strategy) -> Json:
    value = _distributed(strategy, case["values"])
    return {"result": encode(strategy.gather(value, axis=case["axis"]))}


CALLS: dict[str, Callable[[Json, tdi.Strategy], Json]] = {
    "values_from_function": _values_from_function,
    "run_replica_ids": _run_replica_ids,
    "contexts": _contexts,
    "merge_call": _merge_call,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce": _reduce,
    "reduce_plain": _reduce,
    "gather": _gather,
    "reduce_in_replica_context": _reduce_in_replica_context,
    "gather_in_replica_context": _gather_in_replica_context,
    "run_bad_args": _run_bad_args,
}


# ---- without a cluster


def describe_context(context: tdi.InputContext) -> Json:
    """An InputContext as it is recorded."""
    return {
        "num_input_pipelines": context.num_input_pipelines,
        "input_pipeline_id": context.input_pipeline_id,
        "num_replicas_in_sync": context.num_replicas_in_sync,
        "str": str(context),
    }


def _input_context(case: Json) -> Json:
    def row(fields: Json, size: int) -> Json:
        context = tdi.InputContext(**fields)
        try:
            per_replica = context.get_per_replica_batch_size(size)
        except ValueError as error:
            return {"error": describe(error)}
        return {**describe_context(context), "per_replica_batch_size": per_replica}

    return {"rows": [row(*entry) for entry in case["grid"]]}


def _value_context(case: Json) -> Json:
    def row(fields: Json) -> Json:
        context = tdi.ValueContext(**fields)
        return {
            "replica_id_in_sync_group": context.replica_id_in_sync_group,
            "num_replicas_in_sync": context.num_replicas_in_sync,
            "str": str(context),
        }

    return {"rows": [row(fields) for fields in case["grid"]]}


def _batch_sizes(case: Json) -> Json:
    """Sizes of the pieces that each worker plays of one full batch of its own."""
    return {"sizes": [_sizes_of_pieces(*entry) for entry in case["grid"]]}


def _sizes_of_pieces(size: int, workers: int, replicas: int) -> list[list[int]]:
    def worker(strategy: tdi.Strategy) -> list[int]:
        options = tdi.InputOptions(auto_shard_policy="off", rebatch="cycle")
        dataset = strategy.distribute_dataset(
            torch.arange(size), global_batch_size=size, options=options
        )
        iterator = iter(dataset)
        return [rows for _ in iterator for rows in iterator.last_step.local_counts]

    return tdi.testing.simulate(worker, num_workers=workers, replicas_per_worker=replicas)


def _option_defaults(case: Json) -> Json:
    def described(options: tdi.InputOptions) -> Json:
        return {
            "fetch_to_device": options.fetch_to_device,
            "replication_mode": options.replication_mode.upper(),
            "per_replica_buffer_size": options.per_replica_buffer_size,
        }

    defaults = tdi.InputOptions()
    return {
        "defaults": described(defaults),
        "fetch_false": described(tdi.InputOptions(fetch_to_device=False)),
        "auto_shard_policy": sorted(policy.name for policy in tdi.AutoShardPolicy),
        "default_policy": tdi.AutoShardPolicy(defaults.auto_shard_policy).name,
        "replication_modes": [
            mode.upper()
            for mode in ("per_worker", "per_replica")
            if tdi.InputOptions(replication_mode=mode).replication_mode == mode
        ],
    }


STATIC: dict[str, Callable[[Json], Json]] = {
    "input_context": _input_context,
    "value_context": _value_context,
    "batch_sizes_for_worker": _batch_sizes,
    "input_options_defaults": _option_defaults,
}
