"""One run over a source of the user's: started from the right place, once, and asked where it is.

How the state of a source travels. An IterableDataset counts its examples, has 4 of them, and tells
``{"n": 2}`` after two. What is saved is a *place*, drawn here by its values: our number, where
to go on, where the epoch began (``states`` has the table of what the texts mean):

    epoch 0 begins                  (0, 'new:{"n": 0}')                 it was never started before
      two examples are played       (2, '{"n": 2}', 'new:{"n": 0}')     <- saved here
    from that place, in any process:
      epoch 0 goes on               load {"n": 2}, iterate: examples 2, 3
      a break, then epoch 1         (0, 'left:new:{"n": 0}')            load {"n": 0}, start anew
      its end, then epoch 1         (0, 'after 0-0:{"n": 2}')           see below
        and epoch 2                 (0, 'after 0-1:{"n": 2}')

What follows the end of an epoch cannot be told before it is played. In the process that played
epoch 0 the source is there, and is started anew. In a new process epoch 0 is played to its end
from ``{"n": 2}`` on, for what that changes in the source, and then it is started anew.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.user_sources.epochs import AtEpoch, hears_epochs, tell_epoch, telling
from torch_distinput.data.user_sources.loader_start import loads_late, start_source, starts_anew
from torch_distinput.data.user_sources.parts import is_node
from torch_distinput.data.user_sources.single_process import (
    as_single_process,
    iterate_as_single_process,
)
from torch_distinput.data.user_sources.source_errors import (
    make_exhausted_error,
    make_no_state_error,
    make_started_again_error,
    warn_of_beginning,
    warn_of_state,
)
from torch_distinput.data.user_sources.stages import renew_stages
from torch_distinput.data.user_sources.start_from_state import load_again, load_and_start
from torch_distinput.data.user_sources.states import (
    UnreadableStateError,
    has_state,
    is_prompt,
    join_states,
    make_place,
    mark_after,
    mark_new,
    pack_state,
    read_after,
    read_left,
    read_new,
    split_place,
    split_states,
    unpack_state,
)
from torch_distinput.data.user_sources.torchdata_states import (
    are_true,
    count_blind,
    counts_batches,
    find_holders,
    find_old_states,
)
from torch_distinput.plan.progress.place import Start


@final
@dataclass(slots=True)
class _History:
    """What this process knows of a source that was started in it.

    Attributes:
        is_new: it was not started here before, so it begins by itself where it began elsewhere.
        first_state: its state when it was started first, if it keeps it itself.
        began_from: the words from which the last run began.
        last_states: the last states in that run.
        ended: that run came to the end of the source.
        exhausted: the iterator that came to its end, as long as somebody else keeps it.
        newest: the number of the run that was started last. A run has one if the source keeps
            where it is itself, and may go on as the newest only.
    """

    is_new: bool = True
    first_state: str | None = None
    began_from: str | None = None
    last_states: deque[str] = field(default_factory=lambda: deque(maxlen=2))
    ended: bool = False
    newest: int = 0
    exhausted: Callable[[], Any] = field(default=lambda: None)

    def check_newest(self, source: Any, number: int | None) -> None:
        """Where it is would be where a newer run is, and what it yields is lost to that one."""
        if number is not None and number != self.newest:
            raise make_started_again_error(source)

    def end(
        self, iterator: Any, source: Any, number: int | None, *, is_rest: bool, is_empty: bool
    ) -> None:
        """Note the end of a run; refuse one that could not begin."""
        self.check_newest(source, number)
        if not is_empty:
            self.exhausted = _refer_to(iterator)
        elif iterator is self.exhausted() and not is_rest:
            raise make_exhausted_error(source)
        self.ended = True

    def is_followed_by(self, words: str) -> bool:
        """Whether words are for what comes after the end of the last run, where it is now."""
        epochs, place = read_after(words)
        if not self.ended or self.began_from == words:
            return False
        whole = self.began_from is not None and words == mark_after(self.began_from, epochs[-1])
        return whole or place in self.last_states


_histories: dict[int, _History] = {}
"""By ``id``: sources may be unhashable."""


@final
class SourceRun:
    """A source under way.

    Attributes:
        items: what it yields; an iterator that is started once.
        at_epoch: around reading from it; see :class:`AtEpoch`.
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
        numbers, words = split_place(start)
        self._source = source
        self._epoch = epoch
        self._holders: list[Any] = []  # of the state: the source, its iterator, or both
        self._began_at, self._num_blind = numbers, 0
        is_beginning = not any(numbers.values())
        self._epoch_start = words[-1] if len(words) > 1 or (is_beginning and words) else None
        known = _histories.get(id(source))
        self._history = known or _remember(source)
        with as_single_process():
            if words:
                iterator = self._start_from(words[0], known)
            elif known is None or known.first_state is None or (goes_on and known.ended):
                was_resumed = known is not None and known.began_from and has_state(source)
                if was_resumed and not goes_on and not hears_epochs(source):
                    warn_of_beginning(source)
                iterator = self._start_anew(is_first=known is None)
            else:  # perhaps it was left half-way
                first = known.first_state
                iterator = self._restart(first if is_prompt(source) else mark_new(first))
        self._old = find_old_states(source, self._holders)
        self.at_epoch = AtEpoch(None if epoch is None else source, epoch or 0)
        self._history.began_from = words[-1] if words else self._epoch_start
        self._history.ended = False
        self._history.newest += 1
        keeps_own = bool(self._holders) and self._holders[0] is source
        self._number = self._history.newest if keeps_own else None
        # Nothing that refers to itself: a stream that is left is closed at once.
        end = partial(self._history.end, iterator, source, self._number, is_rest=not is_beginning)
        self.items = iterate_as_single_process(iterator, end)

    @property
    def tells_beginning(self) -> bool:
        """Whether it, or its iterator, has told where its epoch begins.

        What a source tells before a generator of its own has begun may be of the epoch before.
        """
        return self._epoch_start is not None and read_new(self._epoch_start) is None

    def beginning(self, **numbers: int) -> Start:
        """Where its epoch begins; None if it does not tell."""
        return None if self._epoch_start is None else make_place(numbers, self._epoch_start)

    def place(self, **numbers: int) -> Start:
        """Where it can be started again, behind what it has yielded; None if it does not tell.

        Nor does it after its end, or that of one of its processes, where it may tell of the
        beginning of what follows.

        Raises:
            SourceError: it keeps its place itself, and was started again meanwhile.
        """
        self._history.check_newest(self._source, self._number)
        if not self._holders or self._history.ended:
            return None
        name, number = next(iter(numbers.items()))
        if number - self._began_at.get(name, 0) < self._num_blind:
            return None
        states = [holder.state_dict() for holder in self._holders]
        if any(map(counts_batches, states)):
            self._holders = []  # of a loader inside; it goes on as one without a state
            return None
        try:
            if not are_true(self._holders, states, self._old):
                return None
            state = join_states([pack_state(own) for own in states])
        except UnreadableStateError as error:
            self._holders = []  # it goes on as one without a state
            warn_of_state(self._source, error)
            return None
        self._history.last_states.append(state)
        return make_place(numbers, state, self._epoch_start)

    def _start_anew(self, *, is_first: bool = False) -> Iterator[Any]:
        """Start it as it does by itself; it may tell where that is."""
        iterator = self._iterate_from()
        if not self._holders:
            return iterator
        keeps_own = self._holders[0] is self._source
        if is_first or not keeps_own or len(self._holders) > 1 or is_prompt(self._source):
            with suppress(Exception):  # some have no state before their first example
                self._epoch_start = self._state()
        if is_first and keeps_own:
            self._history.first_state = self._epoch_start
            if self._epoch_start is not None and not is_prompt(self._source):
                self._epoch_start = mark_new(self._epoch_start)
        return iterator

    def _state(self) -> str:
        return join_states([pack_state(holder.state_dict()) for holder in self._holders])

    def _start_from(self, words: str, known: _History | None) -> Iterator[Any]:
        """Start it where its words say."""
        if (begin := read_left(words)) is not None:
            return self._restart(begin)
        if (state := read_new(words)) is not None:
            begin = self._epoch_start  # perhaps of a later epoch
            iterator = self._start_at_first(words, state)
            self._epoch_start = begin
            return iterator
        epochs, place = read_after(words)
        if not epochs:
            if self._history.first_state is None and self._epoch_start is not None:
                self._history.first_state = read_new(self._epoch_start)
            return self._iterate_from(words)
        if known is None or not known.is_followed_by(words):
            # Play what came before to its end, for what that changes in the source.
            own = self._epoch
            for self._epoch in epochs:
                first = self._epoch == epochs[0]
                rest = self._start_from(place, None) if first else self._iterate_from()
                for _ in iterate_as_single_process(rest):
                    pass
            self._epoch = own
        return self._start_anew()

    def _start_at_first(self, words: str, state: str) -> Iterator[Any]:
        """Start it where it was at its first beginning of all."""
        if self._history.is_new:  # it is there by itself,
            iterator = self._start_anew(is_first=True)
            if self._history.first_state == state:
                return iterator
        self._history.first_state = state  # unless it has drawn another seed
        if hears_epochs(self._source):  # what it said may be of another epoch than it is told
            return self._restart(words)
        return self._iterate_from(state)

    def _restart(self, begin: str) -> Iterator[Any]:
        """Start another epoch in place of one that began there, and may have been left half-way."""
        self._epoch_start = begin
        state = read_new(begin)
        if state is not None and self._history.is_new:
            return self._start_anew(is_first=True)
        states = split_states(begin if state is None else state)
        # A loader would take the words for those of its next epoch.
        rewinds = has_state(self._source) and states and not starts_anew(self._source)
        if rewinds:
            load = self._source.reset if is_node(self._source) else self._source.load_state_dict
            load(unpack_state(states[0]))
        iterator = self._start_anew()
        is_own = iterator is self._source and not is_node(self._source)
        if rewinds and is_own and not hears_epochs(self._source):
            load_again(iterator, states[0])
        if rewinds and self._epoch is not None and loads_late(self._source):
            tell_epoch(self._source, self._epoch)  # what it has loaded may be of another one
        return iterator

    def _iterate_from(self, state: str | None = None) -> Iterator[Any]:
        """Start it anew, or from a state.

        Nobody tells it another epoch meanwhile: loader processes keep the one they are forked at.
        """
        if self._epoch is None:
            return self._iterate_at_epoch(state)
        with telling(self._source, self._epoch):
            return self._iterate_at_epoch(state)

    def _iterate_at_epoch(self, state: str | None) -> Iterator[Any]:
        source = self._source
        renew_stages(source)
        self._history.is_new = False
        if callable(source) and not has_method(source, "__iter__"):
            source = source()
        states = split_states(state)
        if has_state(source) and states:
            iterator = load_and_start(source, unpack_state(states[0]))
        else:
            if is_node(source):
                source.reset()
            iterator = start_source(source)
        self._num_blind = count_blind(source)
        self._holders = find_holders(source, iterator)
        if state is not None:
            self._history.last_states.append(state)
            if len(states) != len(self._holders) and not has_state(source):
                raise make_no_state_error(source)
            for holder, own in zip(self._holders, states, strict=False):
                if holder is not source:
                    holder.load_state_dict(unpack_state(own))
        return iterator


def iterate(source: Any) -> Iterator[Any]:
    """Start a stream of the user's: anew, where it has ended; from its beginning if it was left."""
    return SourceRun(source, goes_on=True).items


def _remember(source: Any) -> _History:
    """Kept as long as the source, if it tells where it is."""
    history = _History()
    with suppress(TypeError):  # what cannot be referred to weakly has no state either
        weakref.finalize(source, _histories.pop, id(source), None).atexit = False
        _histories[id(source)] = history
    return history


def _refer_to(iterator: Any) -> Callable[[], Any]:
    """Refer to an iterator that is used up, and keep nothing that it may refer to."""
    with suppress(TypeError):
        return weakref.ref(iterator)
    if type(iterator).__name__.endswith("_iterator"):  # Python's let go of what they iterated
        return lambda: iterator
    return lambda: None
