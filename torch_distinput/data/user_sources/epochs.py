"""Telling a source of the user's which epoch is played.

Datasets and samplers that shuffle by an epoch have ``set_epoch``, and it is easily forgotten.

One dataset may be distributed twice, or in parts that a split has made of it: while one of them is
trained, the other is evaluated, at an epoch of its own, and what one was told is not what the other
plays. So a dataset with an index is told again, where that is not the epoch to fetch from, and a
stream where it is not the epoch to read the next rows in:

    train, epoch 3    told 3, fetches |                  | told 3, fetches
    evaluate, 0                       | told 0, fetches  |

    thread   writes                    reads                     guarded by
    any      _Gate.told, .fetches      _Gate.told, .fetches      ``_Gate.changed``, also while the
                                                                 user's ``set_epoch`` runs
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from threading import get_ident
from types import MethodType
from typing import Any, final

from torch_distinput.data.user_sources.parts import parts_of
from torch_distinput.errors import SourceError
from torch_distinput.threads import call_in_child, new_condition

_log = logging.getLogger(__name__)
_MOST_PARTS = 256
_LONGEST_FETCH = 120.0
"""Seconds that a thread waits for a fetch of another one at another epoch."""


def tell_epoch(source: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of a source, or of what it is made of.

    Who has ``set_epoch`` passes it on itself. In a loader, dataset, sampler, node or pipeline
    without it we look for those that have it: a DistributedSampler in a DataLoader, say. So we do
    in the attributes of an iterable of the user's, and in what they hold.
    """
    told = []
    for part in _parts_to_tell(source):
        if _knows_epochs(part):
            _gate().tell(part, epoch)
            told.append(part)
        else:
            _set_counter(part, epoch)
    persistent = getattr(source, "persistent_workers", False)
    if persistent and any(part is source.dataset for part in told):
        _warn_of_persistence(type(source.dataset).__name__)


def hears_epochs(source: Any) -> bool:
    """Whether :func:`tell_epoch` tells it to anybody who has ``set_epoch``."""
    return any(map(_knows_epochs, _parts_to_tell(source)))


@final
class AtEpoch:
    """Around fetches from a dataset with an index, or reading from a stream: it is at this epoch.

    Several threads may fetch at one epoch; who is at another one waits for them.
    """

    def __init__(self, dataset: Any, epoch: int) -> None:
        """Take a dataset of the user's, or None."""
        self.parts = [part for part in _parts_to_tell(dataset) if _knows_epochs(part)]
        self.keys = frozenset(map(id, self.parts))
        self.epoch = epoch

    def __enter__(self) -> None:
        """Tell the epoch to who was told another one."""
        if self.parts:
            _gate().enter(self)

    def __exit__(self, *_: object) -> None:
        """Let others tell theirs."""
        if self.parts:
            _gate().leave()


