"""From a source of any kind to one of the three that can be read: by index, in order, batched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, final

from torch_distinput.data.batch.buffer_pool import pageable
from torch_distinput.data.batch.collate import CollateFn, collate_examples, number_types
from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.sources import dataloader
from torch_distinput.data.sources.classify import (
    BATCHED,
    SourceKind,
    classify,
    columns_of,
    columns_of_dataset,
    make_no_source_error,
)
from torch_distinput.data.sources.cures import (
    make_no_order_error,
    make_no_shuffle_error,
    way_to_more_files,
    way_to_more_shards,
)
from torch_distinput.data.sources.examples import ExampleStream
from torch_distinput.data.sources.indexed import ColumnFetch, ExampleFetch
from torch_distinput.data.sources.ready_batches import ReadyStream
from torch_distinput.data.sources.shards import ShardStream
from torch_distinput.data.sources.source import (
    IndexedSource,
    Prepared,
    ReadySource,
    Request,
    Source,
    StreamSource,
    make_both_error,
)
from torch_distinput.data.sources.table import TableFetch, gives_columns
from torch_distinput.data.user_sources import state_version_1
from torch_distinput.data.user_sources.parts import find_part_out_of_order
from torch_distinput.data.user_sources.stages import has_single_shards
from torch_distinput.errors import ConfigurationError

if TYPE_CHECKING:
    from torch_distinput.data.files.dataset import FileDataset

_SET_BY_LOADERS = ("global_batch_size", "shuffle", "drop_last", "collate_fn", "num_workers")
_SET_BY_ORDERS = ("shuffle", "num_workers")
"""What a DataLoader without batches has set."""
_RECIPES = (SourceKind.MIXTURE, SourceKind.PACKING, SourceKind.BUCKETS)
"""What is made of sources, and shown as its user wrote it."""


def open_source(source: Any, request: Request) -> Source:
    """Find out what a source is, and make of it what can be read.

    Raises:
        TypeError: if it is none of the kinds.
        ConfigurationError: if the request does not fit the kind.
    """
    kind = classify(source)
    if kind is None:
        raise make_no_source_error(source)
    if kind not in BATCHED:
        _need_batch_size(request, repr(source) if kind in _RECIPES else type(source).__name__)
    if request.collate_fn is not None and kind is not SourceKind.BUCKETS:
        from torch_distinput.data.sources.sequences import bucketed  # noqa: PLC0415 - who pads has it too

        if bucketed.pads_steps(request):
            return bucketed.open_padded_to_steps(source, request, _MAKERS[kind])
    return _MAKERS[kind](source, request)


# What is made of sources is opened by modules that few scripts need: they are imported for it.


def _from_mixture(source: Any, request: Request) -> Source:
    from torch_distinput.data.sources.mixing.mixed_sources import open_mixture  # noqa: PLC0415

    return open_mixture(source, request, _open_member)


def _from_packing(source: Any, request: Request) -> Source:
    from torch_distinput.data.sources.sequences.packed_sources import open_packing  # noqa: PLC0415

    return open_packing(source, request, _open_member)


def _from_buckets(source: Any, request: Request) -> Source:
    from torch_distinput.data.sources.sequences.bucketed import open_buckets  # noqa: PLC0415

    return open_buckets(source, request, open_source)


def _open_member(source: Any, request: Request) -> Source:
    from torch_distinput.data.sources.sequences.bucketed import refuse_inner_buckets  # noqa: PLC0415 - as above

    refuse_inner_buckets(source)
    if classify(source) is SourceKind.LOADER:
        msg = (
            f"a {type(source).__name__} makes batches of its own, of which no examples can be "
            "mixed or packed. Pass its dataset; global_batch_size, shuffle and collate_fn are "
            "those of distribute_dataset."
        )
        raise ConfigurationError(msg)
    return open_source(source, request)


def _from_loader(source: Any, request: Request) -> Source:
    is_cut_here = request.budget is not None
    if is_cut_here and not dataloader.gives_order(source):
        raise make_no_order_error(request, source)
    parts = dataloader.look_through(source, is_cut_here=is_cut_here)
    _refuse_twice(request, source, _SET_BY_ORDERS if is_cut_here else _SET_BY_LOADERS)
    if request.num_threads and parts.loader.num_workers:
        raise make_both_error(parts.loader.num_workers, request.num_threads)
    name = type(source).__name__
    if parts.ready:
        _refuse_threads(request, name)
        stream = ReadyStream(
            source,
            expected=f"a ready global batch, because that is what {name} yields",
            cure="Give the DataLoader a batch_size, or a collate_fn that makes rows.",
        )
        return ReadySource(name=name, stream=stream, num_shards=None, request=Request())
    asked = Request(
        global_batch_size=request.global_batch_size if is_cut_here else parts.batch_size,
        shuffle=parts.shuffle,
        drop_last=request.drop_last if is_cut_here else parts.drop_last,
        collate_fn=request.collate_fn if is_cut_here else parts.collate_fn,
        allocate=request.allocate if not parts.loader.num_workers else pageable,
    )
    plain = asked.collate_fn is None and columns_of_dataset(parts.dataset) is not None
    # A tuple or dict of tensors has an index as well: torch asks it for dataset[i].
    inner = (_from_columns if plain else _from_indexable)(parts.dataset, asked)
    loader = replace(parts.loader, num_threads=request.num_threads)
    return replace(inner, name=name, sampler=parts.sampler, loader=loader)


def _refuse_twice(request: Request, loader: Any, names: tuple[str, ...]) -> None:
    """Refuse what a DataLoader has set already; the message shows both values."""
    default = Request()
    for name in names:
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


def _from_files(source: FileDataset, request: Request) -> StreamSource:
    from torch_distinput.data.files.dataset import find_files, with_shuffled_files  # noqa: PLC0415 - see above
    from torch_distinput.data.files.state_version_1 import read_flat_place_of_files  # noqa: PLC0415
    from torch_distinput.data.files.stream import FileStream  # noqa: PLC0415

    dataset = with_shuffled_files(source) if request.shuffle else source
    at_a_time = request.num_workers or request.num_threads

    def prepare() -> Prepared:
        listing = find_files(dataset)
        stream = FileStream(
            dataset=dataset,
            listing=listing,
            collate=request.collate_fn,
            threads=at_a_time if at_a_time > 1 else 0,
        )
        dealt = len(listing) if not dataset.split_files else None
        return Prepared(stream=stream, num_shards=dealt, digest=listing.digest)

    return StreamSource(
        name=f"FileDataset({', '.join(map(repr, source.patterns[:3]))}"
        f"{', ...' if len(source.patterns) > 3 else ''})",
        prepare=prepare,
        has_shards=True,
        request=request,
        read_version_1=partial(read_flat_place_of_files, source),
        more_shards=way_to_more_files(dataset),
        loader=request.loader_for(),
    )


def _from_columns(source: Any, request: Request) -> IndexedSource:
    fetch = ColumnFetch.of(columns_of(source), request.allocate)
    collate = request.collate_fn
    return IndexedSource(
        name=type(source).__name__,
        fetch=ExampleFetch(_ColumnExamples(fetch), collate) if collate else fetch,
        num_examples=fetch.num_examples,
        request=request,
        loader=request.loader_for(),
    )


def _from_indexable(source: Any, request: Request) -> IndexedSource:
    by_columns = request.collate_fn is None and gives_columns(source)
    return IndexedSource(
        name=type(source).__name__,
        fetch=TableFetch(source)
        if by_columns
        else ExampleFetch(source, request.collate_fn or _collate_of(source)),
        num_examples=len(source) if has_method(source, "__len__") else None,
        request=request,
        loader=request.loader_for(source),
    )


def _refuse_threads(request: Request, name: str) -> None:
    """Refuse them for what one thread can read only."""
    if request.num_threads:
        msg = (
            f"num_threads needs a source with an index, or files, got num_threads="
            f"{request.num_threads} for the stream {name}, which is read in one piece. Use "
            "num_workers, whose processes map and collate; or leave num_threads out."
        )
        raise ConfigurationError(msg)


def _collate_of(source: Any) -> CollateFn:
    """The default; a list is in memory, so that its numbers can be looked at beforehand."""
    types = number_types(source) if isinstance(source, list) else {}
    return partial(collate_examples, types=types) if types else collate_examples


def _from_shards(source: Any, request: Request) -> Source:
    return _from_stream(source, request, num_shards=int(source.num_shards))


def _from_stream(source: Any, request: Request, *, num_shards: int | None = None) -> Source:
    name = getattr(source, "__name__", type(source).__name__)
    _refuse_threads(request, name)
    by_shard = num_shards is not None and has_single_shards(source)
    if request.shuffle and not (by_shard and request.global_batch_size):
        raise make_no_shuffle_error(source, name)
    if (part := find_part_out_of_order(source)) is not None:
        msg = (
            f"Expected a stream in the same order on every rank and after a restart, got {name} "
            f"with a {type(part).__name__} of {part.num_workers} workers and in_order=False, whose "
            "examples overtake each other: some would be lost and others come twice. Leave "
            "in_order out."
        )
        raise ConfigurationError(msg)
    if request.global_batch_size is None:
        return _from_batches(source, request, num_shards=num_shards)
    collate = request.collate_fn or collate_examples
    prepared = Prepared(
        stream=ExampleStream(source, collate),
        num_shards=num_shards or 0,
        digest=blake2b(str(num_shards).encode(), digest_size=8).hexdigest(),
    )
    single = ShardStream(source, collate, shuffle=request.shuffle)
    return StreamSource(
        name=name,
        prepare=lambda: prepared,
        has_shards=num_shards is not None,
        request=request,
        read_version_1=partial(state_version_1.read_flat, state_version_1.EXAMPLES),
        made_of=source,
        by_shard=(lambda: replace(prepared, stream=single)) if by_shard else None,
        more_shards=way_to_more_shards(source),
        loader=request.loader_for(source),
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
        more_shards=way_to_more_shards(source),
        loader=request.loader_for(source),
    )


def _need_batch_size(request: Request, what: str) -> None:
    """Only streams may go without."""
    if request.global_batch_size is None:
        msg = (
            f"distribute_dataset needs global_batch_size for {what}: the number of examples over "
            "all replicas in one step. Got None."
        )
        raise ConfigurationError(msg)


@final
@dataclass(frozen=True, slots=True)
class _ColumnExamples:
    """Columns as examples, for a collate_fn that wants them."""

    columns: ColumnFetch

    def __getitem__(self, index: int) -> Any:
        return self.columns.example(index)


_MAKERS: dict[SourceKind, Callable[[Any, Request], Source]] = {
    SourceKind.MIXTURE: _from_mixture,
    SourceKind.PACKING: _from_packing,
    SourceKind.BUCKETS: _from_buckets,
    SourceKind.LOADER: _from_loader,
    SourceKind.FILES: _from_files,
    SourceKind.COLUMNS: _from_columns,
    SourceKind.INDEXED: _from_indexable,
    SourceKind.SHARDS: _from_shards,
    SourceKind.STREAM: _from_stream,
}
