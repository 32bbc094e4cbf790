"""What a source is: the first kind that matches, and what its parts ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset

from torch_distinput.data import user_loader
from torch_distinput.data.buffers import pageable
from torch_distinput.data.collate import CollateFn, collate_examples, number_types
from torch_distinput.data.indexed import ColumnFetch, ExampleFetch
from torch_distinput.data.loader import LoaderOptions
from torch_distinput.data.ready_stream import ReadyStream
from torch_distinput.data.source import (
    IndexedSource,
    Prepared,
    ReadySource,
    Request,
    Source,
    StreamSource,
)
from torch_distinput.data.source_parts import deals_shards, part_out_of_order, parts_of
from torch_distinput.data.stream import DealableStream, ExampleStream, Stream
from torch_distinput.data.structure import Batch, flatten
from torch_distinput.errors import ConfigurationError
from torch_distinput.values import Distributed

if TYPE_CHECKING:
    from torch_distinput.data.file_dataset import FileDataset

KINDS = (
    "a DataLoader; a FileDataset; a tensor, array, or tuple or dict of them; a map-style dataset "
    "or list (__getitem__ and __len__); an object with num_shards and shard(); an IterableDataset, "
    "generator function or torchdata node"
)


_SET_BY_LOADERS = ("global_batch_size", "shuffle", "drop_last", "collate_fn", "num_workers")


def open_source(source: Any, request: Request) -> Source:
    """Find out what a source is; the first kind that matches counts.

    Raises:
        TypeError: if it is none of the kinds.
        ConfigurationError: if the request does not fit the kind.
    """
    if user_loader.is_loader(source):
        return _from_loader(source, request)
    columns = _columns(source)
    has_files = _is_file_dataset(source)
    if has_files or columns is not None or _is_indexable(source):
        _need_batch_size(request, type(source).__name__)
    if has_files:
        return _from_files(source, request)
    if columns is not None:
        return _from_columns(columns, type(source).__name__, request)
    if _is_indexable(source):
        return _from_indexable(source, request)
    if deals_shards(source):
        return _from_stream(source, request, num_shards=int(source.num_shards))
    if is_stream(source):
        return _from_stream(source, request, num_shards=None)
    msg = f"Expected a source: {KINDS}. Got {type(source).__name__}{_hint(source)}."
    raise TypeError(msg)


def has_ready_batches(source: Any) -> bool:
    """Whether the elements of a source are batches unless a batch size is asked for."""
    if user_loader.is_loader(source):
        return True
    single = _is_file_dataset(source) or _columns(source) is not None
    return not single and not _is_indexable(source)


def gives_examples(source: Any) -> bool:
    """Whether a source yields examples one by one, where a batch size is asked for."""
    if user_loader.is_loader(source) or _columns(source) is not None:
        return False
    if _is_file_dataset(source):  # without a map, what readers give is batches
        from torch_distinput.data.file_ops import Map  # noqa: PLC0415 - who has files has it too

        return any(isinstance(operation, Map) for operation in source.operations)
    return True


def _from_loader(source: Any, request: Request) -> Source:
    parts = user_loader.look_through(source)
    _refuse_twice(request, source)
    name = type(source).__name__
    if parts.ready:
        stream = ReadyStream(
            source,
            expected=f"a ready global batch, because that is what {name} yields",
            cure="Give the DataLoader a batch_size, or a collate_fn that makes rows.",
        )
        return ReadySource(name=name, stream=stream, num_shards=None, request=Request())
    asked = Request(
        global_batch_size=parts.batch_size,
        shuffle=parts.shuffle,
        drop_last=parts.drop_last,
        collate_fn=parts.collate_fn,
        allocate=request.allocate if not parts.loader.num_workers else pageable,
    )
    columns = _as_columns(parts.dataset) if parts.collate_fn is None else None
    if columns is None:  # also a tuple or dict of tensors: torch asks it for dataset[i]
        inner = _from_indexable(parts.dataset, asked)
    else:
        inner = _from_columns(columns, name, asked)
    return replace(inner, name=name, sampler=parts.sampler, loader=parts.loader)


def _refuse_twice(request: Request, loader: Any) -> None:
    """Refuse what a DataLoader has set already; the message shows both values."""
    default = Request()
    for name in _SET_BY_LOADERS:
        theirs = "batch_size" if name == "global_batch_size" else name
        asked = getattr(request, name)
        if asked != getattr(default, name):
            shown = f"the sampler {type(loader.sampler).__name__}"
            if name != "shuffle":
                shown = f"{theirs}={getattr(loader, theirs)!r}"
            msg = (
                f"Expected {name} to be set once, got {name}={asked!r} beside a DataLoader, which "
                f"has {shown}. Build the DataLoader with {theirs}={asked!r}, and leave {name} out; "
                "or pass its dataset instead of the loader."
            )
            raise ConfigurationError(msg)


def _is_file_dataset(source: Any) -> bool:
    """Who has one has imported it; the others need no files, and no fsspec."""
    module = sys.modules.get("torch_distinput.data.file_dataset")
    return module is not None and isinstance(source, module.FileDataset)


def _from_files(source: FileDataset, request: Request) -> StreamSource:
    from torch_distinput.data.file_dataset import with_shuffled_files  # noqa: PLC0415 - see above
    from torch_distinput.data.file_stream import FileStream  # noqa: PLC0415

    dataset = with_shuffled_files(source) if request.shuffle else source

    def prepare() -> Prepared:
        listing = dataset.list_files()
        contents = repr([(os.path.basename(info.path), info.size) for info in listing])
        stream = FileStream(
            dataset=dataset,
            listing=listing,
            collate=request.collate_fn,
            threads=request.num_workers if request.num_workers > 1 else 0,
        )
        dealt = len(listing) if not dataset.split_files else None
        return Prepared(stream=stream, num_shards=dealt, contents=contents)

    return StreamSource(
        name=f"FileDataset({', '.join(map(repr, source.patterns[:3]))}"
        f"{', ...' if len(source.patterns) > 3 else ''})",
        prepare=prepare,
        has_shards=True,
        request=request,
        loader=LoaderOptions(num_workers=request.num_workers),
    )


def _from_columns(columns: Batch, name: str, request: Request) -> IndexedSource:
    fetch = ColumnFetch.of(columns, request.allocate)
    collate = request.collate_fn
    return IndexedSource(
        name=name,
        fetch=ExampleFetch(_Rows(fetch), collate) if collate else fetch,
        num_examples=fetch.num_examples,
        request=request,
        loader=LoaderOptions(num_workers=request.num_workers),
    )


def _from_indexable(source: Any, request: Request) -> IndexedSource:
    return IndexedSource(
        name=type(source).__name__,
        fetch=ExampleFetch(source, request.collate_fn or _collate_of(source)),
        num_examples=len(source) if hasattr(source, "__len__") else None,
        request=request,
        loader=LoaderOptions(num_workers=request.num_workers, dataset=source),
    )


def _collate_of(source: Any) -> CollateFn:
    """The default; a list is in memory, so that its numbers can be looked at beforehand."""
    types = number_types(source) if isinstance(source, list) else {}
    return partial(collate_examples, types=types) if types else collate_examples


def _from_stream(source: Any, request: Request, *, num_shards: int | None) -> Source:
    name = getattr(source, "__name__", type(source).__name__)
    if request.shuffle:
        msg = (
            f"shuffle=True needs a source with an index or files, got the stream {name}. Shuffle "
            "the stream itself by a seed that is the same on all ranks, as "
            "FileDataset.shuffle(buffer_size) does."
        )
        raise ConfigurationError(msg)
    if (part := part_out_of_order(source)) is not None:
        msg = (
            f"Expected a stream in the same order on every rank and after a restart, got {name} "
            f"with a {type(part).__name__} of {part.num_workers} workers and in_order=False, whose "
            "examples overtake each other: some would be lost and others come twice. Leave "
            "in_order out."
        )
        raise ConfigurationError(msg)
    options = LoaderOptions(num_workers=request.num_workers, dataset=source)
    if request.global_batch_size is None:
        return _from_batches(source, request, num_shards=num_shards)
    collate = request.collate_fn or collate_examples
    stream: Stream = ExampleStream(source, collate)
    if num_shards is not None:
        stream = DealableStream(source, collate)
    prepared = Prepared(stream=stream, num_shards=num_shards or 0, contents=str(num_shards))
    return StreamSource(
        name=name,
        prepare=lambda: prepared,
        has_shards=num_shards is not None,
        request=request,
        made_of=source,
        loader=options,
    )


def _from_batches(source: Any, request: Request, *, num_shards: int | None) -> ReadySource:
    name = getattr(source, "__name__", type(source).__name__)
    if request.drop_last or request.collate_fn is not None:
        msg = (
            f"Without global_batch_size the elements of {name} are ready global batches, got "
            "drop_last or collate_fn, which act on examples. Pass global_batch_size too, or leave "
            "them out."
        )
        raise ConfigurationError(msg)
    return ReadySource(
        name=name,
        stream=ReadyStream(source),
        num_shards=num_shards,
        request=request,
        loader=LoaderOptions(num_workers=request.num_workers, dataset=source),
    )


def _need_batch_size(request: Request, what: str) -> None:
    """Only streams may go without."""
    if request.global_batch_size is None:
        msg = (
            f"distribute_dataset needs global_batch_size for {what}: the number of examples over "
            "all replicas in one step. Got None."
        )
        raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Columns as examples, for a collate_fn that wants them."""

    columns: ColumnFetch

    def __getitem__(self, index: int) -> Any:
        return self.columns.example(index)


