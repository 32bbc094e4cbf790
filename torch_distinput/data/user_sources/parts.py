"""What a source of the user's is made of: the dataset and samplers of a loader, say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.utils.data import DistributedSampler, Subset

from torch_distinput.data.batch.object_parts import (
    attributes_of,
    find_globals,
    find_names,
    has_method,
    has_own,
    read_closure,
)
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.mixture import Mixture
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.values import Distributed

_MOST_PARTS = 256
"""Of a source, so many are looked at."""

_CODE = (FunctionType, MethodType, partial)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple)
_PLAIN = {int, float, bool, str, bytes, type(None)}
RECIPES = (Mixture, DocumentPacking, Buckets)
"""Of ours: what they hold is looked for inside."""
_INNER = (
    *("dataset", "datasets", "sampler", "batch_sampler"),  # of torch
    *("source", "source_nodes", "iterable", "root"),  # of torchdata's nodes
    "pipeline",  # of WebDataset
)


def parts_of(source: Any, *, closed: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """Yield a source and what it is made of, each once; not what is inside of a ``closed`` one."""
    waiting, seen = [source], {id(source)}
    while waiting:
        part = waiting.pop()
        yield part
        if closed(part) or not (_is_of_torch(part) or isinstance(part, RECIPES)):
            continue
        new = [inner for inner in _inside(part) if id(inner) not in seen]
        seen.update(map(id, new))
        waiting += new


def reachable_parts(source: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield a source, what it is made of, and what objects and functions of the user's hold.

    Each once; not what is inside of one that is wanted, nor all of a source of very many parts.
    """
    call = None if _is_data(source) else getattr(source, "__call__", None)  # noqa: B004
    source = call if _is_a(call, MethodType) else source  # an object that is called, as a function
    waiting, seen = [source], {id(source)}
    while waiting and len(seen) < _MOST_PARTS:
        for part in parts_of(waiting.pop(), closed=wanted):
            yield part
            if wanted(part):
                continue
            new = [held for held in _held_by(part, wanted) if id(held) not in seen]
            seen.update(map(id, new))
            waiting += new


