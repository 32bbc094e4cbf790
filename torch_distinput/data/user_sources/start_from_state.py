"""Starting a source of the user's from a state of its own, and what it then tells."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch_distinput.data.user_sources.loader_start import loads_late, start_source
from torch_distinput.data.user_sources.parts import is_node, parts_of
from torch_distinput.data.user_sources.states import has_state, is_prompt, pack_state, unpack_state


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

    Torchdata's nodes, too, hand on the state of what they read from before their next snapshot, or
    from before a batch that they take apart; where that is a generator that had not begun to run by
    then, it is of the epoch before. Of several sources, one may not run for long.
    """
    parts = list(parts_of(source))
    num_blind = sum(map(_count_blind_of_loader, parts))
    if not is_prompt(source):
        num_blind += sum(getattr(part, "snapshot_frequency", 0) for part in parts)
    elif not num_blind:
        return 0
    if any(hasattr(part, "source_nodes") for part in parts):
        return sys.maxsize
    if not any(map(_takes_apart, parts)):
        return num_blind
    sizes = [part.batch_size for part in parts if is_node(part) and hasattr(part, "batch_size")]
    return (1 + num_blind) * math.prod(sizes) + 1 if sizes else sys.maxsize


def _count_blind_of_loader(part: Any) -> int:
    if not loads_late(part) or not part.num_workers or not has_state(part):
        return 0
    return int(part.num_workers + getattr(part, "snapshot_every_n_steps", 1) - 1)


def _takes_apart(part: Any) -> bool:
    """Whether it is a node that takes batches apart."""
    is_unbatcher = any(kind.__name__ == "Unbatcher" for kind in type(part).__mro__)
    return is_unbatcher or getattr(part, "prebatch", None) is not None
