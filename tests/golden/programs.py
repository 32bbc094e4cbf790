"""The recorded ops as a small interpreter: which records a program gives, in which order.

A stage is a function without arguments that starts the stream once more. An op takes the stage
before it and gives the next one. Records are tensors, strings, and tuples and dicts of them. There
are no workers here: a program that is dealt out by file is run with ``Env.shard``.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat
from typing import Any

import torch

from tests.golden import batches
from tests.golden.functions import function
from tests.golden.values import Json, decode

Stage = Callable[[], Iterator[Any]]
Op = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Env:
    """What a program is run in.

    Attributes:
        files: the records of each file, by name.
        shard: ``(num_shards, index)`` dealt out of the names that each reader is fed with.
        resolve: the value of a variable such as ``$input_pipeline_id``.
    """

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shard: tuple[int, int] = (1, 0)
    resolve: Callable[[str], int] = int


def env_of(case: Json, *, shard: tuple[int, int] = (1, 0)) -> Env:
    """The environment of a case's program, with the records of its files."""
    return Env(files=file_records(case), shard=shard)


def file_records(case: Json) -> dict[str, list[str]]:
    """The records of each file of a case, whatever its format."""
    files = case.get("files", {})
    return {name: file.get("lines", file.get("records")) for name, file in files.items()}


def run(pipeline: Sequence[Op], env: Env) -> Stage:
    """The stage at the end of a pipeline.

    Where names are dealt out, TensorFlow moves a shuffle of the names behind the dealing.
    """
    source, *others = pipeline
    stage = _SOURCES[source["op"]](source, env)
    dealt = env.shard != (1, 0)
    late: list[Op] = []
    for place, op in enumerate(others):
        if dealt and op["op"] == "shuffle" and any("reader" in o for o in others[place:]):
            late.append(op)
            continue
        if "reader" in op:
            stage = _dealt(stage, env)
            for shuffle in late:
                stage = _shuffle(stage, shuffle, env)
        stage = _OPS[op["op"]](stage, op, env)
    return stage


def num_files(pipeline: Sequence[Op], env: Env, *, enough: int) -> int:
    """Names that reach the reader with the fewest, counted no further than ``enough``."""
    return min(sum(1 for _ in islice(names(), enough)) for names in _names_read(pipeline, env))


def _names_read(pipeline: Sequence[Op], env: Env) -> Iterator[Stage]:
    for position, op in enumerate(pipeline):
        if op["op"] in ("text_lines", "tfrecords"):
            yield _files(op, env)
        elif "reader" in op:
            yield run(pipeline[:position], env)
        else:
            for other in (*op.get("others", ()), *([op["other"]] if "other" in op else ())):
                yield from _names_read(other, env)


# ---- sources


def _range(op: Op, env: Env) -> Stage:
    return lambda: (torch.tensor(number) for number in range(*op["args"]))


def _tensor_slices(op: Op, env: Env) -> Stage:
    value = decode(op["value"])
    return lambda: batches.rows(value)


def _from_tensors(op: Op, env: Env) -> Stage:
    value = decode(op["value"])
    return lambda: iter([value])


def _generator(op: Op, env: Env) -> Stage:
    shape = [2 if size is None else size for size in op["shape"]]
    dtype = getattr(torch, op["dtype"])
    numbers = count if op["n"] is None else lambda: range(op["n"])
    return lambda: (torch.full(shape, number, dtype=dtype) for number in numbers())


def _files(op: Op, env: Env) -> Stage:
    return lambda: iter(op["names"])


def _list_files(op: Op, env: Env) -> Stage:
    return lambda: iter(sorted(fnmatch.filter(env.files, op["pattern"])))


def _read_all(op: Op, env: Env) -> Stage:
    return _flat_map(_dealt(_files(op, env), env), op, env)


_SOURCES: dict[str, Callable[[Op, Env], Stage]] = {
    "range": _range,
    "tensor_slices": _tensor_slices,
    "from_tensors": _from_tensors,
    "generator": _generator,
    "files": _files,
    "list_files": _list_files,
    "text_lines": _read_all,
    "tfrecords": _read_all,
}


# ---- files


def _dealt(names: Stage, env: Env) -> Stage:
    """The names that this shard reads."""
    num_shards, index = env.shard
    return lambda: islice(names(), index, None, num_shards)