@final
class _Gate:
    """What was told to whom in this process, by ``id``, and which threads fetch."""

    def __init__(self) -> None:
        self.changed = new_condition()
        self.told: dict[int, int] = {}
        self.fetches: dict[int, list[AtEpoch]] = {}  # of a thread; one may begin within another
        call_in_child(self, _Gate._leave_to_parent)

    def enter(self, fetch: AtEpoch) -> None:
        with self.changed:
            self._move(fetch.parts, fetch.epoch)
            self.fetches.setdefault(get_ident(), []).append(fetch)

    def leave(self) -> None:
        with self.changed:
            own = self.fetches[get_ident()]
            own.pop()
            if own:
                self._move(own[-1].parts, own[-1].epoch)
            else:
                del self.fetches[get_ident()]
            self.changed.notify_all()

    def tell(self, part: Any, epoch: int) -> None:
        with self.changed:
            self._wait([part], epoch)
            self._tell(part, epoch)

    def _move(self, parts: Sequence[Any], epoch: int) -> None:
        """Tell the epoch to those of them that were told another one."""
        others = [part for part in parts if self.told.get(id(part)) != epoch]
        if others:
            self._wait(others, epoch)
            for part in others:
                self._tell(part, epoch)

    def _wait(self, parts: Sequence[Any], epoch: int) -> None:
        """Until no other thread fetches from any of them at another epoch."""
        if not self.changed.wait_for(lambda: self._is_free(parts, epoch), _LONGEST_FETCH):
            kind = type(parts[0]).__name__
            msg = (
                f"Expected every fetch from {kind} to end within {_LONGEST_FETCH:g} s, but one at "
                f"another epoch than {epoch} has not. Bound its waits, or give each dataset that "
                "is distributed a copy of its own."
            )
            raise SourceError(msg)

    def _is_free(self, parts: Sequence[Any], epoch: int) -> bool:
        keys = {id(part) for part in parts if self.told.get(id(part)) != epoch}
        me = get_ident()
        others = (fetch for thread, own in self.fetches.items() if thread != me for fetch in own)
        return not any(keys & fetch.keys for fetch in others)

    def _tell(self, part: Any, epoch: int) -> None:
        try:
            part.set_epoch(epoch)
        except Exception as error:
            kind = type(part).__name__
            msg = f"{kind}.set_epoch({epoch}) raised {type(error).__name__}: {error}"
            raise SourceError(msg) from error
        if id(part) not in self.told:
            try:
                weakref.finalize(part, self.told.pop, id(part), None).atexit = False
            except TypeError:
                return  # it cannot be referred to weakly: it is told each time
        self.told[id(part)] = epoch

    def _leave_to_parent(self) -> None:
        """In a child: whoever fetches is a thread of the parent's."""
        self.fetches.clear()


_gates: dict[str, _Gate] = {}


def _gate() -> _Gate:
    """The one of this process; made late, since an import leaves no trace."""
    return _gates.get("") or _gates.setdefault("", _Gate())


def _parts_to_tell(source: Any) -> Iterator[Any]:
    """A source, what it is made of, and what iterables of the user's hold; each once."""
    waiting, seen = [source], {id(source)}
    while waiting and len(seen) < _MOST_PARTS:
        for part in parts_of(waiting.pop(), closed=_knows_epochs):
            yield part
            if _knows_epochs(part):
                continue
            new = [held for held in _held(part) if id(held) not in seen]
            seen.update(map(id, new))
            waiting += new


def _held(part: Any) -> Iterator[Any]:
    """Iterables and datasets in the attributes of an iterable that is a user's own."""
    if hasattr(part, "__self__"):  # a method, of a dataset perhaps
        yield part.__self__
    values = getattr(part, "__dict__", {})
    if not hasattr(part, "__iter__") or not isinstance(values, dict):
        return
    for value in list(values.values()):
        for held in _items_of(value):
            is_data = hasattr(held, "__iter__") or hasattr(held, "__getitem__")
            if _knows_epochs(held) or (is_data and hasattr(held, "__dict__")):
                yield held
            elif isinstance(held, MethodType):
                yield held.__self__


def _items_of(value: Any) -> Iterable[Any]:
    """The few values of a list, tuple or dict; or the value itself."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return value if isinstance(value, (list, tuple)) and len(value) < _MOST_PARTS else [value]


def _knows_epochs(part: Any) -> bool:
    return callable(getattr(part, "set_epoch", None))


def _set_counter(part: Any, epoch: int) -> None:
    """Let those agree that count epochs themselves.

    A SamplerWrapper of torchdata counts on when it is reset after it was started, and tells its
    sampler; a rule of the user's stays. Stages of WebDataset count when they are started.
    """
    if type(part).__name__ in ("detshuffle", "ResampledShards") and hasattr(part, "epoch"):
        part.epoch = epoch - 1
    default = getattr(part, "_default_epoch_updater", None)
    if default is not None and getattr(part, "epoch_updater", None) == default:
        part.epoch = epoch - bool(getattr(part, "_started", False))


@lru_cache
def _warn_of_persistence(name: str) -> None:
    """Say it once."""
    _log.warning(
        "The DataLoader has persistent_workers=True: its processes keep the %s that they began "
        "with, and do not see the epoch that set_epoch() tells it here, unless it lies in shared "
        "memory (as that of a Hugging Face stream does). Leave persistent_workers out.",
        name,
    )
