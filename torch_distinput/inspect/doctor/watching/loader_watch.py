"""Watches the DataLoaders of a script while it runs, and changes nothing of what it computes.

torch's iterators are watched, not its loaders: whatever wraps a loader, or is made from it, fetches
its batches from one of them. For the time of the watch four of their methods are followed: how one
begins, begins anew, draws indices, and delivers a batch.
"""

from __future__ import annotations

import itertools
import logging
import operator
import sys
import sysconfig
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, final
from unittest import mock
from weakref import WeakKeyDictionary

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_distinput.inspect.doctor.loader_facts import LoaderFacts, look_at
from torch_distinput.inspect.doctor.row_digests import count_rows, digest_rows
from torch_distinput.inspect.doctor.watching.records import LoaderRecord, SeenEpoch
from torch_distinput.inspect.doctor.watching.stages import Stages, TimedCollate, fetches_timed

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[3]
_PYTHON = Path(sysconfig.get_path("stdlib"))
_ROWS_NOTED = 512
_INDICES_NOTED = 1_000_000
_NAME = "_torch_distinput_epoch"


class EnoughSeenError(BaseException):
    """Ends the script after so many steps; no ``except Exception`` of its own holds it up."""


@final
class EpochWatch:
    """One iteration of a loader, as it goes on."""

    def __init__(self, facts: LoaderFacts, *, loader: int, place: str, num_ranks: int) -> None:
        """Begin with nothing."""
        self.facts, self.loader, self.place = facts, loader, place
        self.has_gradients = torch.is_grad_enabled()  # as it begins: to train, or to evaluate
        self.stages = Stages(facts.loader_processes)
        self.drawn: deque[Any] = deque()
        self.batches = self.rows = self.rows_noted = 0
        self.has_ended = self.trains = False
        self.waited = self.stepped = self.first = 0.0
        self.private_bytes = 0
        self._indices: list[int] = []
        self._digests: list[tuple[str, ...]] = []
        self._had_batch = 0.0
        self._has_index = not facts.is_stream
        is_divided = facts.division is not None and not facts.is_stream
        self._digests_rows = not is_divided and max(num_ranks, facts.loader_processes) > 1

    @property
    def is_look(self) -> bool:
        """Whether it was left after one batch, until now."""
        return self.batches == 1 and not self.has_ended

    def deliver(self, batch: Any, asked: float, seconds: float) -> None:
        """Note a batch, when it was asked for, and how long it took to come."""
        if self.batches:
            self.waited += seconds
            self.stepped += asked - self._had_batch
        else:
            self.first = seconds
        self.batches += 1
        self.trains = self.trains or torch.is_grad_enabled()
        index = self.drawn.popleft() if self.drawn else None
        rows = self._take_indices(index)
        self.rows += _ask_safely(count_rows, batch, 1) if rows is None else rows
        if self._digests_rows and self.rows_noted < _ROWS_NOTED:
            digests: tuple[str, ...] = tuple(_ask_safely(digest_rows, batch, []))
            # Of a list of pictures those are of something else than its examples.
            self._digests.append(digests if rows in (None, len(digests)) else ())
            self.rows_noted += len(digests)
        self._had_batch = time.perf_counter()  # what was noted above is neither wait nor step

    def _take_indices(self, index: Any) -> int | None:
        """Keep whole numbers; return how many rows were asked for, where there is an index."""
        if not self._has_index or index is None:
            return None
        indices = list(index) if isinstance(index, (list, tuple)) else [index]
        if len(self._indices) < _INDICES_NOTED:
            with suppress(TypeError, ValueError):  # keys of other kinds
                self._indices += [operator.index(one) for one in indices]
        return len(indices)

    def record(self, place: str) -> SeenEpoch:
        """Return what was seen until now, for the record of a line."""
        return SeenEpoch(
            loader=self.loader,
            is_aside=self.place != place and self.is_look,
            batches=self.batches,
            rows=self.rows,
            has_ended=self.has_ended,
            trains=self.trains,
            indices=tuple(self._indices),
            digests=tuple(self._digests),
            wait_seconds=self.waited,
            step_seconds=self.stepped,
            first_seconds=self.first,
        )


