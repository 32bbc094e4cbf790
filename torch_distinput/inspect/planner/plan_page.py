"""A plan as a page, and as what a notebook shows."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from torch_distinput.inspect.planner import plan_text
from torch_distinput.options import AutoShardPolicy
from torch_distinput.rendering.epoch_grid import GridRow, draw_epoch_grid
from torch_distinput.rendering.html import page, table

if TYPE_CHECKING:
    from torch_distinput.inspect.planner.epoch_numbers import EpochNumbers
    from torch_distinput.inspect.planner.totals.epoch_totals import Integers

_MOST_ROWS = 32
_MOST_FILES = 40
"""In a row; more are not drawn one by one."""


def make_page(plan: EpochNumbers) -> str:
    """Return a whole page."""
    return page("Plan of an epoch", [make_fragment(plan)])


def make_fragment(plan: EpochNumbers) -> str:
    """Return what stands on the page."""
    parts = [
        f"<p>{escape(plan_text.headline(plan))}</p>",
        table(("", "epoch"), plan_text.list_facts(plan)),
    ]
    rows = list_rows(plan)
    if rows:
        parts.append(draw_epoch_grid(rows, steps=plan.steps, title=_describe_picture(plan)))
    if plan.costs:
        costs = table(*plan_text.list_costs(plan))
        parts.append(f'<div style="overflow-x:auto">{costs}</div>')
    parts += [f"<p>{escape(note)}</p>" for note in plan.notes]
    return "\n".join(parts)


def list_rows(plan: EpochNumbers) -> list[GridRow]:
    """The rows of the picture: workers, or neighbours together where there are too many.

    Their lengths are examples; where nobody has counted these, bytes.
    """
    values = plan.examples_by_worker
    values = plan.bytes_by_worker if values is None else values
    if values is None or not values.max():
        return []
    longest = int(values.max())
    if plan.num_workers <= _MOST_ROWS:
        return [
            GridRow(
                name=f"worker {worker}",
                least=value / longest,
                most=value / longest,
                borders=_find_borders(plan, worker),
            )
            for worker, value in enumerate(values.tolist())
        ]
    bounds = np.linspace(0, plan.num_workers, _MOST_ROWS + 1).astype(int)
    return [
        GridRow(
            name=f"{start} to {stop - 1}" if stop - start > 1 else f"worker {start}",
            least=int(values[start:stop].min()) / longest,
            most=int(values[start:stop].max()) / longest,
        )
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _find_borders(plan: EpochNumbers, worker: int) -> tuple[float, ...]:
    """Where the files of a worker end, as parts of its row; none where parts are dealt out."""
    known = plan.known
    if known is None or plan.policy is not AutoShardPolicy.FILE or plan.split_files:
        return ()
    values: Integers | None = known.sizes if known.examples is None else known.examples
    own = plan.files_of(worker)
    if values is None or len(own) > _MOST_FILES or not values[own].sum():
        return ()
    ends = np.cumsum(values[own]) / values[own].sum()
    return tuple(float(end) for end in ends[:-1])


def _describe_picture(plan: EpochNumbers) -> str:
    row = "a worker" if plan.num_workers <= _MOST_ROWS else "some workers"
    if plan.policy is AutoShardPolicy.DATA:
        return f"Each row is the share of {row} in the one stream that all of them read."
    if plan.policy is AutoShardPolicy.OFF:
        return f"Each row is {row}; each plays everything."
    has = "has" if plan.num_workers <= _MOST_ROWS else "have"
    boxes = ", one box a file" if plan.num_workers <= _MOST_ROWS else " together"
    return (
        f"Each row is what {row} {has} of files{boxes}. Who has ended while others have not "
        "gets zero-row batches."
    )
