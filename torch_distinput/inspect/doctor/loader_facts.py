"""What a DataLoader says of itself: by its attributes alone.

Nothing is iterated, no random number is drawn, and ``len()`` is asked of datasets and samplers
only: a loader over a stream remembers that it was asked, and warns later.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any, Literal, cast, final

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torch_distinput.inspect.doctor.dataset_contents import Contents, look_into
from torch_distinput.inspect.doctor.kept_arguments import name_collate_fn, write_kept
from torch_distinput.rendering.units import show_count

LoaderOrder = Literal["in order", "shuffled", "drawn with replacement", "by a sampler of its own"]
Divider = Literal["DistributedSampler", "BatchSamplerShard", "IterableDatasetShard", "unknown"]
_WRAPPED = ("base_dataloader", "_dataloader", "_loader")
"""Where Accelerate, Lightning Fabric and the loaders of XLA keep the loader that they wrap."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """Who divides the examples among ranks.

    Attributes:
        divider: by what rule; unknown: by a class of which nothing is known here.
        num_ranks: among how many; None where that is not said.
        rank: whose part this loader reads; None where that is not said.
        drop_last: whether the divider leaves out what does not divide.
        even_batches: whether BatchSamplerShard fills the last round from the first.
        split_batches: whether it cuts each batch, instead of dealing out whole ones.
    """

    divider: Divider
    num_ranks: int | None = None
    rank: int | None = None
    drop_last: bool = False
    even_batches: bool = False
    split_batches: bool = False


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderFacts:
    """A DataLoader, as it stands.

    Attributes:
        dataset: the name of its class.
        is_stream: whether the dataset is an IterableDataset.
        is_ours: whether torch_distinput made the dataset: it divides itself.
        may_be_part: whether the dataset or sampler may be a part of something larger.
        num_examples: what is there before ranks divide it; None where that is unknown.
        batch_size: of one batch of this loader; 1 without batches; None where the sampler decides.
        division: who divides the examples among ranks; None: nobody.
        loader_processes: the DataLoader's own ``num_workers``.
        start_method: by which these are started; None without them.
        has_init_fn: whether it has a ``worker_init_fn``.
        order_argument: what gives the same order to all ranks: ``"shuffle=True"``, ``""`` or, for a
            sampler of the user's, ``"sampler=sampler"``.
        collate_fn: the name of the user's own.
        kept: the other arguments that stay as they are, as code.
    """

    dataset: str
    is_stream: bool
    is_ours: bool
    may_be_part: bool
    num_examples: int | None
    batch_size: int | None
    drop_last: bool
    order: LoaderOrder
    division: Division | None
    loader_processes: int
    persistent: bool
    pins: bool
    start_method: str | None
    has_init_fn: bool
    order_argument: str
    collate_fn: str | None
    kept: str
    contents: Contents

    def __str__(self) -> str:
        """One line, as a title."""
        known = self.num_examples
        count = "" if known is None else f" of {show_count(known, 'example')}"
        size = "" if self.batch_size is None else f", batches of {self.batch_size:,}"
        by = "" if self.division is None else f", divided by {self._divider_name()}"
        order = "a stream" if self.is_stream else self.order
        return f"DataLoader over {self.dataset}{count}{size}, {order}{by}"

    def _divider_name(self) -> str:
        assert self.division is not None
        return "a class of its own" if self.division.divider == "unknown" else self.division.divider


def look_at(loader: Any) -> LoaderFacts:
    """Take the facts of a DataLoader, or of one that a framework has wrapped.

    Raises:
        TypeError: for anything else.
    """
    is_dispatched = type(loader).__name__ == "DataLoaderDispatcher"  # Accelerate: one rank reads
    loader = unwrapped(loader)
    dataset = loader.dataset
    is_stream = isinstance(dataset, IterableDataset)
    batches = _batches_of(loader)
    division = _find_stream_division(dataset) if is_stream else _find_division(loader)
    division = Division(divider="unknown") if is_dispatched else division
    sampler = None if is_stream else _innermost(loader)
    drop_last = loader.drop_last or bool(getattr(_shard_of(loader), "drop_last", False))
    return LoaderFacts(
        dataset=type(getattr(dataset, "dataset", dataset) if division else dataset).__name__,
        is_stream=is_stream,
        is_ours=type(dataset).__module__.startswith("torch_distinput."),
        may_be_part=isinstance(dataset, Subset) or isinstance(sampler, SubsetRandomSampler),
        num_examples=_length(dataset) if is_stream else _count(sampler),
        batch_size=_batch_size(loader, batches, is_stream=is_stream),
        drop_last=drop_last or bool(getattr(batches, "drop_last", False)),
        order="in order" if is_stream else _order_of(sampler),
        division=division,
        loader_processes=loader.num_workers,
        persistent=loader.persistent_workers,
        pins=loader.pin_memory,
        start_method=_start_method(loader),
        has_init_fn=loader.worker_init_fn is not None,
        order_argument=_order_argument(sampler, dataset),
        collate_fn=name_collate_fn(loader),
        kept=write_kept(loader),
        contents=look_into(dataset),
    )


def unwrapped(loader: Any) -> DataLoader[Any]:
    """Return the DataLoader itself.

    Raises:
        TypeError: where there is none.
    """
    for name in _WRAPPED:
        inner = getattr(loader, "__dict__", {}).get(name)
        if inner is not None:
            return unwrapped(inner)
    if not issubclass(type(loader), DataLoader):  # a wrapper may give itself another __class__
        msg = (
            f"Expected a torch DataLoader, or one that Accelerate or Fabric has prepared, got "
            f"{type(loader).__name__}. Pass the loader that the training loop iterates. What "
            "distribute_dataset returns divides itself."
        )
        raise TypeError(msg)
    return cast(DataLoader[Any], loader)


def _shard_of(loader: DataLoader[Any]) -> Any:
    """Accelerate's BatchSamplerShard, by its name and what it has: Accelerate is not imported."""
    for batches in (loader.batch_sampler, loader.sampler):
        if type(batches).__name__ == "BatchSamplerShard" and hasattr(batches, "even_batches"):
            return batches
    return None


