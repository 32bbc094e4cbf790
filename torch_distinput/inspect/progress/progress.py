"""A dataset that shows how far its loop is; the loop itself stays as it was."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, final

from torch_distinput import DistributedDataset, DistributedSteps
from torch_distinput.inspect.progress.reading import EpochReading
from torch_distinput.options import check_count
from torch_distinput.values import Distributed, StepIterator

if TYPE_CHECKING:
    from typing_extensions import Self

    from torch_distinput import DistributedIterator


_GONE = (OSError, ValueError)
"""What a file raises whose reader has gone, or that was closed."""


def progress(
    dataset: DistributedDataset, *, desc: str | None = None, total: int | None = None
) -> ProgressDataset:
    """Show a bar while a dataset is iterated: ``for batch in tdi.progress(dataset)``.

    The steps are the dataset's own, on all ranks; the first rank alone draws the bar. It shows the
    step of the epoch, also after a restart in the middle of it; how many steps there are, where
    that is known; the examples of all ranks; and the share of time that this rank waits for input.

    With tqdm installed the bar is tqdm's, also in notebooks; where stderr is no terminal, it is
    drawn once in 30 seconds (tqdm's ``TQDM_MININTERVAL`` and ``TQDM_DISABLE`` hold). Without tqdm
    it is a plain line on a terminal, and nothing elsewhere.

    Args:
        dataset: to be iterated; ``tdi.progress(dataset).steps()`` for what ``dataset.steps()``
            yields, as :func:`accumulate` takes it.
        desc: what stands before the bar; default: the number of the epoch.
        total: steps of an epoch, where you know them, if only about, and the dataset does not.

    Returns:
        An object to iterate, any number of times. ``iter()`` of it returns an iterator that has
        all that a :class:`DistributedIterator` has; a loop that is left leaves the bar where it is.

    Raises:
        TypeError: for what is no distributed dataset.
    """
    if not isinstance(dataset, DistributedDataset):
        msg = (
            "progress() shows a bar for a distributed dataset, got "
            f"{type(dataset).__name__}. Pass the dataset that strategy.distribute_dataset returns; "
            "for steps as values write tdi.progress(dataset).steps()."
        )
        raise TypeError(msg)
    if desc is not None and not isinstance(desc, str):
        msg = f"desc must be the text before the bar, got {desc!r}. Write desc='evaluate', say."
        raise TypeError(msg)
    if total is not None:
        total = check_count("total", total, minimum=0)
    return ProgressDataset(dataset, desc=desc, total=total)


class _Bar(Protocol):
    def show_steps(self) -> object: ...

    def close(self) -> None: ...


@final
class ProgressDataset(Distributed):
    """A dataset together with a bar for each of its iterators, from :func:`progress`."""

    def __init__(self, dataset: DistributedDataset, *, desc: str | None, total: int | None) -> None:
        """Called by :func:`progress`."""
        self._dataset = dataset
        self._desc = desc
        self._total = total
        self._close_bar: Callable[[], object] = _nothing_to_close

    def __repr__(self) -> str:
        """Show what is iterated."""
        return f"progress({self._dataset!r})"

    def __iter__(self) -> ProgressIterator:
        """Start the dataset's next epoch on all ranks, and the bar on the first."""
        iterator = iter(self._dataset)
        self._close_bar()  # of the iterator before, which is closed now
        bar = None
        if self._dataset._session.is_first:  # noqa: SLF001 - the first of a mesh, too
            reading = EpochReading(self._dataset, iterator, desc=self._desc, total=self._total)
            with suppress(*_GONE):
                bar = _make_bar(reading)
        running = ProgressIterator(iterator, bar)
        self._close_bar = running.close_bar
        return running

    def __bool__(self) -> bool:
        """True, so that ``if`` needs no length."""
        return True

    def __len__(self) -> int:
        """The number of steps, as ``len(dataset)``."""
        return len(self._dataset)

    def steps(self) -> DistributedSteps:
        """Play the next epoch as ``dataset.steps()`` does, with the bar."""
        return DistributedSteps(self)


def _nothing_to_close() -> None:
    """Before the first iterator."""


def _make_bar(reading: EpochReading) -> _Bar | None:
    """A bar where somebody sees it."""
    if find_spec("tqdm") is not None:
        # Imported here, because it need not be installed.
        from torch_distinput.inspect.progress.tqdm_bar import make_tqdm_bar  # noqa: PLC0415

        bar: _Bar = make_tqdm_bar(reading)
        return bar
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from torch_distinput.inspect.progress.plain_bar import PlainBar  # noqa: PLC0415 - as above

    return PlainBar(reading)


@final
class ProgressIterator(Distributed, StepIterator):
    """An iterator beside its bar: what it has not of its own is the :class:`DistributedIterator`'s.

    It has the same type on all ranks; only the first has a bar to move.
    """

    def __init__(self, iterator: DistributedIterator, bar: _Bar | None) -> None:
        """Called by ``iter()``."""
        self._iterator = iterator
        self._bar = bar
        # A loop that is left drops this, and the line of the bar must end; at exit too, since
        # tqdm would draw its last line when the modules it needs are gone.
        self.close_bar = weakref.finalize(self, _close, bar)

    def __iter__(self) -> ProgressIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Move the bar by the step that the loop comes back from, and return the next."""
        return self._move(self._iterator.__next__)

    def _next_step(self) -> Any:
        """The same, for ``steps()``."""
        return self._move(self._iterator._next_step)  # noqa: SLF001 - as of an iterator

    def _move(self, take: Callable[[], Any]) -> Any:
        """Show the steps so far, then take the next: Ctrl-C in a bar must not lose a step."""
        if self._bar is not None:
            try:
                self._bar.show_steps()
            except _GONE:  # the other ranks would wait for one that stops because of its bar
                self._bar = None
        try:
            return take()
        except BaseException:
            self.close_bar()
            raise

    def __getattr__(self, name: str) -> Any:
        """What the iterator has: ``last_step``, ``stats()``, ``state_dict()``, ..."""
        return getattr(self._iterator, name)

    def close(self) -> None:
        """Close the iterator, and end the line of the bar."""
        self._iterator.close()
        self.close_bar()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _close(bar: _Bar | None) -> None:
    if bar is not None:
        with suppress(*_GONE):
            bar.close()
