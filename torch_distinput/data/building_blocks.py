"""IterableDataset wrappers that shard files and data: building blocks for plain DataLoaders.

Inside a DataLoader with several loader processes each process plays its part of the shard, so
nothing is read twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from torch_distinput.data.files.dataset import FileDataset, find_files
from torch_distinput.data.files.operations import Take
from torch_distinput.data.files.stream import FileStream
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.run import iterate
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count
from torch_distinput.plan.progress.route import Shard

_ROWS = 1024


class FileShardDataset(IterableDataset[Any]):
    """The records of the files i with ``i % num_shards == index`` (``Dataset.shard`` on files).

    Yields one example at a time: with reader ``"text"`` a ``str``, or what the recipe's maps make.

    Bad records are raised, or skipped and logged, as ``FileDataset(on_error=)`` says. With
    ``split_files`` the parts of the files are dealt out instead.

    Args:
        files: paths, globs, or a :class:`FileDataset`.
        num_shards: how many shards there are; usually the number of workers.
        index: which shard this is, from 0.
    """

    def __init__(
        self,
        files: FileDataset | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        num_shards: int,
        index: int,
    ) -> None:
        """See the class."""
        self._files = files if isinstance(files, FileDataset) else FileDataset(files)
        self._num_shards, self._index = _check_shard(num_shards, index)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that shuffles are keyed by; call it before the loader is iterated."""
        self._epoch = check_count("epoch", epoch, minimum=0)

    def __iter__(self) -> Iterator[Any]:
        """Yield the examples of this shard, or of this loader process's part of it."""
        num_shards, index = _per_process(self._num_shards, self._index)
        _refuse_take(self._files, num_shards // self._num_shards)
        listing = find_files(self._files)
        stream = FileStream(dataset=self._files, listing=listing, collate=None)
        read_counter = ReadCounter(self._index)
        if self._files.split_files:  # every shard looks into all files by itself
            share, notes = stream.survey_for_all(0, 1)
            stream = stream.with_shares([share])
            read_counter.add(notes)
        shard = Shard(epoch=self._epoch, num_shards=num_shards, index=index)
        reader = stream.open(shard)
        while (chunk := reader.take(_ROWS)) is not None:
            yield from stream.examples(chunk, shard)
            read_counter.add(reader.notes())
        read_counter.add(reader.notes())


class DataShardDataset(IterableDataset[Any]):
    """The examples i with ``i % num_shards == index`` of an iterable (``tf.data.Dataset.shard``).

    Every shard iterates all of it and keeps its own, so all must see one order.

    Args:
        iterable: an IterableDataset, a generator function, a torchdata node, or any iterable.
        num_shards: how many shards there are; usually the number of workers.
        index: which shard this is, from 0.
    """

    def __init__(self, iterable: Iterable[Any] | Any, num_shards: int, index: int) -> None:
        """See the class."""
        self._iterable = iterable
        self._num_shards, self._index = _check_shard(num_shards, index)

    def set_epoch(self, epoch: int) -> None:
        """Tell the iterable, if it shuffles by epochs; call it before the loader is iterated."""
        tell_epoch(self._iterable, check_count("epoch", epoch, minimum=0))

    def __iter__(self) -> Iterator[Any]:
        """Yield the examples of this shard, or of this loader process's part of it.

        The iterable does not see that there are processes: it would take its own part of them.
        """
        num_shards, index = _per_process(self._num_shards, self._index)
        return islice(iterate(self._iterable), index, None, num_shards)


def _refuse_take(files: FileDataset, num_processes: int) -> None:
    """What a loader process takes would be so many records of its part."""
    if num_processes > 1 and any(isinstance(operation, Take) for operation in files.operations):
        msg = (
            f"take(n) counts the records of a shard, and {num_processes} loader processes read a "
            "part of it each: they would take n each. Use at most one (num_workers=), or let "
            "strategy.distribute_dataset(files, num_workers=...) read the files."
        )
        raise ConfigurationError(msg)


def _check_shard(num_shards: int, index: int) -> tuple[int, int]:
    check_count("num_shards", num_shards, minimum=1)
    check_count("index", index, minimum=0)
    if index >= num_shards:
        msg = f"index must be below num_shards {num_shards}, got {index}. Count shards from 0."
        raise ValueError(msg)
    return num_shards, index


def _per_process(num_shards: int, index: int) -> tuple[int, int]:
    """Part a shard further among the loader processes of one DataLoader.

    What the shard holds does not change, so the shards may have different numbers of processes.
    """
    info = get_worker_info()
    if info is None:
        return num_shards, index
    return num_shards * info.num_workers, index + num_shards * info.id
