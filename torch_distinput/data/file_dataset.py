"""FileDataset: files, a reader, and what is done to their records, as a recipe.

Every method returns a new recipe; nothing is listed or read before the data is iterated. Under
FILE all that follows the reader acts on the worker's own stream; under DATA the recipe defines one
global stream, and the cut into replica batches comes last.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch_distinput.data import file_ops, files
from torch_distinput.data.file_ops import Key, Operation
from torch_distinput.data.readers.text import Text
from torch_distinput.data.stream import Chunk
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count
from torch_distinput.plan.order import permutation

READERS: Mapping[str, file_ops.Reader] = {"text": Text()}


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class FileDataset:
    """Records of files, read in the order of the list (``tf.data.TextLineDataset`` and kin).

    Args:
        paths_or_globs: a path, URL or glob, or a sequence of them. Paths stay in the order given;
            the matches of a glob are sorted. Any URL that fsspec opens.
        reader: ``"text"``: an example is one line, a ``str`` without its line end; a batch is a
            list of them.
        storage_options: passed to the fsspec file system.
        shuffle_files: permute the list by (seed, epoch) before files are dealt out, so that the
            files of a worker change from epoch to epoch (TensorFlow's do not).
    """

    patterns: tuple[str, ...]
    reader: Literal["text"]
    storage_options: Mapping[str, Any]
    shuffle_files: bool
    operations: tuple[Operation, ...]
    cycle: tuple[int, int] | None

    def __init__(
        self,
        paths_or_globs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        reader: Literal["text"] = "text",
        storage_options: Mapping[str, Any] | None = None,
        shuffle_files: bool = False,
    ) -> None:
        """See the class."""
        single = isinstance(paths_or_globs, (str, os.PathLike))
        given = [paths_or_globs] if single else list(paths_or_globs)  # type: ignore[arg-type]
        if reader not in READERS:
            allowed = ", ".join(repr(name) for name in READERS)
            msg = f"reader must be one of {allowed}, got {reader!r}."
            raise ValueError(msg)
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "patterns", tuple(os.fspath(item) for item in given))  # type: ignore[arg-type]
        set_field(self, "reader", reader)
        set_field(self, "storage_options", dict(storage_options or {}))
        set_field(self, "shuffle_files", shuffle_files)
        set_field(self, "operations", ())
        set_field(self, "cycle", None)

    def map(self, fn: Callable[..., Any]) -> FileDataset:
        """Replace each record by ``fn(record)``.

        If ``fn`` has a parameter ``rng``, it gets a ``numpy.random.Generator`` keyed by seed,
        epoch and record, so that augmentation does not depend on who reads what. Under DATA the
        maps at the end of the chain run only for a worker's own examples.
        """
        return self._with(file_ops.Map(fn))

    def filter(self, fn: Callable[[Any], bool]) -> FileDataset:
        """Keep the records for which ``fn(record)`` is true."""
        return self._with(file_ops.Filter(fn))

    def shuffle(self, buffer_size: int) -> FileDataset:
        """Permute consecutive windows of ``buffer_size`` records, keyed by (seed, epoch, window).

        Records mix within their window only (TensorFlow's sliding buffer lets some drift further);
        mixing beyond it comes from ``shuffle_files`` and :meth:`interleave`.
        """
        return self._with(file_ops.Shuffle(check_count("buffer_size", buffer_size, minimum=1)))

    def take(self, n: int) -> FileDataset:
        """Keep the first ``n`` records: of each worker's stream under FILE, of all under DATA."""
        return self._with(file_ops.Take(check_count("n", n, minimum=0)))

    def repeat(self, n: int | None = None) -> FileDataset:
        """Play what comes before ``n`` times, or without end, within one epoch."""
        return self._with(file_ops.Repeat(None if n is None else check_count("n", n, minimum=0)))

    def interleave(self, cycle_length: int, block_length: int = 1) -> FileDataset:
        """Read ``cycle_length`` files in turn, ``block_length`` records from each.

        Acts on the list of files, so it comes before every other method.
        """
        if self.operations:
            msg = (
                "interleave() mixes files, so it must come first, got a recipe that already has "
                f"{', '.join(type(op).__name__.lower() for op in self.operations)}. Move it up."
            )
            raise ConfigurationError(msg)
        check_count("cycle_length", cycle_length, minimum=1)
        check_count("block_length", block_length, minimum=1)
        return self._replace(cycle=(cycle_length, block_length))

    def list_files(self) -> tuple[files.FileInfo, ...]:
        """Resolve the paths and globs now, in the order that record ids count them.

        Raises:
            FileNotFoundError: for a path that does not exist or a glob that matches nothing.
        """
        return files.list_files(self.patterns, self.storage_options)

    def _with(self, operation: Operation) -> FileDataset:
        return self._replace(operations=(*self.operations, operation))

    def _replace(self, **changes: Any) -> FileDataset:
        copy = object.__new__(FileDataset)
        for field in dataclasses.fields(self):
            value = changes.get(field.name, getattr(self, field.name))
            object.__setattr__(copy, field.name, value)
        return copy


def with_shuffled_files(dataset: FileDataset) -> FileDataset:
    """Return the recipe with ``shuffle_files=True``."""
    return dataset._replace(shuffle_files=True)


def read_chunks(
    dataset: FileDataset,
    key: Key,
    *,
    num_shards: int = 1,
    index: int = 0,
) -> Iterator[Chunk]:
    """Yield the records of one shard of the files, after all operations but the final maps."""
    order = list(range(len(key.paths)))
    if dataset.shuffle_files:
        order = permutation(len(order), key=key.words("files")).tolist()
    mine = order[index::num_shards]
    body, _ = file_ops.split_final_maps(dataset.operations)

    def read_all(_: Key) -> Iterator[Chunk]:
        opened = (_read_file(dataset, key.paths[number], number) for number in mine)
        return file_ops.interleaved(opened, dataset.cycle)

    return file_ops.run(read_all, body, key)


def _read_file(dataset: FileDataset, path: str, number: int) -> Iterator[Chunk]:
    """Read one file; its records are known by (file number, record number)."""
    with files.open_binary(path, dataset.storage_options) as file:
        yield from file_ops.numbered(READERS[dataset.reader](file, path), number)
