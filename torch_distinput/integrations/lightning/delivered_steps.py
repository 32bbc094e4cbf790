"""Steps on their way through Lightning, which reads ahead and accumulates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch_distinput as tdi

LossWeights = Callable[[Any], Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveredStep:
    """A step that Lightning has asked for.

    Attributes:
        step: the step; the loader leaves out its batch.
        num_accumulated: ``accumulate_grad_batches`` for which its group was made.
        num_averaged: examples of its group.
        is_last: whether none follows, as far as somebody has looked.
    """

    step: tdi.Step
    num_accumulated: int
    num_averaged: int
    is_last: bool = False


def to_the_end(steps: Iterator[tdi.Step], num_steps: int | None) -> Iterator[tdi.Step]:
    """Yield the steps, and reach the end of data before the last one is handed over.

    Lightning asks for no more steps than there are. At the end the audit is made, and what reads
    is closed.
    """
    for step in steps:
        if step.index + 1 == num_steps:
            next(steps, None)
        yield step


def one_by_one(steps: Iterator[tdi.Step], weights: LossWeights) -> Iterator[DeliveredStep]:
    """Yield steps that train by themselves."""
    if weights is not None:
        steps = chain.from_iterable(tdi.accumulate(steps, 1, weights=weights))
    for step in steps:
        yield DeliveredStep(step=step, num_accumulated=1, num_averaged=step.num_examples)


def grouped(
    steps: Iterator[tdi.Step], size: int, *, done: int, room: float, weights: LossWeights
) -> Iterator[DeliveredStep]:
    """Yield steps that train together: up to each multiple of ``size``, and up to the end.

        size=4, done=6, 11 steps in all
        6 7 | 8 9 10

    Args:
        steps: those of an epoch or of its rest.
        size: ``accumulate_grad_batches``.
        done: how many steps Lightning counts before the first one.
        room: how many more of them it takes.
        weights: what :func:`tdi.accumulate` takes.
    """
    steps = steps if math.isinf(room) else islice(steps, int(room))
    first = size - done % size
    accumulate = partial(tdi.accumulate, weights=weights)
    groups = chain(accumulate(islice(steps, first), first), accumulate(steps, size))
    for group in groups:
        total = group.num_examples
        for step in group:
            yield DeliveredStep(step=step, num_accumulated=size, num_averaged=total)


def note_last(steps: Iterator[DeliveredStep]) -> Iterator[DeliveredStep]:
    """Look one step ahead: the optimizer is to step with the last one, however many wait with it.

    For streams with ``limit_train_batches=100``, say: Lightning takes that for their length.
    """
    following = next(steps, None)
    while following is not None:
        step, following = following, next(steps, None)
        yield replace(step, is_last=following is None)
