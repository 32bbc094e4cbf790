"""Which steps a loss may belong to: what each open iterator has delivered since the last loss.

Deliveries, ends of data, ``iter()``, ``close()`` and losses come in one order on all workers, and
so do the examples in sync of a step; rows do not. So what is decided here is the same on all.

    thread                     writes                           reads     guarded by
    main, at next() and loss   all                              all       one writer
    any, that drops or closes  is_open of one iterator          _open     a tuple that is replaced,
    an iterator                                                           never changed
"""

from __future__ import annotations

import weakref

from torch_distinput.values import StepInfo


class IteratorSteps:
    """What one iterator has delivered; held by the iterator, so that it ends with it."""

    __slots__ = ("__weakref__", "count", "info", "is_open", "turn")

    def __init__(self) -> None:
        """Nothing yet."""
        self.info: StepInfo | None = None
        self.is_open = True
        self.turn = -1
        self.count = 0


class LossSteps:
    """What all iterators of a strategy have delivered, in turns that end with a loss."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.last: IteratorSteps | None = None
        # Replaced, never changed: another thread may be looking through it.
        self._open: tuple[weakref.ref[IteratorSteps], ...] = ()
        self._turn = 0
        self._has_loss = False

    def open(self) -> IteratorSteps:
        """Note that an iterator begins."""
        steps = IteratorSteps()
        found = ((ref, ref()) for ref in self._open)
        kept = (ref for ref, one in found if one is not None and one.is_open)
        self._open = (*kept, weakref.ref(steps))
        return steps

    def add(self, steps: IteratorSteps, info: StepInfo) -> None:
        """Note a step; the first one after a loss begins a new turn."""
        if self._has_loss:
            self._turn, self._has_loss = self._turn + 1, False
        if steps.turn != self._turn:
            steps.turn, steps.count = self._turn, 0
        steps.count += 1
        steps.info = info
        self.last = steps

    def note_loss(self) -> None:
        """Note that a loss was computed of what was delivered until now."""
        self._has_loss = True

    def candidates(self) -> list[StepInfo]:
        """The steps that a loss may belong to, the one delivered last first.

        The others are those of open iterators that have delivered as many steps in this turn, as
        ``zip`` lets them. A validation that was left after ten steps without a loss does not count,
        nor does the training step around an evaluation, whose loss was computed before.
        """
        last = self.last
        if last is None or last.info is None:
            return []
        found = [last.info]
        if len(self._open) > 1:
            for one in (ref() for ref in self._open):
                if one is None or one is last or not one.is_open or one.info is None:
                    continue
                if (one.turn, one.count) == (last.turn, last.count):
                    found.append(one.info)
        return found
