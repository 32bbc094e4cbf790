"""What there is to know about a DataLoader that a user built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.user_sources.states import has_state
from torch_distinput.errors import ConfigurationError

_log = logging.getLogger(__name__)
_KEPT = ("multiprocessing_context", "prefetch_factor", "timeout")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderParts:
    """What a user's DataLoader consists of.

    Attributes:
        dataset: the dataset it reads.
        ready: the loader itself is the stream of global batches (over an IterableDataset, without
            batches of its own, or with an ``__iter__`` of the user's).
        batch_size: examples in a global batch; None with a batch sampler of the user's own.
        shuffle: it has a plain RandomSampler, which becomes our own order.
        sampler: the user's own sampler, or batch sampler where ``batch_size`` is None.
    """

    dataset: Any
    ready: bool
    batch_size: int | None
    drop_last: bool
    shuffle: bool
    sampler: Iterable[Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    loader: LoaderOptions


def is_loader(source: object) -> bool:
    """Whether the source is a torch DataLoader or a class made from it."""
    return isinstance(source, DataLoader)


def gives_order(loader: DataLoader[Any]) -> bool:
    """Whether it has no batches of its own, but an order of examples with an index."""
    has_index = not isinstance(loader.dataset, IterableDataset)
    is_plain = loader.collate_fn is default_convert and loader.batch_sampler is None
    return is_plain and has_index and not has_own_iter(loader)


def look_through(loader: DataLoader[Any], *, is_cut_here: bool = False) -> LoaderParts:
    """Take a DataLoader apart; ``is_cut_here``: its order is to be cut into batches of ours.

    Raises:
        ConfigurationError: for a DistributedSampler, ``in_order=False``, a position that was
            loaded, or ready batches of a dataset with an index in an order that is drawn.
    """
    _refuse(loader)
    batches: Any = BatchSampler(loader.sampler, 1, False) if is_cut_here else loader.batch_sampler
    own_iter = has_own_iter(loader)
    if own_iter:
        _log.info(
            "%s has an __iter__ of its own: its batches, in its order, are the global batches, and "
            "every rank reads them all.",
            type(loader).__name__,
        )
    is_stream = isinstance(loader.dataset, IterableDataset)
    ready = own_iter or is_stream or batches is None
    if ready and not is_stream:
        _refuse_drawn_order(loader, own_iter=own_iter)
    if not ready and getattr(loader, "next_iter_state", None) is not None:
        raise _make_begun_error(type(loader).__name__)
    plain = not ready and _is_plain_batching(batches)
    order = None if ready else batches.sampler if plain else batches
    ours = plain and _is_plain(order, loader.dataset)
    if ours:
        _warn_of_generator(loader, order)
    collate_fn = loader.collate_fn
    return LoaderParts(
        dataset=loader.dataset,
        ready=ready,
        batch_size=batches.batch_size if plain else None,
        drop_last=batches.drop_last if plain else False,
        shuffle=ours and type(order) is not SequentialSampler,
        sampler=None if ours else order,
        collate_fn=None if collate_fn is default_collate else collate_fn,
        loader=LoaderOptions(
            num_workers=loader.num_workers,
            keywords=_keep_keywords(loader),
            persistent=loader.persistent_workers,
            dataset=loader.dataset,
            init_fn=loader.worker_init_fn,
        ),
    )


def _warn_of_generator(loader: DataLoader[Any], sampler: Any) -> None:
    if getattr(sampler, "generator", None) is None:
        return
    if loader.generator is None and type(sampler).__module__.startswith("torchdata."):
        return  # it has made that itself
    _log.warning(
        "The DataLoader's generator is not used: distribute_dataset(seed=) and the epoch decide "
        "the order, so that it is the same on all ranks."
    )


def _keep_keywords(loader: DataLoader[Any]) -> dict[str, Any]:
    if not loader.num_workers:
        return {}
    return {name: getattr(loader, name) for name in _KEPT}


def _refuse(loader: DataLoader[Any]) -> None:
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            msg = (
                "Expected a DataLoader over the whole dataset with the global batch size, got one "
                "with a DistributedSampler, which already cuts (and repeats) examples. Leave the "
                "sampler out; shuffle=True on the DataLoader shuffles by distribute_dataset's seed."
            )
            raise ConfigurationError(msg)
    if not getattr(loader, "in_order", True):
        msg = (
            "Expected a DataLoader with in_order=True, got in_order=False: batches that overtake "
            "each other differ between ranks. Leave in_order out."
        )
        raise ConfigurationError(msg)


def _refuse_drawn_order(loader: DataLoader[Any], *, own_iter: bool) -> None:
    """Torch iterates it where batches are ready: no seed of ours decides what it draws."""
    order: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while hasattr(order, "sampler") and not hasattr(order, "set_epoch"):
        order = order.sampler
    is_fixed = type(order) is SequentialSampler or isinstance(order, (list, tuple, range))
    if is_fixed or callable(getattr(order, "set_epoch", None)):
        return
    if own_iter and has_state(loader):  # it tells where in its order it is
        return
    if own_iter:
        expected = f"a {type(loader).__name__} whose own __iter__ keeps the order of its dataset"
        cure = "If its __iter__ only changes batches, do that in collate_fn or in the training loop"
    else:
        expected = "a DataLoader with batch_size=None in the order of its dataset"
        cure = (
            "If the dataset gives examples, pass it itself with global_batch_size and "
            "shuffle=True, or give the DataLoader a batch_size"
        )
    msg = (
        f"Expected {expected}, got the sampler {type(order).__name__}: seed= does not decide what "
        "it draws, so that after a restart some batches would be lost and others come twice. "
        f"{cure}. Else pass a sampler whose set_epoch(epoch) decides the order."
    )
    raise ConfigurationError(msg)


def _make_begun_error(name: str) -> ConfigurationError:
    """The error for a StatefulDataLoader that would go on from a state: here it is not played."""
    msg = (
        f"Expected a {name} at its beginning, got one whose load_state_dict() was called: its "
        "dataset is read by our order, from the beginning. Distribute a fresh one, and load a "
        "state that the distributed dataset's state_dict() gave into that dataset."
    )
    return ConfigurationError(msg)


def _is_plain_batching(batches: object) -> bool:
    """Whether batches are consecutive windows of a sampler, as torch and torchdata make them."""
    return type(batches).__name__ == BatchSampler.__name__ and _is_of_torch(type(batches))


def _is_plain(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler's order over the dataset can be made by the seed and the epoch alone."""
    if not has_method(dataset, "__len__"):  # torch does not ask for it where a sampler is given
        return False
    if type(sampler) is SequentialSampler:
        return len(sampler) == len(dataset)
    random = type(sampler).__name__ == RandomSampler.__name__ and _is_of_torch(type(sampler))
    if not random or sampler.replacement or len(sampler) != len(dataset):
        return False
    return len(sampler.data_source) == len(dataset)  # else some indices come twice, others never


def has_own_iter(loader: DataLoader[Any]) -> bool:
    """Whether a class of the user's makes the batches: by ``__iter__``, or by what that calls."""
    methods = ("__iter__", "_get_iterator")
    return not all(_is_of_torch(_defining_class(loader, method)) for method in methods)


def _defining_class(value: object, method: str) -> type:
    """The class that a method comes from."""
    return next(kind for kind in type(value).__mro__ if method in vars(kind))


def _is_of_torch(kind: type) -> bool:
    """By module name, so that torchdata need not be imported for its own classes."""
    return kind.__module__.partition(".")[0] in ("torch", "torchdata")
