"""A delivery as a vector of bytes, and back.

What most steps have in common with the one before travels once: the structure of a batch, and the
places that the workers have told of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from torch_distinput.data.batch.serialized import deserialize, serialize
from torch_distinput.data.steps.local_step import LocalStep, ReplicaBatch, StepFacts
from torch_distinput.engine.feeds import Delivery
from torch_distinput.plan.progress.delivered import Progress

if TYPE_CHECKING:
    from torch_distinput.data.batch.structure import Structure

_NOTHING = (None, None, None, None)


@final
class DeliveryWriter:
    """Writes one delivery after another."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        """Take what tells the spec of a batch, where no batch has shown it."""
        self._ask = ask
        self._structure: Structure | None = None
        self._points: Any = None
        self._has_shown = False

    def write(self, delivery: Delivery) -> torch.Tensor:
        """Write a delivery; with the spec of a batch, as long as no batch has come."""
        step = delivery.step
        progress: Any = delivery.progress
        parts = None if step is None else [self._part(part) for part in step.parts]
        spec = None
        if not self._has_shown and not any(parts or ()):
            spec = self._ask()
        self._has_shown = True
        if isinstance(progress, Progress):
            points, known = progress.resume_points, self._points
            self._points = points
            progress = (tuple(progress[:-1]), None if points is known else points)
        sizes = None if step is None else step.sizes
        told = None if step is None else _facts_of(step.facts)
        return serialize((parts, sizes, delivery.num_examples, progress, spec, told))

    def _part(self, part: ReplicaBatch | None) -> Any:
        if part is None:
            return None
        known, self._structure = self._structure, part.structure
        return list(part.leaves), None if known == part.structure else part.structure, part.ids


@final
class DeliveryReader:
    """Reads them again, in the same order."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._structure: Structure | None = None
        self._points: Any = None

    def read(self, content: torch.Tensor) -> tuple[Delivery, Any]:
        """The delivery, and the spec of a batch if it came along."""
        parts, sizes, num_examples, progress, spec, told = deserialize(content)
        step = None
        if parts is not None:
            counts, num_tokens, costs, packed = told or _NOTHING
            facts = StepFacts(
                source_counts=counts, num_tokens=num_tokens, costs=costs, packed=packed
            )
            own = tuple(map(self._part, parts))
            step = LocalStep(parts=own, sizes=sizes, facts=facts, owned=True)
        if isinstance(progress, tuple):  # what an int is not
            (steps_done, batch, rows, files_touched), points = progress
            self._points = self._points if points is None else points
            progress = Progress(steps_done, batch, rows, files_touched, self._points)
        return Delivery(step, num_examples, progress), spec

    def _part(self, part: Any) -> ReplicaBatch | None:
        if part is None:
            return None
        leaves, structure, ids = part
        self._structure = self._structure if structure is None else structure
        assert self._structure is not None, "it came with the first part"
        return ReplicaBatch(leaves, self._structure, ids)


def _facts_of(facts: StepFacts) -> tuple[Any, ...] | None:
    """What is told of a whole step; None if that is nothing, as almost always."""
    told = (facts.source_counts, facts.num_tokens, facts.costs, facts.packed)
    return None if told == _NOTHING else told
