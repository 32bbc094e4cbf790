"""Steps that are planned, then fetched."""

from __future__ import annotations

import numpy as np
import pytest

from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.data.steps.planned_steps import PlannedStep, StepFetch, fetch_steps


@pytest.mark.parametrize("num_workers", [0, 1])
def test_steps_without_rows_are_planned_when_their_turn_comes(num_workers):
    """A worker that never has rows does not hold the plan of an epoch."""
    planned = []

    def plan():
        for number in range(100):
            planned.append(number)
            count = int(number % 50 == 7)
            yield PlannedStep(
                indices=np.full(count, number, dtype=np.int64), sizes=(count,), num_examples=1
            )

    loader = TaskLoader(StepFetch(np.ndarray.tolist), LoaderOptions(num_workers=num_workers))
    counts = []
    _, steps = fetch_steps(plan(), loader, epoch=0, owned=False)
    for step, _ in steps:
        counts.append(step.num_rows)
        assert len(planned) <= len(counts) + 2 * num_workers
    assert [number % 50 == 7 for number in range(100)] == counts
