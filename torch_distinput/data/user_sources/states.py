"""The states that sources of the user's give themselves, as they travel in ours.

A source that has ``state_dict`` and ``load_state_dict`` (a StatefulDataLoader, an IterableDataset
of the user's, a torchdata node), or whose iterator has, can be started again where it was. Its
states are written as texts, here called *words*; a prefix says what to do with what follows it:

    words               where that is                   how a source is started there
    JSON, or            where the source said so        load it
    "torch:" + base64   the same; JSON would change it  load it
    "both:" + list      the same, of a dataset and its  load each its own
                        iterator that both have a state
    "new:" + a state    a source that was never         iterate it: a new process has one like it,
                        started before, and said this   and what it said need not be true yet
    "left:" + words     the beginning of an epoch that  load the words, so that it forgets its
                        was left before its end         place; tell the epoch; start it anew
    "after 3-5:" +      what follows our epochs 3 to 5; play the epochs to their ends, unless this
    words               the words are from epoch 3      process has; then start it anew

Sources may count epochs themselves, and what they say before the first example need not be true: a
generator has not begun to run. That is why an epoch is not begun from words for its beginning, but
from the end of the one before it.

A place in a stream holds numbers of ours, the words for there, and those for the beginning of the
epoch, where the source starts again if the epoch is left. ``run`` has an example.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.object_parts import has_own
from torch_distinput.data.user_sources.parts import deals_shards, is_node, parts_of
from torch_distinput.data.user_sources.sequences.mixture import Mixture
from torch_distinput.plan.progress.place import Place, Start

SOURCE, STREAMS = "source", "streams"
"""The kinds of place in one source of the user's, and in several that are played side by side."""
_MARK = "mark"
_PACKED = "torch:"
_BOTH = "both:"
_AFTER = "after "
_LEFT = "left:"
_NEW = "new:"
_NUMPY = "torch_distinput.numpy"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor)


def has_state(source: Any) -> bool:
    """Whether a source, or an iterator, has words for where it is.

    They are its own: what a wrapper hands on by ``__getattr__`` are those of what it wraps, which
    may be ahead of it, as where it shuffles in a buffer.
    """
    if not has_own(source, "state_dict"):
        return False
    loads = has_own(source, "load_state_dict") or is_node(source)
    return loads and _needs_no_arguments(source.state_dict)


def holds_state(source: Any) -> bool:
    """Whether a source, or a part of it, has words for where it is, and we use them.

    Not where shards are dealt out: ``find_holders`` says why. Members of a mixture are asked each
    for itself.
    """
    parts = [] if isinstance(source, Mixture) else list(parts_of(source))
    return any(map(has_state, parts)) and not any(map(deals_shards, parts))


def _needs_no_arguments(method: Callable[..., Any]) -> bool:
    """Some must be told how many examples were taken, as those of litdata: they do not know it.

    Of a decorated one the outer signature counts: what is around it may give the arguments.
    """
    try:
        signature(method, follow_wrapped=False).bind()
    except TypeError:
        return False
    except ValueError:
        pass  # it says nothing of what it takes
    return True


def is_prompt(source: Any) -> bool:
    """Whether what it tells before its first example is true, also if it was played before.

    That of a class of the user's may be of the epoch before: a generator has not begun to run.
    """
    return all(
        type(part).__module__.partition(".")[0] in ("torch", "torchdata")
        or not (hasattr(part, "__iter__") and hasattr(part, "state_dict"))
        for part in parts_of(source)
    )


def next_epoch(start: Start, epoch: int, *, ended: bool) -> Start:
    """From where the epoch after ``epoch`` starts, given the last known place in that one.

    ``ended``: it was played to its end. Else it begins anew, if the source tells how.
    """
    if start is not None and start.kind == STREAMS:
        inner = tuple(next_epoch(own, epoch, ended=ended) for own in start.inner)
        return start._replace(inner=inner) if any(inner) else None
    if start is None or start.kind != SOURCE:
        return None
    numbers, words = split_place(start)
    if ended:
        words = [mark_after(word, epoch) for word in words[:1]]
    else:
        words = [_mark_left(word) for word in (words[1:] if any(numbers.values()) else words)]
    return make_place(dict.fromkeys(numbers, 0), words[0]) if words else None


def make_place(numbers: Mapping[str, int], state: str, beginning: str | None = None) -> Place:
    """A place in a source: ours in numbers, and its own words for there and for the beginning.

    Words at the numbers 0 are for the beginning, and stand alone.
    """
    return Place(SOURCE, (*numbers.items(), ("state", state), ("beginning", beginning)))


def make_marked_place(
    numbers: Mapping[str, int], mark: tuple[int, int], told: Start = None
) -> Place:
    """The beginning of a source, with what it has told there, and a mark of what it began with."""
    return Place(SOURCE, (*(told.values if told else numbers.items()), (_MARK, mark)))