def _opened(names: Stage, env: Env) -> Iterator[Iterator[str]]:
    """Each file's records."""
    for name in names():
        if name not in env.files:
            raise FileNotFoundError(name)
        yield iter(env.files[name])


def _flat_map(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: chain.from_iterable(_opened(stage, env))


def _interleave(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: _interleaved(_opened(stage, env), op["cycle_length"], op.get("block_length", 1))


def _interleaved(
    files: Iterator[Iterator[str]], cycle_length: int, block_length: int
) -> Iterator[str]:
    """Read blocks in turn; a slot whose file has ended opens the next file on its next turn."""
    slots: list[Iterator[str] | None] = [None] * cycle_length
    exhausted = False
    while not exhausted or any(slots):
        for place in range(cycle_length):
            current = slots[place]
            if current is None and not exhausted:
                current = slots[place] = next(files, None)
                exhausted = current is None
            if current is None:
                continue
            block = list(islice(current, block_length))
            yield from block
            if len(block) < block_length:
                slots[place] = None


# ---- everything else


def _map(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: map(function(op["fn"]), stage())


def _filter(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: filter(function(op["fn"]), stage())


def _enumerate(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: ((torch.tensor(number), record) for number, record in enumerate(stage()))


def _take(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: islice(stage(), op["n"])


def _skip(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: islice(stage(), op["n"], None)


def _repeat(stage: Stage, op: Op, env: Env) -> Stage:
    times = op.get("n")
    again = (lambda: repeat(None)) if times is None else (lambda: repeat(None, times))
    return lambda: chain.from_iterable(stage() for _ in again())


def _shuffle(stage: Stage, op: Op, env: Env) -> Stage:
    """A buffer of records, one drawn at a time; the same order on every worker and each time."""

    def shuffled() -> Iterator[Any]:
        draw = random.Random(op["seed"])
        records = stage()
        buffer = list(islice(records, op["buffer"]))
        for record in records:
            place = draw.randrange(len(buffer))
            yield buffer[place]
            buffer[place] = record
        draw.shuffle(buffer)
        yield from buffer

    return shuffled


def _shard(stage: Stage, op: Op, env: Env) -> Stage:
    num_shards, index = _number(op["num"], env), _number(op["index"], env)
    return lambda: islice(stage(), index, None, num_shards)


def _batch(stage: Stage, op: Op, env: Env) -> Stage:
    size, drop = _number(op["size"], env), op.get("drop_remainder", False)
    make = {"padded_batch": batches.padded, "ragged_batch": batches.jagged}
    collate = make.get(op["op"], batches.stacked)
    return lambda: (collate(group) for group in batches.groups(stage(), size, drop_rest=drop))


def _unbatch(stage: Stage, op: Op, env: Env) -> Stage:
    return lambda: chain.from_iterable(map(batches.rows, stage()))


def _rebatch(stage: Stage, op: Op, env: Env) -> Stage:
    drop = op.get("drop_remainder", False)
    records = _unbatch(stage, op, env)
    return lambda: map(batches.stacked, batches.cycled(records(), op["sizes"], drop_rest=drop))


def _concatenate(stage: Stage, op: Op, env: Env) -> Stage:
    other = run(op["other"], env)
    return lambda: chain(stage(), other())


def _zip(stage: Stage, op: Op, env: Env) -> Stage:
    others = [run(other, env) for other in op["others"]]
    return lambda: zip(stage(), *(other() for other in others), strict=False)


def _same(stage: Stage, op: Op, env: Env) -> Stage:
    return stage


def _number(value: int | str, env: Env) -> int:
    return env.resolve(value) if isinstance(value, str) else value


_OPS: dict[str, Callable[[Stage, Op, Env], Stage]] = {
    "flat_map": _flat_map,
    "interleave": _interleave,
    "flat_map_identity": _same,
    "map": _map,
    "filter": _filter,
    "enumerate": _enumerate,
    "take": _take,
    "skip": _skip,
    "repeat": _repeat,
    "shuffle": _shuffle,
    "shard": _shard,
    "batch": _batch,
    "padded_batch": _batch,
    "ragged_batch": _batch,
    "unbatch": _unbatch,
    "rebatch": _rebatch,
    "concatenate": _concatenate,
    "zip": _zip,
    **dict.fromkeys(("cache", "prefetch", "assert_cardinality", "policy"), _same),
}
