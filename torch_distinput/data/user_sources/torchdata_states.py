"""When to believe what a source of the user's tells of where it is: torchdata's have their traps.

A StatefulDataLoader and torchdata's nodes hand on states of what they read, of their processes, and
of batches under way. Some of these are old, and from some they start otherwise than one may think.
A source whose state cannot be believed is read again, up to where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from torch.utils.data import IterableDataset

from torch_distinput.data.user_sources.loader_start import loads_late
from torch_distinput.data.user_sources.parts import deals_shards, parts_of
from torch_distinput.data.user_sources.stages import find_stages
from torch_distinput.data.user_sources.states import has_state, is_prompt, pack_state


def find_holders(source: Any, iterator: Any) -> list[Any]:
    """Who tells where a source is that was started: itself, its iterator, or both.

    Nobody where shards are dealt out, also inside of it: the state of a Hugging Face stream forgets
    what a shuffle buffer held. Such a source is read again, and passed over.
    """
    parts = list(parts_of(source))
    if any(map(deals_shards, parts)):
        return []
    if not has_state(source):
        return [iterator] if has_state(iterator) else []
    if any(map(_is_counting_loader, parts)) or _shares_states(parts):
        return []
    both = isinstance(source, IterableDataset) and iterator is not source and has_state(iterator)
    return [source, iterator] if both else [source]


def is_exact(source: Any) -> bool:
    """Whether the state of a source, which was started, tells where it is, also in later passes.

    A Hugging Face stream begins each later pass, too, where a loaded state is. A Loader of
    torchdata.nodes says after its last batch that it is in the next epoch. What only counts batches
    counts some twice. Processes of a StatefulDataLoader that have ended may begin again.
    """
    parts = list(parts_of(source))
    is_of_nodes = any(hasattr(part, "restart_on_stop_iteration") for part in parts)
    has_stream = any(list(find_stages(part)) for part in parts)
    counts = any(map(_is_counting_loader, parts))
    return not (is_of_nodes or has_stream or counts or any(map(_has_processes, parts)))


def _has_ended_process(source: Any, state: Any) -> bool:
    """Whether the stream in a process of a StatefulDataLoader has ended: its own, or one inside.

    When its state is loaded, that process is asked for one batch more, and a stream that begins
    anew by itself would be played again. The state tells of an end within the last batch, the
    loader of one after it.
    """
    loaders = list(filter(_has_processes, parts_of(source)))
    if not loaders:
        return False
    iterators = (getattr(loader, "_iterator", None) for loader in loaders)
    go_on = chain.from_iterable(getattr(each, "_workers_status", ()) for each in iterators)
    snapshots = _find_values(state, "_snapshot")
    ended = chain.from_iterable(_find_values(each, "fetcher_ended") for each in snapshots)
    return not all(go_on) or any(found is True for found in ended)


def _is_counting_loader(loader: Any) -> bool:
    """Whether it is a StatefulDataLoader, started, over a stream that has no state.

    Its state is a number of batches. Started from one it passes over so many, and counts them
    twice: what it says next is of a later place.
    """
    return _loads_stream(loader) and counts_batches(loader.state_dict())


def counts_batches(state: Any) -> bool:
    """Whether it is the state of such a loader, or holds it."""
    if not isinstance(state, Mapping):
        return False
    fetcher = state.get("fetcher_state")
    if isinstance(fetcher, Mapping) and "dataset_state" in state:
        return fetcher.get("dataset_iter_state") is None and state["dataset_state"] is None
    return any(map(counts_batches, state.values()))


def count_blind(source: Any) -> int:
    """How many items of a source that was started must have come before its state is true.

    A StatefulDataLoader forgets the state of each of its processes that has yielded nothing since
    it was loaded, and would start that one from the beginning. They take turns. And where it notes
    states now and then, it first tells the one that was noted before any process had begun to run.
    """
    return sum(map(_count_blind_of_loader, parts_of(source)))


def _count_blind_of_loader(part: Any) -> int:
    if not loads_late(part) or not part.num_workers or not has_state(part):
        return 0
    return int(part.num_workers + getattr(part, "snapshot_every_n_steps", 1) - 1)


def find_old_states(source: Any, holders: Sequence[Any]) -> frozenset[str]:
    """What is told, at the start, of parts of a source that have not begun to run.

    It need not be true if they are generators of the user's (:func:`is_prompt`), but may be of the
    epoch before. A state may hold it for a while: that of a process, of a snapshot, of one of
    several sources, or from before a batch that is taken apart.

    Another library's loader holds no such parts, and is not asked: litdata's writes another epoch
    into a state that was just loaded.
    """
    if loads_late(source) and not _is_stateful_loader(source):
        return frozenset()
    with suppress(Exception):  # some have no state before their first example
        if not is_prompt(source):
            states = [holder.state_dict() for holder in holders]
            return frozenset(chain.from_iterable(map(_find_parts, states)))
    return frozenset()


def are_true(holders: Sequence[Any], states: Sequence[Any], old: frozenset[str]) -> bool:
    """Whether one may start from states, given what was told of parts that had not begun to run."""
    if any(map(_has_ended_process, holders, states)):
        return False
    return not old or old.isdisjoint(chain.from_iterable(map(_find_parts, states)))


def _find_parts(state: Any) -> Iterator[str]:
    """The states in a state that may be older than it."""
    if not isinstance(state, Mapping):
        return
    if "worker_id" in state:
        yield pack_state(state)
        return
    for name, value in state.items():
        if name == "snapshot" or (name == "source" and "batch_idx" in state):
            yield pack_state(value)
        elif name == "dataset_node_states" and isinstance(value, Mapping):
            yield from map(pack_state, value.values())
        yield from _find_parts(value)


def _shares_states(parts: Sequence[Any]) -> bool:
    """Whether a node takes apart what comes from a weighted sampler, inside of torchdata 0.11.

    The sampler marks in the state that it has loaded who has ended, and the node tells that one.
    """
    takes_apart = any(
        getattr(part, "prebatch", None) is not None
        or any(kind.__name__ == "Unbatcher" for kind in type(part).__mro__)
        for part in parts
    )
    return takes_apart and any(hasattr(part, "source_nodes") for part in parts)


def _is_stateful_loader(source: Any) -> bool:
    return any(kind.__name__ == "StatefulDataLoader" for kind in type(source).__mro__)


def _loads_stream(source: Any) -> bool:
    """Whether it is a StatefulDataLoader over a stream."""
    return _is_stateful_loader(source) and isinstance(source.dataset, IterableDataset)


def _has_processes(source: Any) -> bool:
    """Whether it is one whose processes read the stream."""
    return _loads_stream(source) and source.num_workers > 0


def _find_values(state: Any, name: str) -> Iterator[Any]:
    """What has this name in the state of a loader, in each of its processes."""
    for key, value in state.items() if isinstance(state, Mapping) else ():
        if key == name:
            yield value
        else:
            yield from _find_values(value, name)