def _find_division(loader: DataLoader[Any]) -> Division | None:
    shard = _shard_of(loader)
    if shard is not None:
        if shard.num_processes == 1:
            return None
        return Division(
            divider="BatchSamplerShard",
            num_ranks=shard.num_processes,
            rank=shard.process_index,
            drop_last=shard.drop_last,
            even_batches=shard.even_batches,
            split_batches=shard.split_batches,
        )
    sampler = _innermost(loader)
    if isinstance(sampler, DistributedSampler):
        known = _pads_as_torch(type(sampler))
        return Division(
            divider="DistributedSampler" if known and _batches_plainly(loader) else "unknown",
            num_ranks=sampler.num_replicas,
            rank=sampler.rank,
            drop_last=sampler.drop_last,
        )
    is_known = sampler is None or _order_of(sampler) != "by a sampler of its own"
    return None if is_known and _batches_plainly(loader) else Division(divider="unknown")


def _find_stream_division(dataset: Any) -> Division | None:
    """Accelerate's and transformers' shard of a stream."""
    is_shard = type(dataset).__name__ == "IterableDatasetShard" and hasattr(dataset, "dataset")
    if not is_shard or dataset.num_processes == 1:
        return None
    return Division(
        divider="IterableDatasetShard",
        num_ranks=dataset.num_processes,
        rank=dataset.process_index,
        drop_last=dataset.drop_last,
    )


def _pads_as_torch(kind: type) -> bool:
    """Whether a sampler has torch's arithmetic: torch's own, and Lightning's around a sampler."""
    return kind is DistributedSampler or kind.__name__ == "DistributedSamplerWrapper"


def _batches_of(loader: DataLoader[Any]) -> Any:
    """What makes batches of indices, through what divides them; None where nothing does.

    With ``batch_size=None`` a sampler may give whole batches to the dataset.
    """
    shard = _shard_of(loader)
    if shard is not None:
        return shard.batch_sampler
    is_sampler = loader.batch_sampler is None and isinstance(loader.sampler, BatchSampler)
    return loader.sampler if is_sampler else loader.batch_sampler


def _batches_plainly(loader: DataLoader[Any]) -> bool:
    """Whether batches are consecutive windows of the sampler, or there are none."""
    batches = _batches_of(loader)
    return batches is None or _is_plain_batching(batches)


def _is_plain_batching(batches: Any) -> bool:
    # Lightning's wrapper for predictions copies the attributes of what it wraps.
    batches = getattr(batches, "_batch_sampler", batches)
    kind = type(batches)
    return kind is BatchSampler or (
        kind.__name__ == "BatchSampler" and kind.__module__.startswith("torchdata.")
    )


def _innermost(loader: DataLoader[Any]) -> Any:
    """The sampler that gives examples, through what batches and divides them."""
    return getattr(_batches_of(loader), "sampler", loader.sampler)


def _order_of(sampler: Any) -> LoaderOrder:
    if isinstance(sampler, DistributedSampler):
        own = getattr(sampler.dataset, "_sampler", None)  # Lightning's, around a sampler
        if own is not None:
            return _order_of(own)
        return "shuffled" if sampler.shuffle else "in order"
    kind = type(sampler)
    if kind is SequentialSampler:
        return "in order"
    is_random = isinstance(sampler, RandomSampler) or (
        kind.__name__ == "RandomSampler" and kind.__module__.startswith("torchdata.")
    )
    if isinstance(sampler, WeightedRandomSampler) or (is_random and sampler.replacement):
        return "drawn with replacement"
    if is_random or kind is SubsetRandomSampler:
        return "shuffled"
    return "by a sampler of its own"


def _order_argument(sampler: Any, dataset: Any) -> str:
    order = _order_of(sampler)
    is_whole = isinstance(sampler, DistributedSampler) or _length(sampler) == _length(dataset)
    if order not in {"in order", "shuffled"} or not is_whole:
        return "sampler=sampler"
    return "shuffle=True" if order == "shuffled" else ""


def _batch_size(loader: DataLoader[Any], batches: Any, *, is_stream: bool) -> int | None:
    shard = _shard_of(loader)
    if shard is not None:
        return shard.batch_size if _batches_plainly(loader) else None
    if batches is None:
        return 1
    return batches.batch_size if is_stream or _is_plain_batching(batches) else None


def _count(sampler: Any) -> int | None:
    """What a sampler goes over, before it divides it."""
    return _length(sampler.dataset if isinstance(sampler, DistributedSampler) else sampler)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _start_method(loader: DataLoader[Any]) -> str | None:
    if not loader.num_workers:
        return None
    context: Any = loader.multiprocessing_context
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)  # to ask otherwise would choose it
    return chosen or multiprocessing.get_all_start_methods()[0]
