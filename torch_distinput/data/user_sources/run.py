"""One run over a source of the user's: started from the right place, once, and asked where it is.

A run sees the same in the main process and in a loader process: inside of a source
``get_worker_info()`` is None, since one process reads all of it. Torch's datasets would take a
part for each process, and Hugging Face's draw another order.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data._utils import worker as torchs_worker

from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.loader_start import started, starts_anew
from torch_distinput.data.user_sources.parts import is_node
from torch_distinput.data.user_sources.states import (
    epochs_before,
    followed,
    has_state,
    is_prompt,
    joined,
    keepers_of,
    left_epoch,
    make_place,
    of_new,
    packed,
    parted,
    separated,
    state_of_new,
    unpacked,
)
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.place import Start


@dataclass(slots=True)
class _Memory:
    """What this process knows of a source that was started in it.

    Attributes:
        first: its state when it was started first, if it keeps it itself.
        begun: the words from which the last run began.
        noted: the last states in that run.
        ended: that run came to the end of the source.
        used_up: the iterator that came to its end, as long as somebody else keeps it.
    """

    first: str | None = None
    begun: str | None = None
    noted: deque[str] = field(default_factory=lambda: deque(maxlen=2))
    ended: bool = False
    used_up: Callable[[], Any] = field(default=lambda: None)

    def end(self, iterator: Any, source: Any, *, is_rest: bool, is_empty: bool) -> None:
        """Note the end of a run; refuse one that could not begin."""
        if not is_empty:
            self.used_up = _reference(iterator)
        elif iterator is self.used_up() and not is_rest:
            raise _used_up(source)
        self.ended = True

    def is_followed_by(self, words: str) -> bool:
        """Whether words are for what comes after the end of the last run, where it is now."""
        epochs, place = epochs_before(words)
        if not self.ended or self.begun == words:
            return False
        whole = self.begun is not None and words == followed(self.begun, epochs[-1])
        return whole or place in self.noted


_memories: dict[int, _Memory] = {}
"""By ``id``: sources may be unhashable."""


class SourceRun:
    """A source under way.

    Attributes:
        items: what it yields; an iterator that is started once.
    """

    def __init__(
        self, source: Any, start: Start = None, *, epoch: int | None = None, goes_on: bool = False
    ) -> None:
        """Start a source: from its first beginning, or from a :meth:`place`.

        A generator function is called, a torchdata node reset, all else iterated.

        Args:
            source: the source.
            start: where to start it.
            epoch: told to who has ``set_epoch``.
            goes_on: where it has ended, it starts as it does by itself.
        """
        numbers, words = parted(start)
        self._source = source
        self._epoch = epoch
        self._keepers: list[Any] = []  # of the state: the source, its iterator, or both
        self._begin = words[-1] if len(words) > 1 or (not any(numbers.values()) and words) else None
        known = _memories.get(id(source))
        self._memory = known or _new_memory(source)
        with _as_single_process():
            if words:
                iterator = self._started(words[0], known)
            elif known is None or known.first is None or (goes_on and known.ended):
                iterator = self._anew(is_first=known is None)
            else:  # perhaps it was left half-way
                iterator = self._restarted(known.first)
        self._memory.begun, self._memory.ended = words[-1] if words else self._begin, False
        self.items = _each_as_single_process(
            iterator, partial(self._memory.end, iterator, source, is_rest=any(numbers.values()))
        )

    def beginning(self, **numbers: int) -> Start:
        """Where its epoch begins; None if it does not tell."""
        return None if self._begin is None else make_place(numbers, self._begin)

    def place(self, **numbers: int) -> Start:
        """Where it can be started again, behind what it has yielded; None if it does not tell.

        Nor does it after its end, where it may tell of the beginning of what follows.
        """
        if not self._keepers or self._memory.ended:
            return None
        state = self._state()
        self._memory.noted.append(state)
        return make_place(numbers, state, self._begin)

    def _anew(self, *, is_first: bool = False) -> Iterator[Any]:
        """Start it as it does by itself; it may tell where that is."""
        iterator = self._iterated()
        if not self._keepers:
            return iterator
        keeps_own = self._keepers[0] is self._source
        if is_first or not keeps_own or len(self._keepers) > 1 or is_prompt(self._source):
            with suppress(Exception):  # some have no state before their first example
                self._begin = self._state()
        if is_first and keeps_own:
            self._memory.first = self._begin
            if self._begin is not None and not is_prompt(self._source):
                self._begin = of_new(self._begin)
        return iterator

    def _state(self) -> str:
        return joined([packed(keeper.state_dict()) for keeper in self._keepers])

    def _started(self, words: str, known: _Memory | None) -> Iterator[Any]:
        """Start it where its words say."""
        if (begin := left_epoch(words)) is not None:
            return self._restarted(begin)
        if (state := state_of_new(words)) is not None:
            if self._memory.first is not None:
                return self._iterated(state)
            begin = self._begin  # perhaps of a later epoch
            iterator = self._anew(is_first=True)  # in a new process the source is there by itself
            self._begin = begin
            return iterator
        epochs, place = epochs_before(words)
        if not epochs:
            return self._iterated(words)
        if known is None or not known.is_followed_by(words):
            # Play what came before to its end, for what that changes in the source.
            own = self._epoch
            for self._epoch in epochs:
                first = self._epoch == epochs[0]
                rest = self._started(place, None) if first else self._iterated()
                for _ in _each_as_single_process(rest):
                    pass
            self._epoch = own
        return self._anew()

    def _restarted(self, begin: str) -> Iterator[Any]:
        """Start another epoch in place of one that began there, and may have been left half-way."""
        self._begin = begin
        state = state_of_new(begin)
        if state is not None and self._memory.first is None:
            return self._anew(is_first=True)
        states = separated(begin if state is None else state)
        # A loader would take the words for those of its next epoch.
        if has_state(self._source) and states and not starts_anew(self._source):
            load = self._source.reset if is_node(self._source) else self._source.load_state_dict
            load(unpacked(states[0]))
        return self._anew()

    def _iterated(self, state: str | None = None) -> Iterator[Any]:
        """Start it anew, or from a state."""
        if self._epoch is not None:
            tell_epoch(self._source, self._epoch)
        source = self._source
        if callable(source) and not hasattr(source, "__iter__"):
            source = source()
        states = separated(state)
        if has_state(source) and states:
            iterator = _loaded(source, unpacked(states[0]))
        else:
            if is_node(source):
                source.reset()
            iterator = started(source)
        self._keepers = keepers_of(source, iterator)
        if state is not None:
            self._memory.noted.append(state)
            if len(states) != len(self._keepers) and not has_state(source):
                raise _without_state(source)
            for keeper, own in zip(self._keepers, states, strict=False):
                if keeper is not source:
                    keeper.load_state_dict(unpacked(own))
        return iterator


def iterate(source: Any) -> Iterator[Any]:
    """Start a stream of the user's: anew, where it has ended; from its beginning if it was left."""
    return SourceRun(source, goes_on=True).items