@final
class LoaderWatch:
    """All loaders of this process.

    Args:
        num_ranks: of the job.
        steps: batches of one loader, over all its epochs, after which the script is ended.

    Attributes:
        last_moment: when a batch was last asked for or delivered, by the monotonic clock.
        has_seen_enough: whether the script was ended.
    """

    def __init__(self, *, num_ranks: int, steps: int) -> None:
        """Begin with nothing."""
        self._num_ranks, self._steps = num_ranks, steps
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._places: WeakKeyDictionary[Any, dict[bool, str]] = WeakKeyDictionary()
        self._next = itertools.count()
        self._epochs: defaultdict[tuple[str, LoaderFacts], list[EpochWatch]] = defaultdict(list)
        self._begun: list[EpochWatch] = []
        self.last_moment = time.monotonic()
        self.has_seen_enough = False

    def begin(self, iterator: Any, loader: Any) -> None:
        """Note that a loader is iterated."""
        try:
            facts, number = look_at(loader), self._numbers.setdefault(loader, next(self._next))
        except Exception as error:  # noqa: BLE001 - the script is to run as it does without us
            _log.warning("%s is not watched: %r. Report it, please.", type(loader).__name__, error)
            return
        line = _place()
        if facts.is_ours or line is None:
            return
        # A loader that is begun anew in a loop over another one is not a second loader.
        place = self._places.setdefault(loader, {}).setdefault(torch.is_grad_enabled(), line)
        epoch = EpochWatch(facts, loader=number, place=line, num_ranks=self._num_ranks)
        epochs = self._epochs[place, facts]
        epochs.append(epoch)
        self._begun.append(epoch)
        setattr(iterator, _NAME, (epoch, epochs))

    def deliver(self, iterator: Any, original: Any) -> Any:
        """Fetch a batch as the iterator does, and note it.

        Raises:
            EnoughSeenError: where enough was seen.
        """
        self.last_moment = time.monotonic()
        seen = iterator.__dict__.get(_NAME)
        if seen is None:
            return original(iterator)
        epoch, epochs = seen
        if sum(other.batches for other in epochs) >= self._steps:
            self.has_seen_enough = True
            raise EnoughSeenError
        began = time.perf_counter()
        try:
            batch = original(iterator)
        except StopIteration:
            epoch.has_ended = True
            raise
        seconds = time.perf_counter() - began
        if not epoch.batches & (epoch.batches + 1):  # before the batches 1, 2, 4, 8, ...
            epoch.private_bytes = max(epoch.private_bytes, _private_bytes(iterator))
        epoch.deliver(batch, began, seconds)
        self.last_moment = time.monotonic()
        return batch

    def records(self) -> tuple[LoaderRecord, ...]:
        """Return what was seen, of loaders that have delivered something or have nothing.

        A loader goes by the first line that plays it: others may have a look at one batch before.
        """
        epochs = [epoch for epoch in list(self._begun) if epoch.batches or epoch.has_ended]
        places: dict[tuple[int, bool], str] = {}
        for epoch in sorted(epochs, key=lambda epoch: epoch.is_look):
            places.setdefault((epoch.loader, epoch.has_gradients), epoch.place)
        found: defaultdict[tuple[str, LoaderFacts], list[EpochWatch]] = defaultdict(list)
        for epoch in epochs:
            found[places[epoch.loader, epoch.has_gradients], epoch.facts].append(epoch)
        return tuple(_record(place, facts, own) for (place, facts), own in found.items())


@contextmanager
def watching(watch: LoaderWatch) -> Iterator[None]:
    """Let a watch see every iterator of a DataLoader until the end of the block."""
    kind: Any = _BaseDataLoaderIter
    begin, reset, draw, deliver = (
        kind.__init__, kind._reset, kind._next_index, kind.__next__  # noqa: SLF001 - torch's names
    )  # fmt: skip

    def watched_init(iterator: Any, loader: Any, *rest: Any, **keywords: Any) -> None:
        begin(iterator, loader, *rest, **keywords)
        watch.begin(iterator, loader)
        _time_stages(iterator)

    def watched_reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and _NAME in iterator.__dict__:  # processes that persist begin an epoch
            stages = iterator.__dict__[_NAME][0].stages
            watch.begin(iterator, loader)
            iterator.__dict__[_NAME][0].stages = stages
        reset(iterator, loader, first_iter)

    def watched_draw(iterator: Any) -> Any:
        index = draw(iterator)
        if _NAME in iterator.__dict__:
            iterator.__dict__[_NAME][0].drawn.append(index)
        return index

    def watched_next(iterator: Any) -> Any:
        return watch.deliver(iterator, deliver)

    followed: dict[str, Any] = {"__init__": watched_init, "_reset": watched_reset}
    followed |= {"_next_index": watched_draw, "__next__": watched_next}
    with ExitStack() as stack:
        stack.enter_context(fetches_timed())
        for name, function in followed.items():
            stack.enter_context(mock.patch.object(kind, name, function))
        yield


def _ask_safely(function: Callable[[Any], T], batch: Any, otherwise: T) -> T:
    """Ask a batch; one of a kind that cannot be taken apart has no digests, as the report says."""
    try:
        return function(batch)
    except Exception:  # noqa: BLE001 - a batch may be anything, and the script is to go on
        return otherwise


def _time_stages(iterator: Any) -> None:
    seen = iterator.__dict__.get(_NAME)
    if seen is not None:
        iterator._collate_fn = TimedCollate(iterator._collate_fn, seen[0].stages)  # noqa: SLF001


def _record(place: str, facts: LoaderFacts, epochs: list[EpochWatch]) -> LoaderRecord:
    averages = epochs[-1].stages.averages()
    alike = dict.fromkeys(name for epoch in epochs for name in epoch.stages.alike())
    return LoaderRecord(
        place=place,
        facts=facts,
        epochs=tuple(epoch.record(place) for epoch in epochs),
        fetch_seconds=averages and averages[0],
        collate_seconds=averages and averages[1],
        alike=tuple(alike),
        drawn_states={
            name: tuple(states) for name, states in epochs[0].stages.drawn_states().items()
        },
        private_bytes=max(epoch.private_bytes for epoch in epochs) or None,
    )


def _place() -> str | None:
    """The line that iterates, outside of installed packages; None where this package drives it.

    What torch_distinput reads it divides by itself, whatever the loader does.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            if path.relative_to(_PACKAGE).parts[0] not in {"inspect", "__main__.py"}:
                return None
        elif not _is_installed(path):
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a framework"


def _is_installed(path: Path) -> bool:
    """Whether a file is no code of the user's: of a package, of Python, or no file at all."""
    is_package = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(is_package) or path.name.startswith("<") or path.is_relative_to(_PYTHON)


def _private_bytes(iterator: Any) -> int:
    """Memory that the largest loader process shares with nobody; 0 where that is not said."""
    sizes = [0]
    for process in getattr(iterator, "_workers", ()):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes.append(
            sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
        )
    return max(sizes)
