"""What a source is: one question, asked in one place, answered by the first kind that matches.

A source may look like several kinds: a TensorDataset has an index and tensors, a Hugging Face
stream is iterable and has shards. So the order of ``_TABLE`` is part of the promise:

    MIXTURE   made by mix(): no other kind looks like it
    PACKING   made by pack(): no other kind looks like it
    BUCKETS   made by bucket(): no other kind looks like it
    LOADER    before its dataset, whose batch size, order and functions the user chose with it
    FILES     it has neither an index nor elements, and nobody else may read it
    COLUMNS   before INDEXED: rows are gathered leaf by leaf, and no example is ever made
    INDEXED   before SHARDS and STREAM: who can be asked for any example need not be read in order
    SHARDS    before STREAM: each worker reads its own, instead of all of them everything
    STREAM    what is left: it can be started again and again, and told nothing
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset

from torch_distinput.data.batch.leaf_kind import is_masked, make_masked_array_error
from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.data.sources.dataloader import is_loader
from torch_distinput.data.user_sources.parts import deals_shards, is_node, parts_of
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.mixture import Mixture
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.values import Distributed

_COLUMNS = (torch.Tensor, np.ndarray, PackedStrings)


class SourceKind(Enum):
    """The kinds of sources, as messages call them."""

    LOADER = "a DataLoader"
    FILES = "a FileDataset"
    COLUMNS = "a tensor, array, or tuple or dict of them"
    INDEXED = "a map-style dataset or list (__getitem__ and __len__)"
    SHARDS = "an object with num_shards and shard()"
    STREAM = "an IterableDataset, generator function or torchdata node"
    MIXTURE = "a mix()"
    PACKING = "a pack()"
    BUCKETS = "a bucket()"


BATCHED = frozenset({SourceKind.LOADER, SourceKind.SHARDS, SourceKind.STREAM, None})
"""Kinds whose elements are batches unless a batch size is asked for; None: any other iterable."""


def classify(source: Any) -> SourceKind | None:
    """Return the first kind that a source is of; None if it is of none.

    Raises:
        TypeError: for columns of which only some are tensors or arrays, or one has a mask.
    """
    return next((kind for kind, matches in _TABLE if matches(source)), None)


def gives_examples(source: Any) -> bool:
    """Whether a source yields examples one by one, where a batch size is asked for."""
    if isinstance(source, Buckets):
        return gives_examples(source.source)
    kind = classify(source)
    if kind is SourceKind.FILES:  # without a map, what readers give is batches
        from torch_distinput.data.files.operations import Map  # noqa: PLC0415 - who has files has it too

        return any(isinstance(operation, Map) for operation in source.operations)
    return kind not in (SourceKind.LOADER, SourceKind.COLUMNS)


def columns_of(source: Any) -> Batch | None:
    """The columns of a source that consists of tensors and arrays; None if it does not."""
    if not isinstance(source, (tuple, Mapping)):
        return columns_of_dataset(source)
    leaves = flatten(source)[0]
    if any(is_masked(type(leaf)) for leaf in leaves):
        raise make_masked_array_error("a column")
    if leaves and all(isinstance(leaf, _COLUMNS) for leaf in leaves):
        return source
    columns = dict(source) if isinstance(source, Mapping) else dict(enumerate(source))
    if any(isinstance(column, _COLUMNS) for column in columns.values()):
        shown = ", ".join(f"{k!r}: {type(column).__name__}" for k, column in columns.items())
        msg = (
            f"Expected every column to be a tensor or an array, got {{{shown}}}. Make tensors or "
            "arrays of the others, or PackedStrings, or pass examples: list(zip(...))."
        )
        raise TypeError(msg)
    return None  # perhaps a tuple of examples


def columns_of_dataset(dataset: Any) -> Batch | None:
    """The columns of a dataset whose ``dataset[i]`` are their rows; None of any other."""
    if type(dataset) is TensorDataset:  # a subclass may have a __getitem__ of its own
        return dataset.tensors
    if is_masked(type(dataset)):
        raise make_masked_array_error("a column")
    return dataset if isinstance(dataset, _COLUMNS) else None


def is_stream(source: Any) -> bool:
    """Whether it can be started again and again: not an iterator that is used up once."""
    if isinstance(source, (str, bytes, Mapping, set, frozenset, type)) or _is_distributed(source):
        return False
    if _is_data_frame(source) or _is_series(source):
        return False
    if is_node(source):
        return True
    if isinstance(source, IterableDataset):  # its __iter__ may well return itself, started anew
        return True
    if has_method(source, "__iter__"):
        return not has_method(source, "__next__")
    return callable(source)


def make_no_source_error(source: Any) -> TypeError:
    """Refuse what is of no kind; the message has a cure for what people try."""
    hint = ""
    if _is_distributed(source):
        hint = ", which is distributed already"
    elif has_method(source, "__next__"):
        hint = ", which can be iterated only once; pass the function that makes it"
    elif isinstance(source, (str, os.PathLike)):
        hint = "; wrap paths in a FileDataset"
    elif type(source).__name__.endswith("DatasetDict") and source:  # of Hugging Face
        hint = f" of {len(source)} splits; pass one of them, such as source[{next(iter(source))!r}]"
    elif _is_data_frame(source):
        hint = "; pass its columns: {name: frame[name].to_numpy() for name in frame.columns}"
    elif _is_series(source):
        hint = ", whose [i] is the value with the label i; pass its values: series.to_numpy()"
    elif isinstance(source, Mapping):
        hint = "; its columns are to be tensors, arrays or PackedStrings: torch.tensor(column)"
    elif has_method(source, "__getitem__") and not has_method(source, "__len__"):
        hint = ", which has __getitem__ and no __len__; add it"
    expected = "; ".join(kind.value for kind in SourceKind)
    return TypeError(f"Expected a source: {expected}. Got {type(source).__name__}{hint}.")


def _is_mixture(source: Any) -> bool:
    return isinstance(source, Mixture)


def _is_packing(source: Any) -> bool:
    return isinstance(source, DocumentPacking)


def _is_buckets(source: Any) -> bool:
    return isinstance(source, Buckets)


def _is_file_dataset(source: Any) -> bool:
    """Who has one has imported it; the others need no files, and no fsspec.

    Another thread may be about to import it: then the class is not there yet.
    """
    module = sys.modules.get("torch_distinput.data.files.dataset")
    return isinstance(source, getattr(module, "FileDataset", ()))


def _is_distributed(source: Any) -> bool:
    """Whether it plays a distributed dataset: itself, or in a pipeline of nodes."""
    return any(isinstance(part, Distributed) for part in parts_of(source))


def _has_columns(source: Any) -> bool:
    return columns_of(source) is not None


def _is_data_frame(source: Any) -> bool:
    """Of pandas or polars: its ``[i]`` is no row, and iterating it gives names of columns."""
    return type(source).__name__ == "DataFrame" and hasattr(source, "columns")


def _is_series(source: Any) -> bool:
    """Of pandas: its ``[i]`` goes by label. That of polars goes by position."""
    return type(source).__name__ == "Series" and hasattr(source, "iloc")


def _is_indexable(source: Any) -> bool:
    if isinstance(source, (IterableDataset, Mapping, str, bytes, type)):
        return False
    if _is_data_frame(source) or _is_series(source):
        return False
    return has_method(source, "__getitem__") and has_method(source, "__len__")


_TABLE: tuple[tuple[SourceKind, Callable[[Any], bool]], ...] = (
    (SourceKind.MIXTURE, _is_mixture),
    (SourceKind.PACKING, _is_packing),
    (SourceKind.BUCKETS, _is_buckets),
    (SourceKind.LOADER, is_loader),
    (SourceKind.FILES, _is_file_dataset),
    (SourceKind.COLUMNS, _has_columns),
    (SourceKind.INDEXED, _is_indexable),
    (SourceKind.SHARDS, deals_shards),
    (SourceKind.STREAM, is_stream),
)
