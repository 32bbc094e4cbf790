"""A recorded program as one of our sources, and the arguments that go with it.

What a program becomes, first match wins:

    files and ops that FileDataset has       FileDataset over real files
    files that TensorFlow deals out          dealable: ``num_shards`` and ``shard``
    tensor_slices of tensors                 columns
    range, perhaps mapped or shuffled whole  indexable
    anything else                            a stream: a generator function of examples

Where batches were changed after ``batch`` and TensorFlow split each batch by itself, the program
becomes a stream of ready global batches (an IterableDataset, ``global_batch_size=None``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

import torch_distinput as tdi
from tests.golden import facts
from tests.golden.functions import function, is_row_by_row
from tests.golden.programs import Env, Stage, env_of, file_records, num_files, run
from tests.golden.values import Json, decode

Ops = Sequence[Mapping[str, Any]]

MANY = 1000
"""More shards than any recorded cluster has workers; a repeated list of files may have no end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """A source and how it is distributed.

    Attributes:
        source: what ``distribute_dataset`` gets.
        arguments: its keywords, without the options.
        pins_epoch: True where the program shuffles alike in every epoch.
    """

    source: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pins_epoch: bool = False


@dataclass(frozen=True, slots=True)
class Stream(IterableDataset[Any]):
    """Elements of a program; starts again at each iteration."""

    stage: Stage

    def __iter__(self) -> Iterator[Any]:
        return self.stage()


@dataclass(frozen=True, slots=True)
class Dealable:
    """Files that can be dealt out, whatever is done to their records."""

    case: Json
    pipeline: Ops

    @property
    def num_shards(self) -> int:
        return num_files(self.pipeline, env_of(self.case), enough=MANY)

    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(run(self.pipeline, env_of(self.case, shard=(num_shards, index))))


@dataclass(frozen=True, slots=True)
class Indexable:
    """Numbers of a range, mapped when they are asked for."""

    numbers: range
    functions: tuple[Callable[[Any], Any], ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        example: Any = torch.tensor(self.numbers[index])
        for fn in self.functions:
            example = fn(example)
        return example


def write_files(case: Json, folder: Path) -> None:
    """Write a case's files as lines of text, for all workers."""
    for name, lines in file_records(case).items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


def distribution(case: Json, folder: Path) -> Distribution:
    """Decide what a case's program becomes."""
    cut = _examples(case)
    if cut is None:
        return Distribution(source=Stream(run(facts.active(case), env_of(case))))
    pipeline, size, drop_last = cut
    source, more = _example_source(case, pipeline, folder)
    return Distribution(
        source=source,
        arguments={"global_batch_size": size, "drop_last": drop_last, **more},
        pins_epoch=any(op.get("reshuffle_each_iteration") is False for op in pipeline),
    )


def shows_example(case: Json) -> bool:
    """Whether the source has an index, and so an example to look at before the first step."""
    cut = _examples(case)
    if cut is None or not _has_index(cut[0]):
        return False
    return next(run(cut[0], env_of(case))(), None) is not None


def _has_index(pipeline: Ops) -> bool:
    kinds = [op["op"] for op in pipeline]
    if kinds == ["tensor_slices"]:
        return "string" not in str(pipeline[0]["value"])
    if kinds == ["range", "shuffle"]:
        return bool(pipeline[1]["buffer"] >= len(range(*pipeline[0]["args"])))
    return kinds[0] == "range" and set(kinds[1:]) <= {"map"}


def _examples(case: Json) -> tuple[Ops, int | None, bool] | None:
    """Ops that give examples, and the global batch; None where batches come ready."""
    pipeline = facts.active(case)
    *before, last = pipeline
    if last["op"] == "batch":
        return before, last["size"], last.get("drop_remainder", False)
    if facts.cycles(case):
        return [*pipeline, {"op": "unbatch"}], facts.inferred_batch_size(case), False
    if facts.deals_files(case):
        return _maps_before_batch(pipeline)
    return None


def _maps_before_batch(pipeline: Ops) -> tuple[Ops, int, bool]:
    """Let maps of whole batches change places with ``batch``: files are dealt out as examples."""
    place = max(i for i, op in enumerate(pipeline) if op["op"] == "batch")
    batch, maps = pipeline[place], pipeline[place + 1 :]
    if not all(op["op"] == "map" and is_row_by_row(op["fn"]) for op in maps):
        raise NotImplementedError(f"dealt files, and after batch: {maps}")
    return [*pipeline[:place], *maps], batch["size"], batch.get("drop_remainder", False)


def _example_source(case: Json, pipeline: Ops, folder: Path) -> tuple[Any, dict[str, Any]]:
    if facts.reads_files(pipeline):
        return _file_source(case, pipeline, folder), {}
    if not _has_index(pipeline):
        return _generator_function(run(pipeline, env_of(case))), {}
    first, *others = pipeline
    if first["op"] == "tensor_slices":
        return decode(first["value"]), {}
    numbers = range(*first["args"])
    if others and others[0]["op"] == "shuffle":
        return Indexable(numbers, ()), {"shuffle": True, "seed": others[0]["seed"]}
    return Indexable(numbers, tuple(function(op["fn"]) for op in others)), {}


def _generator_function(stage: Stage) -> Callable[[], Iterator[Any]]:
    def records() -> Iterator[Any]:
        yield from stage()

    return records


def _file_source(case: Json, pipeline: Ops, folder: Path) -> Any:
    recipe = _file_dataset(pipeline, folder)
    if recipe is not None:
        return recipe
    if facts.deals_files(case):
        return Dealable(case, pipeline)
    return _generator_function(run(pipeline, env_of(case)))


_METHODS: dict[str, Callable[[tdi.FileDataset, Any], tdi.FileDataset]] = {
    "map": lambda files, op: files.map(function(op["fn"])),
    "filter": lambda files, op: files.filter(function(op["fn"])),
    "take": lambda files, op: files.take(op["n"]),
    "repeat": lambda files, op: files.repeat(op.get("n")),
    "shuffle": lambda files, op: files.shuffle(op["buffer"]),
}


def _file_dataset(pipeline: Ops, folder: Path) -> tdi.FileDataset | None:
    """The program as a FileDataset; None where it has ops that FileDataset lacks."""
    first, *others = pipeline
    if first["op"] == "list_files":
        paths = [str(folder / first["pattern"])]
    else:
        paths = [str(folder / name) for name in first.get("names", ())]
    if first["op"] in ("files", "list_files"):
        while others and others[0]["op"] == "take" and first["op"] == "files":
            paths = paths[: others.pop(0)["n"]]
        reader = others.pop(0)
    else:
        reader = {"op": "flat_map", "reader": "text" if first["op"] == "text_lines" else ""}
    if reader.get("reader") != "text" or not {op["op"] for op in others} <= set(_METHODS):
        return None
    files = tdi.FileDataset(paths, reader="text")
    if reader["op"] == "interleave":
        files = files.interleave(reader["cycle_length"], reader.get("block_length", 1))
    for op in others:
        files = _METHODS[op["op"]](files, op)
    return files


def replica_batches(case: Json, context: tdi.InputContext) -> Stream:
    """What a from_function program's ``dataset_fn`` returns in a context."""

    def resolve(name: str) -> int:
        word, _, size = name.removeprefix("$").partition(":")
        if word == "per_replica":
            return context.get_per_replica_batch_size(int(size))
        return int(getattr(context, word))

    env = Env(files=file_records(case), resolve=resolve)
    return Stream(run(case["pipeline"], env))
