"""Telling a source of the user's which epoch is played.

Datasets and samplers that shuffle by an epoch have ``set_epoch``, and it is easily forgotten.

One dataset may be distributed twice, or in parts that a split has made of it: while one of them is
trained, the other is evaluated, at an epoch of its own, and what one was told is not what the other
plays. So a dataset with an index is told again, where that is not the epoch to fetch from, and a
stream where it is not the epoch to read the next rows in:

    train, epoch 3    told 3, fetches |                  | told 3, fetches
    evaluate, 0                       | told 0, fetches  |

Whoever waits for a dataset is the next: no other thread begins to fetch from it before.

    thread   writes                             reads                     guarded by
    any      _Told.epoch, .inside, .waiting     the same                  ``_Told.lock``
    any      _told                              _told                     a lock of this name

A thread that waits for its turn has ``_Told.queue``. The user's ``set_epoch`` runs under no lock
but that one: the thread is inside, at no epoch yet, so that all others of this dataset wait.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from threading import get_ident
from typing import Any, final

from torch_distinput.data.user_sources.parts import reachable_parts
from torch_distinput.errors import SourceError
from torch_distinput.threads import call_in_child, named_lock, new_condition, new_lock

_log = logging.getLogger(__name__)
_LONGEST_FETCH = 120.0
"""Seconds that a thread waits for a fetch of another one at another epoch."""


def tell_epoch(source: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of a source, or of what it is made of.

    Who has ``set_epoch`` passes it on itself. In a loader, dataset, sampler, node or pipeline
    without it we look for those that have it: a DistributedSampler in a DataLoader, say. So we do
    in the attributes of an iterable or dataset of the user's, in what a function or partial refers
    to, and in what these hold.
    """
    with telling(source, epoch):
        pass


@contextmanager
def telling(source: Any, epoch: int) -> Iterator[None]:
    """The same, and let nobody tell another epoch meanwhile."""
    with AtEpoch(source, epoch, tells=True):
        _set_counters(source, epoch)
        yield  # and hold no part of it: torchdata's nodes end their threads when nobody does


def _set_counters(source: Any, epoch: int) -> None:
    """Set the counters of those who count epochs themselves, and warn of who will not hear."""
    parts = list(reachable_parts(source, _knows_epochs))
    for part in parts:
        if not _knows_epochs(part):
            _set_counter(part, epoch)
    persistent = getattr(source, "persistent_workers", False)
    if persistent and any(part is source.dataset for part in filter(_knows_epochs, parts)):
        _warn_of_persistence(type(source.dataset).__name__)


def hears_epochs(source: Any) -> bool:
    """Whether :func:`tell_epoch` tells it to anybody who has ``set_epoch``."""
    return any(map(_knows_epochs, reachable_parts(source, _knows_epochs)))


@final
class AtEpoch:
    """Around fetches from a dataset with an index, or reading from a stream: it is at this epoch.

    Several threads may fetch at one epoch; who is at another one waits for them.
    """

    def __init__(self, dataset: Any, epoch: int, *, tells: bool | None = None) -> None:
        """Take a dataset of the user's, or None.

        Args:
            dataset: whatever has ``set_epoch``, or holds what has.
            epoch: to be at.
            tells: whether to call ``set_epoch``; by default where another epoch was told. Who
                tells it later, inside, has it to himself until then.
        """
        self._dataset, self._epoch, self._tells = dataset, epoch, tells
        # In one order, so that no two threads wait for each other.
        parts = sorted(filter(_knows_epochs, reachable_parts(dataset, _knows_epochs)), key=id)
        self._parts = tuple(parts)  # what is told does not keep them
        self._told = [_find_told(part) for part in parts]

    def __reduce__(self) -> Any:
        """Begin anew in another process."""
        return AtEpoch, (self._dataset, self._epoch)

    def __enter__(self) -> None:
        """Tell the epoch to who was told another one."""
        for number, told in enumerate(self._told):
            try:
                told.enter(self._epoch, tells=self._tells)
            except BaseException:
                for entered in self._told[:number]:
                    entered.leave()
                raise

    def __exit__(self, *_: object) -> None:
        """Let others tell theirs."""
        with ExitStack() as leaving:  # all, also where one raises
            for told in self._told:
                leaving.callback(told.leave)


