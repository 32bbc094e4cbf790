"""Starting a source of the user's from a state of its own, and what it then tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch_distinput.data.user_sources.loader_start import loads_late, start_source
from torch_distinput.data.user_sources.parts import is_node, parts_of
from torch_distinput.data.user_sources.states import has_state, pack_state, unpack_state


def load_and_start(source: Any, state: Any) -> Iterator[Any]:
    """Start a source from a state of its own.

    Of one that is its own iterator, ``__iter__`` may set up what is loaded, or forget it.
    """
    if is_node(source):
        source.reset(state)
        return iter(source)
    before = pack_state(state)  # what is loaded becomes the source's
    iterator: Any
    try:
        source.load_state_dict(state)
    except Exception:
        iterator = iter(source)
        if iterator is not source:
            raise
        iterator.load_state_dict(unpack_state(before))
    else:
        iterator = start_source(source)
        if iterator is source:
            load_again(iterator, before)
    own: Iterator[Any] = iterator
    return own


def load_again(iterator: Any, words: str) -> None:
    """What a source forgot that is its own iterator: ``__iter__`` may begin an epoch."""
    with suppress(Exception):  # some have no state before their first example
        if pack_state(iterator.state_dict()) == words:
            return
    iterator.load_state_dict(unpack_state(words))


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
