"""What is known of files: from a listing, from counts that were given, or from a look into them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_distinput.data.storage.input_file import FEWEST_UNITS
from torch_distinput.errors import ConfigurationError
from torch_distinput.inspect.planner.known_files import KnownFiles, KnownParts
from torch_distinput.inspect.planner.totals.epoch_totals import Integers
from torch_distinput.rendering.units import show_count

if TYPE_CHECKING:
    from torch_distinput.data.files.dataset import FileDataset
    from torch_distinput.data.files.work_units import Parts
    from torch_distinput.data.storage.file_listing import FileInfo, FileListing

_MOST_SHOWN = 3


def know_counts(counts: Any) -> KnownFiles:
    """Files of which the examples are given: whole numbers from 0 on, one for each."""
    given = np.asarray(counts)
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu" or (given < 0).any():
        wrong = f"shape {given.shape} and dtype {given.dtype}"
        if given.dtype.kind in "iu" and given.size and (given < 0).any():
            wrong = f"{int(given.min())} among them"
        msg = (
            "plan_epoch expects the examples of each file as a list or array of whole numbers "
            f"from 0 on, got {wrong}. For columns of data pass their length."
        )
        raise ConfigurationError(msg)
    examples = given.astype(np.int64)
    return KnownFiles(
        name=show_count(len(examples), "file"),
        num_files=len(examples),
        examples=examples,
        is_exact=True,
    )


def know_paths(paths: Sequence[str], storage_options: Mapping[str, Any]) -> KnownFiles:
    """Files that a listing finds: their names and sizes."""
    from torch_distinput.data.storage import filesystem  # noqa: PLC0415 - fsspec takes a while

    listing = filesystem.list_files(paths, storage_options)
    return _know_listing(", ".join(map(repr, paths[:_MOST_SHOWN])), listing)


def know_dataset(dataset: FileDataset, *, count: bool) -> KnownFiles:
    """The files of a recipe; ``count``: look into them, as a run does."""
    listing = dataset.list_files()
    name = f"FileDataset({', '.join(map(repr, dataset.patterns[:_MOST_SHOWN]))})"
    found = replace(
        _know_listing(name, listing), is_split=dataset.split_files, operations=dataset.operations
    )
    return _look_into(found, dataset, listing) if count else found


def count_paths(
    paths: Sequence[str], storage_options: Mapping[str, Any], *, split: bool
) -> KnownFiles:
    """Files of a format that their names tell, looked into."""
    from torch_distinput.data.files.dataset import FileDataset, find_format_read_as_text  # noqa: PLC0415 - imports torch

    plain = FileDataset(paths, storage_options=storage_options, split_files=split)
    reader = find_format_read_as_text(plain) or "text"
    dataset = FileDataset(paths, reader=reader, storage_options=storage_options, split_files=split)
    return know_dataset(dataset, count=True)


def with_estimate(files: KnownFiles, bytes_per_example: float) -> KnownFiles:
    """Fill in what is not known by the bytes that an example has on average."""
    if files.examples is None and files.sizes is not None:
        examples = np.rint(files.sizes / bytes_per_example).astype(np.int64)
        return replace(files, examples=examples, is_exact=False)
    if files.sizes is None and files.examples is not None:
        return replace(files, sizes=np.rint(files.examples * bytes_per_example).astype(np.int64))
    return files


def is_path(value: object) -> bool:
    """Whether something names a file, or files."""
    return isinstance(value, (str, os.PathLike))


def _know_listing(name: str, listing: Sequence[FileInfo]) -> KnownFiles:
    return KnownFiles(name=name, num_files=len(listing), sizes=_sizes_of(listing), listing=listing)


def _sizes_of(listing: Sequence[FileInfo] | FileListing) -> Integers | None:
    columns = getattr(listing, "columns", None)
    if columns is None:
        sizes = np.array([-1 if info.size is None else info.size for info in listing])
    else:
        sizes = np.asarray(columns.sizes)
    return None if (sizes < 0).any() else sizes.astype(np.int64)


def _look_into(files: KnownFiles, dataset: FileDataset, listing: Sequence[FileInfo]) -> KnownFiles:
    """Cut files into parts as a run does, and count their records."""
    from torch_distinput.data.files.dataset import with_split_files  # noqa: PLC0415 - import torch
    from torch_distinput.data.files.stream import FileStream  # noqa: PLC0415
    from torch_distinput.data.files.work_units import join_surveys  # noqa: PLC0415

    stream = FileStream(dataset=dataset, listing=listing, collate=None)
    share, _ = stream.survey_for_all(0, 1)
    parts = split_parts = _join_parts(join_surveys([share], len(listing)).parts)
    if not dataset.split_files and len(listing) < FEWEST_UNITS:  # few files are cut finer then
        split = FileStream(dataset=with_split_files(dataset), listing=listing, collate=None)
        share, _ = split.survey_for_all(0, 1)
        split_parts = _join_parts(join_surveys([share], len(listing)).parts)
    found = replace(files, parts=parts, split_parts=split_parts)
    if parts.examples is None:
        return found
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(parts.examples)])
    borders = np.searchsorted(parts.files, np.arange(len(listing) + 1))
    return replace(
        found,
        examples=np.diff(ends[borders]),
        is_exact=dataset.on_error == "raise",  # a run leaves out what is bad
        jumps=_jumps(dataset, stream, len(listing)),
    )


def _join_parts(surveyed: Sequence[Parts]) -> KnownParts:
    numbers = [part.num_records for parts in surveyed for part in parts]
    return KnownParts(
        files=np.repeat(np.arange(len(surveyed)), [len(parts) for parts in surveyed]),
        examples=None if None in numbers else np.array(numbers, dtype=np.int64),
    )


def _jumps(dataset: FileDataset, stream: Any, num_files: int) -> bool:
    """Whether a run passes over parts of a shared stream: it has counted them, and keeps all."""
    # Asked as a worker that has no file to look into.
    is_counted = dataset.split_files or stream.share(num_files, num_files + 1) is not None
    has_all = all(type(operation).__name__ == "Map" for operation in dataset.operations)
    return bool(is_counted and has_all and dataset.cycle is None and dataset.on_error == "raise")
