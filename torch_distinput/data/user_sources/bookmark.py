"""One run over a Hugging Face stream whose own state says, exactly, where it is.

Unlike other sources with a state, it needs no history: where it is follows from the epoch, which it
is told, and the state. So an epoch begins without one, and a place is kept like this:

    ["bookmark", ["example", 12], ["state", "{...}"]]       our number, its state as text
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.parts import RECIPES, deals_shards, parts_of
from torch_distinput.data.user_sources.run import SourceRun
from torch_distinput.data.user_sources.single_process import (
    as_single_process,
    iterate_as_single_process,
)
from torch_distinput.data.user_sources.stages import find_stages, has_exact_state, renew_stages
from torch_distinput.data.user_sources.states import pack_state, unpack_state
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.progress.place import Place, Start

BOOKMARK = "bookmark"
"""The kind of place that such a state is."""


@final
class BookmarkedRun:
    """A stream under way.

    Attributes:
        items: what it yields.
        tells_beginning: its copies all begin there.
        at_epoch: nothing; it is told its epoch, and nobody else has it.
    """

    tells_beginning = True
    at_epoch = AtEpoch(None, 0)

    def __init__(self, source: Any, start: Start, *, epoch: int | None) -> None:
        """Start a copy of a stream, from its beginning or from a :meth:`place`."""
        own = source.shard(num_shards=1, index=0)  # its stages keep where they are
        renew_stages(own)
        own.set_epoch(epoch or 0)
        told = {pack_state(own.state_dict())}
        if start is not None:
            words = start.check(BOOKMARK).value("state")
            own.load_state_dict(unpack_state(words))
            told.add(words)
        self._source = own
        self._told_before, self._last = frozenset(told), ""
        self._is_exact = has_exact_state(source)
        with as_single_process():
            iterator = iter(own)
        self.items: Iterator[Any] = iterate_as_single_process(iterator)

    def beginning(self, **numbers: int) -> Start:
        """None: the beginning needs no state."""

    def place(self, **numbers: int) -> Start:
        """Where it can be started again, behind what it has yielded since it was asked last.

        None if the state is one that it told before: after a resume it may stand still.
        """
        if not self._is_exact:
            return None
        words, last = pack_state(self._source.state_dict()), self._last
        self._last = words
        if words == last or words in self._told_before:
            return None
        return Place(BOOKMARK, (*numbers.items(), ("state", words)))


def start_run(source: Any, start: Start, *, epoch: int | None) -> SourceRun | BookmarkedRun:
    """Start a source of whatever kind."""
    is_bookmarked = start.kind == BOOKMARK if start else has_exact_state(source)
    if is_bookmarked and deals_shards(source):
        return BookmarkedRun(source, start, epoch=epoch)
    return SourceRun(source, start, epoch=epoch)


def refuse_begun(source: Any, *, is_dealt: bool) -> None:
    """Refuse a stream that was given a position, where copies of it are played, which forget it.

    Also inside of a mixture, packing or buckets.

    Args:
        source: of the user's.
        is_dealt: its shards are dealt out.

    Raises:
        ConfigurationError: a ValueError.
    """
    for part in parts_of(source, closed=lambda part: not isinstance(part, RECIPES)):
        if getattr(part, "_starting_state_dict", None) is None or not list(find_stages(part)):
            continue
        if is_dealt or has_exact_state(part):
            msg = (
                f"Expected a stream at its beginning, got a {type(part).__name__} whose "
                "load_state_dict() was called: it would be played from the beginning all the "
                "same. Distribute a fresh stream, and load a state that the distributed dataset's "
                "state_dict() gave into that dataset."
            )
            raise ConfigurationError(msg)