def _new_memory(source: Any) -> _Memory:
    """Kept as long as the source, if it tells where it is."""
    memory = _Memory()
    with suppress(TypeError):  # what cannot be referred to weakly has no state either
        weakref.finalize(source, _memories.pop, id(source), None).atexit = False
        _memories[id(source)] = memory
    return memory


def _each_as_single_process(
    iterator: Iterator[Any], end: Callable[..., None] = lambda **_: None
) -> Iterator[Any]:
    """The items of an iterator, asked for as in a main process; ``__iter__`` is never called.

    ``end(is_empty=)`` is called at its end.
    """
    is_empty = True
    is_single = torchs_worker._worker_info is None  # noqa: SLF001
    while True:
        try:
            if is_single:
                item = next(iterator)
            else:
                with _as_single_process():
                    item = next(iterator)
        except StopIteration:
            break
        is_empty = False
        yield item
    end(is_empty=is_empty)


@contextmanager
def _as_single_process() -> Iterator[None]:
    """In a loader process, whose threads share what torch knows of it, for a moment."""
    info, torchs_worker._worker_info = torchs_worker._worker_info, None  # noqa: SLF001
    try:
        yield
    finally:
        torchs_worker._worker_info = info  # noqa: SLF001


def _loaded(source: Any, state: Any) -> Iterator[Any]:
    """Start a source from a state of its own.

    Of one that is its own iterator, ``__iter__`` may set up what is loaded, or forget it.
    """
    if is_node(source):
        source.reset(state)
        return iter(source)
    before = packed(state)  # what is loaded becomes the source's
    iterator: Any
    try:
        source.load_state_dict(state)
    except Exception:
        iterator = iter(source)
        if iterator is not source:
            raise
        iterator.load_state_dict(unpacked(before))
    else:
        iterator = started(source)
        if iterator is source and packed(iterator.state_dict()) != before:
            iterator.load_state_dict(unpacked(before))
    own: Iterator[Any] = iterator
    return own


def _reference(iterator: Any) -> Callable[[], Any]:
    """Refer to an iterator that is used up, and keep nothing that it may refer to."""
    with suppress(TypeError):
        return weakref.ref(iterator)
    if type(iterator).__name__.endswith("_iterator"):  # Python's let go of what they iterated
        return lambda: iterator
    return lambda: None


def _used_up(source: Any) -> SourceError:
    msg = (
        f"Expected __iter__ of {type(source).__name__} to start a new epoch, got the iterator of "
        "the epoch before, which is used up: no epoch after the first one would have an example. "
        "Let __iter__ make a new iterator, or begin anew where it returns itself."
    )
    return SourceError(msg)


def _without_state(source: Any) -> SourceError:
    msg = (
        f"Expected a source that goes on from a state of its own, as the one did that the state "
        f"is from, got {type(source).__name__}, which has no load_state_dict. Distribute the "
        "source that was saved, or start a new epoch without the state."
    )
    return SourceError(msg)