def _columns(source: Any) -> Batch | None:
    """The columns of a source that consists of tensors and arrays; None if it does not."""
    if not isinstance(source, (tuple, Mapping)):
        return _as_columns(source)
    leaves = flatten(source)[0]
    if leaves and all(isinstance(leaf, (torch.Tensor, np.ndarray)) for leaf in leaves):
        return source
    columns = dict(source) if isinstance(source, Mapping) else dict(enumerate(source))
    if any(isinstance(column, (torch.Tensor, np.ndarray)) for column in columns.values()):
        shown = ", ".join(f"{k!r}: {type(column).__name__}" for k, column in columns.items())
        msg = (
            f"Expected columns that all are tensors or arrays, got {{{shown}}}. Make tensors or "
            "arrays of the others, or pass examples: list(zip(...))."
        )
        raise TypeError(msg)
    return None  # perhaps a tuple of examples


def _as_columns(dataset: Any) -> Batch | None:
    """The columns of a dataset whose ``dataset[i]`` are their rows; None of any other."""
    if type(dataset) is TensorDataset:  # a subclass may have a __getitem__ of its own
        return dataset.tensors
    return dataset if isinstance(dataset, (torch.Tensor, np.ndarray)) else None


def _is_indexable(source: Any) -> bool:
    if isinstance(source, (IterableDataset, Mapping, str, bytes, type)):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def is_stream(source: Any) -> bool:
    """Whether it can be started again and again: not an iterator that is used up once."""
    if isinstance(source, (str, bytes, Mapping, set, frozenset, type)) or _is_distributed(source):
        return False
    if hasattr(source, "reset") and hasattr(source, "get_state"):
        return True
    if isinstance(source, IterableDataset):  # its __iter__ may well return itself, started anew
        return True
    if hasattr(source, "__iter__"):
        return not hasattr(source, "__next__")
    return callable(source)


def _is_distributed(source: Any) -> bool:
    """Whether it plays a distributed dataset: itself, or in a pipeline of nodes."""
    return any(isinstance(part, Distributed) for part in parts_of(source))


def _hint(source: Any) -> str:
    if _is_distributed(source):
        return ", which is distributed already"
    if hasattr(source, "__next__"):
        return ", which can be iterated only once; pass the function that makes it"
    return "; wrap paths in a FileDataset" if isinstance(source, (str, os.PathLike)) else ""

