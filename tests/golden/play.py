"""One case through the public API: what each worker saw, in the words of the recording.

Every kind has one function that a worker runs with its strategy. An error is part of what is seen,
never a reason to stop: whoever fails, the others are asked for their answer, too.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch_distinput as tdi
from tests.golden import calls, facts, sources
from tests.golden.errors import describe
from tests.golden.values import Json, encode, encode_spec

TIMEOUT = 30.0
"""Seconds that a call may wait for another worker before the case counts as failed."""


def play(case: Json, *, gloo: bool = False) -> list[Json]:
    """Play a case on all its workers, simulated or as processes; one observation for each."""
    if case["kind"] in calls.STATIC:
        return [calls.STATIC[case["kind"]](case)]
    with tempfile.TemporaryDirectory() as folder:
        sources.write_files(case, Path(folder))
        return _launch(case, functools.partial(observe, case, Path(folder)), gloo=gloo)


def _launch(case: Json, worker: Callable[[tdi.Strategy], Json], *, gloo: bool) -> list[Json]:
    replicas = facts.replicas_per_worker(case)
    kind = case["cluster"]["strategy"]
    if kind == "one_device":
        return [worker(tdi.OneDeviceStrategy("cpu"))]
    if kind == "mirrored":
        return [worker(tdi.MirroredStrategy(["cpu"] * replicas))]
    workers = facts.num_workers(case)
    if gloo:
        return tdi.testing.run_ranks(
            worker, workers, replicas_per_worker=replicas, timeout=2 * TIMEOUT
        )
    return tdi.testing.simulate(worker, num_workers=workers, replicas_per_worker=replicas)


def observe(case: Json, folder: Path, strategy: tdi.Strategy) -> Json:
    """What one worker sees; an error that nothing else has caught is part of it."""
    seen: Json = {"num_replicas_in_sync": strategy.num_replicas_in_sync}
    try:
        if case["kind"] in facts.ITERATION:
            _iterate(case, folder, strategy, seen)
        elif case["kind"] in _LOOPS:
            dataset = _dataset(case, folder, strategy, seen)
            seen.update(_LOOPS[case["kind"]](case, dataset, strategy))
        else:
            seen.update(calls.CALLS[case["kind"]](case, strategy))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what the worker saw
        seen["error"] = describe(error)
    return seen


# ---- datasets


def _dataset(case: Json, folder: Path, strategy: tdi.Strategy, seen: Json) -> Any:
    """Distribute a case's program; a dataset_fn's contexts go to ``seen``."""
    options = _options(case)
    if case["kind"] == "from_function":
        contexts = seen.setdefault("contexts", [])

        def dataset_fn(context: tdi.InputContext) -> Any:
            contexts.append(calls.describe_context(context))
            return sources.replica_batches(case, context)

        return strategy.distribute_datasets_from_function(dataset_fn, options)
    how = sources.distribution(case, folder)
    dataset = strategy.distribute_dataset(how.source, **how.arguments, options=options)
    return _Pinned(dataset) if how.pins_epoch else dataset


class _Pinned:
    """A dataset whose every iteration is epoch 0: ``reshuffle_each_iteration=False``."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        self._dataset.set_epoch(0)
        return iter(self._dataset)


def _options(case: Json) -> tdi.InputOptions:
    recorded = case.get("input_options", {})
    given = {name.removeprefix("experimental_"): value for name, value in recorded.items()}
    given.pop("place_dataset_on_device", None)
    return tdi.InputOptions(
        auto_shard_policy=tdi.AutoShardPolicy(facts.policy(case).lower()),
        rebatch="cycle" if facts.cycles(case) else "split",
        timeout=TIMEOUT,
        **given,
    )


