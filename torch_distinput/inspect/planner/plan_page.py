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
        parts.append(_draw(plan, rows))
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
    together = -(-plan.num_workers // _MOST_ROWS)
    found = []
    for start in range(0, plan.num_workers, together):
        some = values[start : start + together]
        found.append(
            GridRow(
                name=f"{start} to {start + len(some) - 1}" if len(some) > 1 else f"worker {start}",
                least=int(some.min()) / longest,
                most=int(some.max()) / longest,
            )
        )
    return found


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


def _draw(plan: EpochNumbers, rows: list[GridRow]) -> str:
    """Under FILE rows end one after another; under DATA each has some of every batch."""
    are_alone = plan.num_workers <= _MOST_ROWS
    if plan.policy is AutoShardPolicy.DATA:
        spread = plan.examples or plan.bytes
        whose = "each worker gets" if are_alone else "workers get: pale where some get more"
        what = "examples" if plan.examples else "bytes"
        title = f"How many {what} of the one stream {whose}."
        total = spread.most if spread else None
        return draw_epoch_grid(rows, unit=what, total=total, left="", title=title)
    title = "Each row is a worker; each plays everything."
    if plan.policy is AutoShardPolicy.FILE:
        has = "what a worker has of files, one box a file"
        if not are_alone:
            has = "what some workers have of files, pale where some of them have ended"
        title = f"Each row is {has}. Who has ended while others have not gets zero-row batches."
    left = "none left: zero rows"
    return draw_epoch_grid(rows, unit="step", total=plan.steps, left=left, title=title)
