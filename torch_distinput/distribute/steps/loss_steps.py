"""Which steps a loss may belong to: what each open iterator has delivered since the last loss.

Deliveries, ends of data, ``iter()``, ``close()`` and losses come in one order on all workers, and
so do the examples in sync of a step; rows do not. So what is decided here is the same on all.

That order is one thread's. A thread that reads ahead of the losses (a Prefetcher of torchdata over
our steps) is at another step on each worker, so each thread has turns of its own:

    thread             writes             reads                guarded by
    that calls next    its turns, last    its turns, _open     its turns are its own; the others
    that has a loss    its turns          the same and last    are names that are bound anew
    of run             those of the thread that called it, which waits meanwhile
"""

from __future__ import annotations

import threading
import weakref

from torch_distinput.values import StepInfo


class IteratorSteps:
    """What one iterator has delivered; held by the iterator, so that it ends with it.

    Attributes:
        dataset: its number.
        cure: how a loss of these steps is averaged, where an integration plays them; else None.
    """

    __slots__ = ("__weakref__", "count", "cure", "dataset", "info", "is_open", "thread", "turn")

    def __init__(self, dataset: int) -> None:
        """Nothing yet."""
        self.dataset = dataset
        self.cure: str | None = None
        self.info: StepInfo | None = None
        self.is_open = True
        self.thread: object = None
        self.turn = -1
        self.count = 0


class Turns:
    """What was delivered in one thread, in turns that end with a loss."""

    __slots__ = ("has_loss", "last", "thread", "turn")

    def __init__(self) -> None:
        """Nothing yet."""
        # By this its steps name it: a reference back would keep the last ones in a cycle.
        self.thread = object()
        self.last: IteratorSteps | None = None
        self.turn = 0
        self.has_loss = False


class _Here(threading.local):
    def __init__(self) -> None:
        self.turns = Turns()


class LossSteps:
    """What all iterators of a strategy have delivered.

    Attributes:
        last: what was delivered last in any thread.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.last: IteratorSteps | None = None
        # Replaced, never changed: another thread may be looking through it.
        self._open: tuple[weakref.ref[IteratorSteps], ...] = ()
        self._here = _Here()

    @property
    def turns(self) -> Turns:
        """Those of this thread."""
        return self._here.turns

    def carry(self, turns: Turns) -> None:
        """Go on in this thread with the turns of the one that waits for it."""
        self._here.turns = turns

    def open(self, dataset: int) -> IteratorSteps:
        """Note that an iterator begins, over the dataset of this number."""
        steps = IteratorSteps(dataset)
        found = ((ref, ref()) for ref in self._open)
        kept = (ref for ref, one in found if one is not None and one.is_open)
        self._open = (*kept, weakref.ref(steps))
        return steps

    def add(self, steps: IteratorSteps, info: StepInfo) -> None:
        """Note a step; the first one after a loss begins a new turn."""
        turns = self._here.turns
        if turns.has_loss:
            turns.turn, turns.has_loss = turns.turn + 1, False
        if steps.turn != turns.turn or steps.thread is not turns.thread:
            steps.thread, steps.turn, steps.count = turns.thread, turns.turn, 0
        steps.count += 1
        steps.info = info
        self.last = turns.last = steps

    @property
    def last_dataset(self) -> int | None:
        """The dataset whose step this thread was handed last, if that is under way."""
        last = self._here.turns.last
        return last.dataset if last is not None and last.is_open else None

    def note_loss(self) -> None:
        """Note that a loss was computed of what was delivered until now."""
        self._here.turns.has_loss = True

    def candidates(self) -> list[StepInfo]:
        """The steps that a loss may belong to, the one delivered last first; of this thread.

        The others are those of open iterators that have delivered as many steps in this turn, as
        ``zip`` lets them. A validation that was left after ten steps without a loss does not count,
        nor does the training step around an evaluation, whose loss was computed before.
        """
        turns = self._here.turns
        last = turns.last
        if last is None or last.info is None:
            return []
        # Another thread iterates it now, ahead of what was taken here.
        if last.thread is not turns.thread:
            return []
        found = [last.info]
        if len(self._open) > 1:
            for one in (ref() for ref in self._open):
                if one is None or one is last or not one.is_open or one.info is None:
                    continue
                if one.thread is turns.thread and (one.turn, one.count) == (last.turn, last.count):
                    found.append(one.info)
        return found
