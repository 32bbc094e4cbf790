"""What TensorFlow decided about a recorded program: who reads what, and which splitter.

Pure functions of a case. The rules they state are TensorFlow 2.21's, not ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.golden.values import Json

ITERATION = ("distribute_dataset", "from_function")
"""Kinds whose observations hold epochs of steps."""

PASSIVE = {"cache", "prefetch", "assert_cardinality", "policy"}
"""Ops that change no record."""

PASSABLE = {
    *PASSIVE,
    *("map", "filter", "batch", "padded_batch", "ragged_batch", "unbatch", "rebatch"),
    *("shuffle", "repeat", "take", "skip", "shard"),
}
"""Ops through which TensorFlow finds the reader before them."""


def num_workers(case: Json) -> int:
    """Processes in the cluster; static kinds have one."""
    return int(case.get("cluster", {}).get("workers", 1))


def replicas_per_worker(case: Json) -> int:
    """Devices of each process."""
    return int(case.get("cluster", {}).get("replicas_per_worker", 1))


def num_in_sync(case: Json) -> int:
    """Replicas over all workers."""
    return num_workers(case) * replicas_per_worker(case)


def policy(case: Json) -> str:
    """The auto-shard policy; set anywhere in the pipeline, the latest wins."""
    values = [op["value"] for op in case["pipeline"] if op["op"] == "policy"]
    return str(values[-1]) if values else "AUTO"


def active(case: Json) -> list[Any]:
    """The ops that change records."""
    return [op for op in case["pipeline"] if op["op"] not in PASSIVE]


def ops(pipeline: Sequence[Any]) -> list[Any]:
    """All ops of a pipeline, those of its inputs included."""
    inputs = [other for op in pipeline for other in op.get("others", ())]
    inputs += [op["other"] for op in pipeline if "other" in op]
    return [*pipeline, *(op for other in inputs for op in ops(other))]


def reads_files(pipeline: Sequence[Any]) -> bool:
    """Whether records come out of files anywhere in the program."""
    return any("reader" in op or op["op"] in ("text_lines", "tfrecords") for op in ops(pipeline))


def deals_files(case: Json) -> bool:
    """Whether TensorFlow deals out this program's files (FILE, or AUTO that succeeds)."""
    return policy(case) in ("FILE", "AUTO") and finds_reader(case["pipeline"])


def finds_reader(pipeline: Sequence[Any]) -> bool:
    """Whether TensorFlow gets from the last op back to a reader on every path."""
    for op in reversed(pipeline):
        if op["op"] in ("zip", "concatenate"):
            others = op.get("others") or [op["other"]]
            if not all(finds_reader(other) for other in others):
                return False
        elif "reader" in op or op["op"] in ("text_lines", "tfrecords"):
            return True
        elif op["op"] not in PASSABLE:
            return False
    return False


def deals_pieces(case: Json) -> bool:
    """Whether TensorFlow deals out the pieces of each global batch (DATA, or AUTO instead)."""
    chosen = policy(case)
    return chosen == "DATA" or (chosen == "AUTO" and not finds_reader(case["pipeline"]))


def inferred_batch_size(case: Json) -> int | None:
    """The global batch size that TensorFlow found in the program; None where it did not."""
    for seen in case["expected"]:
        if "inferred_batch_size" in seen:
            size = seen["inferred_batch_size"]
            return size if isinstance(size, int) and size > 0 else None
    return None


def cycles(case: Json) -> bool:
    """Whether TensorFlow used its second splitter, in which records flow across batch borders."""
    if num_in_sync(case) == 1 or inferred_batch_size(case) is None:
        return False
    return not deals_pieces(case)
