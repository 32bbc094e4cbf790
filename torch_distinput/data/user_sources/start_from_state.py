"""Starting a source of the user's from a state of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch_distinput.data.user_sources.loader_start import start_source
from torch_distinput.data.user_sources.parts import is_node
from torch_distinput.data.user_sources.states import pack_state, unpack_state


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