def find_mark(start: Start) -> tuple[int, int] | None:
    """The mark in a place, if there is one: how many items it is of, and their fingerprint."""
    name, mark = start.values[-1] if start and start.values else ("", None)
    return mark if name == _MARK else None


def split_place(start: Start) -> tuple[dict[str, int], list[str]]:
    """The numbers and the words of a place."""
    values = start.check(SOURCE).values if start else ()
    numbers = {name: value for name, value in values if isinstance(value, int)}
    return numbers, [value for _, value in values if isinstance(value, str)]


def _mark_left(words: str) -> str:
    """Words for the epoch after one that was left, from those for its beginning."""
    return words if words.startswith((_AFTER, _LEFT)) else _LEFT + words


def mark_new(state: str) -> str:
    """Words for the first beginning of a source, from what it says there."""
    return _NEW + state


def read_new(words: str) -> str | None:
    """What a source said at its first beginning; None if words are for another place."""
    return words.removeprefix(_NEW) if words.startswith(_NEW) else None


def read_left(words: str) -> str | None:
    """Words for the beginning of an epoch that was left; None if words are for something else."""
    return words.removeprefix(_LEFT) if words.startswith(_LEFT) else None


def mark_after(words: str, epoch: int) -> str:
    """Words for what follows an epoch, from words for a place in it, perhaps its beginning."""
    epochs, place = read_after(words)
    first = epochs[0] if epochs and epochs[-1] + 1 == epoch else epoch
    return f"{_AFTER}{first}-{epoch}:{words if first == epoch else place}"


def read_after(words: str) -> tuple[range, str]:
    """The epochs to play to their end, and words for a place in the first of them."""
    if not words.startswith(_AFTER):
        return range(0), words
    epochs, _, place = words.removeprefix(_AFTER).partition(":")
    first, last = map(int, epochs.split("-"))
    return range(first, last + 1), place


def join_states(states: list[str]) -> str:
    """The states of all keepers as one."""
    return states[0] if len(states) == 1 else _BOTH + json.dumps(states)


def split_states(state: str | None) -> list[str]:
    """The states that were joined."""
    if state is None:
        return []
    both: list[str] = json.loads(state.removeprefix(_BOTH)) if state.startswith(_BOTH) else [state]
    return both


class UnreadableStateError(TypeError):
    """A state holds classes that are not read from a file, as they might run code; names them."""


def pack_state(state: Any) -> str:
    """JSON where that keeps the state as it is, else what ``torch.load`` reads safely.

    Raises:
        UnreadableStateError: if it could not be read again.
    """
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return text
    except (TypeError, ValueError, RuntimeError):
        pass
    content = io.BytesIO()
    plain = _without_numpy(state)
    torch.save(plain, content)
    text = _PACKED + base64.b64encode(content.getvalue()).decode()
    if not _is_plain(plain):  # now, as a restart would be too late
        try:
            unpack_state(text)
        except pickle.UnpicklingError as error:
            content.seek(0)
            names = torch.serialization.get_unsafe_globals_in_checkpoint(content)
            raise UnreadableStateError(", ".join(names) or "what torch.load refuses") from error
    return text


def unpack_state(text: str) -> Any:
    """The state that was packed."""
    if not text.startswith(_PACKED):
        return json.loads(text)
    content = base64.b64decode(text.removeprefix(_PACKED))
    return _with_numpy(torch.load(io.BytesIO(content), weights_only=True))


def _without_numpy(state: Any) -> Any:
    """NumPy's arrays and numbers as the content of a file, since torch takes them for unsafe."""
    is_numpys = type(state) is np.ndarray or isinstance(state, np.generic)  # no subclass, as masked
    if is_numpys and not state.dtype.hasobject:
        file = io.BytesIO()
        np.save(file, state)
        return {_NUMPY: (file.getvalue(), isinstance(state, np.generic))}
    return _map_items(_without_numpy, state)


def _with_numpy(state: Any) -> Any:
    """The same back again."""
    if type(state) is dict and _NUMPY in state:
        content, is_number = state[_NUMPY]
        array = np.load(io.BytesIO(content))
        return array[()] if is_number else array
    return _map_items(_with_numpy, state)


def _map_items(change: Callable[[Any], Any], state: Any) -> Any:
    kind = type(state)
    if kind in (dict, OrderedDict):
        return kind((key, change(value)) for key, value in state.items())
    return kind(map(change, state)) if kind in (list, tuple) else state


def _is_plain(state: Any) -> bool:
    """Whether it surely can be read again; to try it would take as long as to save it."""
    kind = type(state)
    if kind is dict:
        return all(_is_plain(key) and _is_plain(value) for key, value in state.items())
    if kind in (list, tuple):
        return all(map(_is_plain, state))
    return kind in _PLAIN