@final
class _Told:
    """A dataset, the epoch that it was told, and the threads that fetch from it."""

    def __init__(self, part: Any) -> None:
        try:
            self.part: Callable[[], Any] = weakref.ref(part)
        except TypeError:
            self.part = lambda: part
        self.epoch: int | None = None  # also while it is told
        self.inside: dict[int, tuple[int, ...]] = {}  # by thread; one may begin within another
        self.queue = new_lock()
        self.lock = new_lock()
        self.changed = new_condition(self.lock)
        self.waiting = 0  # threads, for the change
        call_in_child(self, _Told._leave_to_parent)

    def enter(self, epoch: int, *, tells: bool | None) -> None:
        """Begin a fetch when it may; ``tells`` as in :class:`AtEpoch`."""
        me = get_ident()
        with self.lock:
            own = self.inside.get(me, ())
            if not tells and self.epoch == epoch and (own or not self.waiting):
                self.inside[me] = (*own, epoch)
                return
        self._begin_in_turn(me, epoch, tells)

    def _begin_in_turn(self, me: int, epoch: int, tells: bool | None) -> None:
        if me in self.inside:  # who waits in the queue waits for this thread, too
            self._begin(me, epoch, tells)
            return
        with self.queue:
            self._begin(me, epoch, tells)

    def _begin(self, me: int, epoch: int, tells: bool | None) -> None:
        with self.lock:
            is_told = self._is_told(me, epoch)
            self.inside[me] = (*self.inside.get(me, ()), epoch)
        if tells or (tells is None and not is_told):
            try:
                self._tell(epoch)
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """End the fetch, and go on with the one around it."""
        me = get_ident()
        with self.lock:
            *own, _ = self.inside.pop(me)
            if own:
                self.inside[me] = tuple(own)
            if self.waiting:
                self.changed.notify_all()
            is_told = not own or self._is_told(me, own[-1])
        if not is_told:
            self._tell(own[-1])

    def _is_told(self, me: int, epoch: int) -> bool:
        """Whether it is at the epoch; False once this thread may tell it."""
        if self.epoch == epoch:
            return True
        self.waiting += 1
        try:
            is_free = self.changed.wait_for(
                lambda: self.epoch == epoch or not self.inside.keys() - {me}, _LONGEST_FETCH
            )
        finally:
            self.waiting -= 1
        if not is_free:
            kind = type(self.part()).__name__
            msg = (
                f"Expected every fetch from {kind} to end within {_LONGEST_FETCH:g} s, but one at "
                f"another epoch than {epoch} has not. Bound its waits, or give each dataset that "
                "is distributed a copy of its own."
            )
            raise SourceError(msg)
        if self.epoch != epoch:
            self.epoch = None
        return self.epoch == epoch

    def _tell(self, epoch: int) -> None:
        part = self.part()
        try:
            part.set_epoch(epoch)
        except Exception as error:
            kind = type(part).__name__
            msg = f"{kind}.set_epoch({epoch}) raised {type(error).__name__}: {error}"
            raise SourceError(msg) from error
        with self.lock:
            self.epoch = epoch
            self.changed.notify_all()

    def _leave_to_parent(self) -> None:
        """In a child: whoever fetches, or tells, is a thread of the parent's."""
        self.inside.clear()
        self.waiting = 0


_told: dict[int, _Told] = {}
"""By ``id`` of the dataset, as long as it lives; one that cannot be referred to weakly lives on."""


def _find_told(part: Any) -> _Told:
    """The one of a dataset in this process."""
    with named_lock("told epochs"):
        found = _told.get(id(part))
        if found is None:
            found = _told[id(part)] = _Told(part)
            with suppress(TypeError):
                weakref.finalize(part, _told.pop, id(part), None).atexit = False
        return found


def _knows_epochs(part: Any) -> bool:
    with suppress(Exception):  # whatever it is that a program names, and how it takes a question
        return not isinstance(part, type) and callable(getattr(part, "set_epoch", None))
    return False


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