def _iterate(case: Json, folder: Path, strategy: tdi.Strategy, seen: Json) -> None:
    how = case["iterate"]
    dataset = _dataset(case, folder, strategy, seen)
    types: set[str] = set()
    iterator: Any = None
    seen["epochs"] = []
    for _ in range(how.get("epochs", 1)):
        if iterator is None or not how.get("reuse_iterator"):
            iterator = iter(dataset)
        epoch = _epoch(iterator, how, strategy, types)
        seen["epochs"].append(epoch)
        if epoch["end"]["event"] == "error":
            return
    seen["value_types"] = sorted(types) or None
    seen["iterator_element_spec"] = _spec(iterator)
    iterator.close()
    # Of a dataset that was never iterated: the spec is then agreed on by itself.
    seen["element_spec"] = _spec(_dataset(case, folder, strategy, {}))


def _spec(owner: Any) -> Json:
    try:
        return encode_spec(owner.element_spec)
    except Exception as error:  # noqa: BLE001  # as in observe()
        return {"error": describe(error)}


def _epoch(iterator: Any, how: Json, strategy: tdi.Strategy, types: set[str]) -> Json:
    if how["mode"] == "optional":
        return _optional_epoch(iterator, how, strategy, types)
    call = iterator.get_next if how["mode"] == "get_next" else iterator.__next__
    epoch: Json = {"steps": [], "end": {"event": "steps_done"}}
    while len(epoch["steps"]) != how.get("steps"):
        try:
            step = call()
        except StopIteration:
            epoch["end"] = {"event": "StopIteration"}
            break
        except Exception as error:  # noqa: BLE001  # as in observe()
            epoch["end"] = {"event": "error", "error": describe(error)}
            break
        epoch["steps"].append(_step(step, strategy, types))
    if "past_end" in how:
        epoch["past_end"] = [_name_of_error(call) for _ in range(how["past_end"])]
    return epoch


def _optional_epoch(iterator: Any, how: Json, strategy: tdi.Strategy, types: set[str]) -> Json:
    epoch: Json = {"steps": [], "has_value": [], "end": {"event": "steps_done"}}
    for _ in range(how["steps"]):
        step = iterator.get_next_as_optional()
        epoch["has_value"].append(step.has_value())
        if step.has_value():
            epoch["steps"].append(_step(step.get_value(), strategy, types))
        elif how.get("get_value_on_empty"):
            try:
                step.get_value()
            except Exception as error:  # noqa: BLE001  # as in observe()
                epoch["empty_get_value_error"] = describe(error)
    return epoch


def _step(step: Any, strategy: tdi.Strategy, types: set[str]) -> list[Json]:
    types.update(calls.leaf_types(step))
    return [encode(value) for value in strategy.local_results(step)]


def _name_of_error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # its name is what is compared
        return type(error).__name__
    return "none"


# ---- loops that TensorFlow's users write


def _sum(strategy: tdi.Strategy, step: Any) -> int:
    summed = strategy.run(lambda batch: batch.sum(), args=(step,))
    return int(strategy.reduce("sum", summed, axis=None))


def _iterate_in_function(case: Json, dataset: Any, strategy: tdi.Strategy) -> Json:
    sums = [_sum(strategy, step) for step in dataset]
    return {"total": sum(sums), "steps": len(sums)}


def _host_loop(case: Json, dataset: Any, strategy: tdi.Strategy) -> Json:
    iterator = iter(dataset)

    def call() -> list[int]:
        sums = []
        for _ in range(case["steps_per_loop"]):
            step = iterator.get_next_as_optional()
            if not step.has_value():
                break
            sums.append(_sum(strategy, step.get_value()))
        return [sum(sums), len(sums)]

    return {"calls": [call() for _ in range(case["calls"])]}


def _next_in_replica_context(case: Json, dataset: Any, strategy: tdi.Strategy) -> Json:
    iterator = iter(dataset)
    strategy.run(lambda: next(iterator))
    return {}


_LOOPS: dict[str, Callable[[Json, Any, tdi.Strategy], Json]] = {
    "iterate_in_function": _iterate_in_function,
    "host_loop_optional": _host_loop,
    "next_in_replica_context": _next_in_replica_context,
}
