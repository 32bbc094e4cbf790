"""Rules that need the program to know what TensorFlow did not deliver. See ``rules``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from tests.golden import facts
from tests.golden.errors import UNFIT_BATCH
from tests.golden.expected import each_epoch, failing, retyped
from tests.golden.programs import Env, env_of, file_records, run
from tests.golden.values import Json, encode, leaves, sliced


def _batches(case: Json, num_pipelines: int, index: int) -> Iterator[Json]:
    """The batches that ``dataset_fn`` gives one of the input pipelines."""
    values = {
        "$num_input_pipelines": num_pipelines,
        "$input_pipeline_id": index,
        "$num_replicas_in_sync": facts.num_in_sync(case),
    }

    def resolve(name: str) -> int:
        word, _, size = name.partition(":")
        return int(size) // facts.num_in_sync(case) if size else values[word]

    return map(encode, run(case["pipeline"], Env(files=file_records(case), resolve=resolve))())


def _scalars_are_refused(case: Json) -> Json:
    """By the workers that read one; the others are told."""
    specs = [leaf for seen in case["expected"] for leaf in leaves(seen.get("element_spec", _NONE))]
    scalars = any(leaf.get("per_replica", [leaf])[0].get("s") == [] for leaf in specs)
    if case["kind"] not in facts.ITERATION or not scalars:
        return case
    workers = facts.num_workers(case)
    if case["kind"] == "from_function":
        have = [
            next(_batches(case, workers, worker), None) is not None for worker in range(workers)
        ]
    else:
        have = [next(run(case["pipeline"], env_of(case))(), None) is not None] * workers
    if not any(have):
        return case
    failed = failing(case, UNFIT_BATCH)["expected"]
    told = failing(case, ("PeerFailedError",))["expected"]
    return {**case, "expected": [f if h else t for f, t, h in zip(failed, told, have, strict=True)]}


_NONE: Json = {"tuple": []}


def _is_per_replica(case: Json) -> bool:
    mode = case.get("input_options", {}).get("experimental_replication_mode")
    return bool(case["kind"] == "from_function" and mode == "PER_REPLICA")


def _static_tail_is_delivered(case: Json) -> Json:
    """With static shapes on one worker, TensorFlow loses a last step that lacks a replica."""
    seen = case["expected"][0]
    if (
        case["kind"] != "from_function"
        or _is_per_replica(case)
        or facts.num_workers(case) > 1
        or seen.get("partial_batch_handling") is not False
        or seen.get("cardinality") == -1
        or case["iterate"]["mode"] == "optional"
    ):
        return case
    replicas = facts.replicas_per_worker(case)

    def whole(epoch: Json) -> Json:
        if epoch["end"]["event"] == "steps_done":
            return epoch
        batches = list(_batches(case, 1, 0))
        if not batches:
            return epoch
        tail = batches[len(epoch["steps"]) * replicas :]
        empty = [sliced(batches[0], 0, 0)] * (-len(tail) % replicas)
        return {**epoch, "steps": [*epoch["steps"], *([[*tail, *empty]] if tail else [])]}

    return retyped(each_epoch(case, whole))


def _per_replica_with_workers(case: Json) -> Json:
    """TensorFlow calls dataset_fn for each replica with one worker only."""
    workers, replicas = facts.num_workers(case), facts.replicas_per_worker(case)
    if not _is_per_replica(case) or workers == 1:
        return case
    in_sync = facts.num_in_sync(case)
    columns = [list(_batches(case, in_sync, index)) for index in range(in_sync)]
    empty = sliced(next(column[0] for column in columns if column), 0, 0)
    steps = list(zip_longest(*columns, fillvalue=empty))

    def seen(worker: int) -> Json:
        mine = range(worker * replicas, (worker + 1) * replicas)
        epoch = {
            "steps": [[step[index] for index in mine] for step in steps],
            "end": {"event": "StopIteration"},
        }
        contexts = [_context(in_sync, index) for index in mine]
        return {"num_replicas_in_sync": in_sync, "contexts": contexts, "epochs": [epoch]}

    return {**case, "expected": [seen(worker) for worker in range(workers)]}


def _context(in_sync: int, index: int) -> Json:
    return {
        "num_input_pipelines": in_sync,
        "input_pipeline_id": index,
        "num_replicas_in_sync": in_sync,
        "str": f"tf.distribute.InputContext(input pipeline id {index}, total: {in_sync})",
    }


Row = tuple[str, str, Callable[[Json], Json]]

SCALARS: Row = (
    "scalars are refused",
    "a leaf without rows cannot be empty (Zero rows)",
    _scalars_are_refused,
)

FROM_FUNCTION: tuple[Row, ...] = (
    (
        "static tail is delivered",
        "no example is lost when shapes are static",
        _static_tail_is_delivered,
    ),
    (
        "per replica with workers",
        "replication_mode='per_replica' has a meaning on any cluster (Steps)",
        _per_replica_with_workers,
    ),
)
