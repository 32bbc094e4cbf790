"""Cases without a meaning here: one table of rules, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.golden import facts
from tests.golden.values import Json


@dataclass(frozen=True, slots=True)
class Skip:
    """A case to which ``applies`` is not played."""

    name: str
    reason: str
    applies: Callable[[Json], bool]


def _of_kind(*kinds: str) -> Callable[[Json], bool]:
    return lambda case: case["kind"] in kinds


def _hint(case: Json) -> bool:
    return any(
        op["op"] == "shard_hint" or op.get("value") == "HINT" for op in case.get("pipeline", ())
    )


def _placed_on_device(case: Json) -> bool:
    return bool(case.get("input_options", {}).get("experimental_place_dataset_on_device"))


def _half_sharded_zip(case: Json) -> bool:
    """AUTO over a zip of which one input reads files and another does not."""
    pipeline = case.get("pipeline", ())
    mixed = any(
        op["op"] == "zip" and not all(facts.reads_files(other) for other in op["others"])
        for op in pipeline
    )
    return mixed and facts.reads_files(pipeline) and facts.policy(case) == "AUTO"


def _records_dealt_as_files(case: Json) -> bool:
    """FILE with a flat_map that reads nothing after the reader."""
    pipeline = case.get("pipeline", ())
    inner = any(op["op"] == "flat_map_identity" for op in pipeline)
    return inner and facts.reads_files(pipeline) and facts.policy(case) in ("FILE", "AUTO")


def _crash(case: Json) -> bool:
    died = any(seen.get("error", {}).get("type") == "ProcessDied" for seen in case["expected"])
    return died and case.get("quirk", "").startswith("TF bug")


SKIPS = (
    Skip("hint", "no HINT policy: dataset_fn gets an InputContext to shard by", _hint),
    Skip(
        "graph mode",
        "TensorFlow only: what tf.function cannot trace",
        _of_kind("enumerate_in_function"),
    ),
    Skip(
        "tf.data's own",
        "TensorFlow only: Dataset.rebatch, the inference of a batch size, Dataset.reduce",
        _of_kind("rebatch", "compute_batch_size", "dataset_reduce"),
    ),
    Skip(
        "default strategy",
        "TensorFlow only: without a strategy there is nothing to distribute",
        _of_kind("default_strategy"),
    ),
    Skip(
        "dataset on a device",
        "TensorFlow only: experimental_place_dataset_on_device",
        _placed_on_device,
    ),
    Skip(
        "half-sharded zip",
        "TensorFlow bug: AUTO deals out one input of a zip, then the rest, and loses records",
        _half_sharded_zip,
    ),
    Skip(
        "records dealt as files",
        "TensorFlow quirk: a flat_map after the reader makes FILE deal out records",
        _records_dealt_as_files,
    ),
    Skip(
        "iterator state",
        "TensorFlow cannot save an iterator: there is no recording to compare with",
        _of_kind("save_iterator"),
    ),
    Skip("crash", "TensorFlow bug: a collective of empty tensors kills the process", _crash),
)


def skip_rule(case: Json) -> Skip | None:
    """The first rule by which a case is not played."""
    return next((rule for rule in SKIPS if rule.applies(case)), None)