def _held_by(part: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """What an iterable, dataset or function of the user's refers to: what is wanted, or leads on.

    By attributes, closures, globals, defaults, arguments of a partial, the owner of a method, and
    attributes that code names of those; and what is in lists, tuples and dicts there. But no
    distributed dataset, which is at an epoch of its own.
    """
    is_code = _is_a(part, *_CODE)
    owner = part.__self__ if _is_a(part, MethodType) else None
    for value in _values_in(part):
        for held in _items_of(value):
            if type(held) in _PLAIN or _is_a(held, Distributed, type, ModuleType):
                continue
            # What code names may have anything to do with epochs: a display of progress, say.
            counts = _is_data(held) or not is_code or held is owner
            if (counts and wanted(held)) or _values_in(held):
                yield held


def _values_in(part: Any) -> list[Any]:
    if _is_a(part, partial):
        return [part.func, *part.args, *part.keywords.values()]
    if _is_a(part, FunctionType):
        known = part.__globals__
        named = [known[name] for name in sorted(find_globals(part.__code__)) if name in known]
        # A function of another module is a library's, and leads far away.
        own = [
            value
            for value in named
            if not (_is_a(value, FunctionType) and value.__globals__ is not known)
        ]
        defaults = [*(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values()]
        found = [*read_closure(part), *defaults, *own]
        return [*found, *_named_attributes(found, find_names(part.__code__))]
    if _is_a(part, MethodType):
        owner = part.__self__
        return [owner, part.__func__, *attributes_of(owner).values()]
    # Of their classes: what a program names may well raise when it is asked for an attribute.
    return list(attributes_of(part).values()) if _is_data(part) else []


def _named_attributes(objects: Iterable[Any], names: set[str]) -> Iterator[Any]:
    """Attributes by those names, as code reads them of ``self``: of what is no data itself."""
    for one in objects:
        if not (type(one) in _PLAIN or _is_a(one, type, ModuleType, *_CODE) or _is_data(one)):
            kept = attributes_of(one)
            yield from (kept[name] for name in sorted(names.intersection(kept)))


def _is_a(value: Any, *kinds: type) -> bool:
    """By its own class: ``isinstance`` asks a proxy for another one.

    That may raise, as of settings that nobody has read yet, or of a request outside of any.
    """
    return issubclass(type(value), kinds)


def _is_data(part: Any) -> bool:
    return has_method(part, "__iter__") or has_method(part, "__getitem__")


def _items_of(value: Any, depth: int = 2) -> Iterable[Any]:
    """The few values in a list, tuple or dict, and in one inside of it; or the value itself."""
    kind = next((kind for kind in _CONTAINERS if _is_a(value, kind)), None)
    if kind is None or kind.__len__(value) >= _MOST_PARTS or not depth:
        return [value]
    items = list(dict.values(value) if kind is dict else kind.__iter__(value))
    if _PLAIN.issuperset(map(type, items)):
        return ()
    return chain.from_iterable(_items_of(item, depth - 1) for item in items)


def deals_shards(source: Any) -> bool:
    """Whether it can be dealt out: it has ``num_shards`` and ``shard`` (Hugging Face streams).

    The method is its own: a wrapper that hands on what it has not, by ``__getattr__``, would deal
    out what it wraps, and what its own ``__iter__`` does would be lost.
    """
    return hasattr(source, "num_shards") and has_own(source, "shard")


def may_give_columns(dataset: Any) -> bool:
    """Whether it has ``__getitems__``, which may give a batch; a ``Subset`` asks its dataset's."""
    return has_own(_inside_subsets(dataset), "__getitems__")


def find_getitems(dataset: Any) -> Callable[[list[int]], Any] | None:
    """``__getitems__``, unless a wrapper hands on that of what it wraps, by ``__getattr__``.

    What its own ``__getitem__`` does would be lost then, as in a DataLoader.
    """
    inner = _inside_subsets(dataset)
    if hasattr(inner, "__getitems__") and not has_own(inner, "__getitems__"):
        return None
    return getattr(dataset, "__getitems__", None)


def _inside_subsets(dataset: Any) -> Any:
    while getattr(type(dataset), "__getitems__", None) is Subset.__getitems__:
        dataset = dataset.dataset
    return dataset


def is_node(source: Any) -> bool:
    """Whether it is a node of torchdata, which takes its state when it is reset."""
    return hasattr(source, "reset") and hasattr(source, "get_state")


def find_part_out_of_order(source: Any) -> Any:
    """The loader or node that hands on what is ready first (``in_order=False``), if any."""
    for part in parts_of(source):
        if not getattr(part, "in_order", True) and getattr(part, "num_workers", 0) > 1:
            return part
    return None


def split_of(source: Any) -> Any:
    """The part that was split for a node (``datasets.distributed.split_dataset_by_node``), if any.

    Of Hugging Face's streams: they keep the node and the number of nodes.
    """
    for part in parts_of(source):
        num_nodes = getattr(getattr(part, "_distributed", None), "world_size", 1)
        if isinstance(num_nodes, int) and num_nodes > 1:
            return part
    return None


def find_distributed_sampler(source: Any) -> DistributedSampler[Any] | None:
    """The sampler of torch's that takes a part of the indices in it, if any."""
    return next((part for part in parts_of(source) if isinstance(part, DistributedSampler)), None)


def _inside(part: Any) -> Iterator[Any]:
    if isinstance(part, Mixture):
        yield from part.sources.values()
        return
    for name in _INNER:
        inner = getattr(part, name, None)
        if isinstance(inner, Mapping):
            yield from inner.values()
        elif isinstance(inner, (list, tuple)):
            yield from inner
        elif inner is not None:
            yield inner


def _is_of_torch(part: Any) -> bool:
    """Whether it is a loader, dataset, sampler or node: by name, so nothing need be imported."""
    return any(
        kind.__module__.partition(".")[0] in ("torch", "torchdata") for kind in type(part).__mro__
    )
