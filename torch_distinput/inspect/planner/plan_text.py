"""A plan as text, for terminals and as the words of its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_distinput.rendering.units import show_bytes, show_count

if TYPE_CHECKING:
    from torch_distinput.inspect.planner.epoch_numbers import EpochNumbers, PolicyCost, Spread

_UNKNOWN = "?"


def describe_plan(plan: EpochNumbers) -> str:
    """Return all lines."""
    facts = list(list_facts(plan))
    width = max(len(name) for name, _ in facts)
    lines = [headline(plan), "", *(f"  {name:<{width}}  {value}" for name, value in facts)]
    if plan.costs:
        lines += ["", *_layout(*list_costs(plan))]
    return "\n".join([*lines, *([""] if plan.notes else []), *plan.notes])


def headline(plan: EpochNumbers) -> str:
    """What was planned, in one line."""
    replicas = plan.replicas_per_worker
    each = "" if replicas == 1 else f" x {replicas} replicas"
    policy = plan.policy.name + (", split_files" if plan.split_files else "")
    size = plan.global_batch_size
    batch = "" if size is None else f", global batch {shown(size)}"
    return f"{plan.source} on {show_count(plan.num_workers, 'worker')}{each}{batch} ({policy})"


def list_facts(plan: EpochNumbers) -> Iterator[tuple[str, str]]:
    """The numbers of an epoch, by name."""
    about = "" if plan.is_exact else "about "
    if plan.num_files is not None:
        yield "files", _with_bytes(shown(plan.num_files), plan.num_bytes)
    yield (
        "examples",
        about + shown(plan.num_examples) if plan.num_examples is not None else _UNKNOWN,
    )
    yield "steps", about + shown(plan.steps) if plan.steps is not None else _UNKNOWN
    if plan.num_dropped:
        yield "left out", f"{about}{show_count(plan.num_dropped, 'example')} of partial batches"
    if plan.zero_row_steps is not None:
        yield "zero-row steps", _describe_zero_rows(plan, about)
    if plan.examples is not None:
        more = f", most over mean {plan.imbalance:.3f}" if plan.imbalance else ""
        yield "examples of a worker", about + _describe_spread(plan.examples) + more
    if plan.files is not None:
        name = "parts of files" if plan.split_files else "files"
        yield f"{name} of a worker", _describe_spread(plan.files)
    if plan.bytes is not None:
        spread = plan.bytes
        least, most = _show_bytes(spread.least), _show_bytes(spread.most)
        yield "bytes of a worker", least if least == most else f"{least} to {most}"
    if plan.requests is not None:
        listing = plan.listing_requests
        pages = "" if listing is None else f", and {listing:,} to list"
        yield "requests to storage", f"about {plan.requests:,} to read{pages}"


_HEADINGS = ("read as", "steps", "zero-row", "imbalance", "bytes", "most of one", "requests")


def list_costs(plan: EpochNumbers) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings and rows of what each way to read comes to; without columns nobody knows."""
    rows = [_list_cost(cost) for cost in plan.costs]
    known = [
        column
        for column in range(len(_HEADINGS))
        if any(row[column] not in ("", _UNKNOWN) for row in rows)
    ]
    kept = [tuple(row[column] for column in known) for row in rows]
    return tuple(_HEADINGS[column] for column in known), kept


def _list_cost(cost: PolicyCost) -> tuple[str, ...]:
    if cost.refused:
        return (cost.name, cost.refused, *[""] * (len(_HEADINGS) - 2))
    about = "" if cost.is_exact else "~"
    return (
        cost.name,
        _UNKNOWN if cost.steps is None else about + shown(cost.steps),
        _UNKNOWN if cost.zero_row_steps is None else about + shown(cost.zero_row_steps),
        _UNKNOWN if cost.imbalance is None else f"{about}{cost.imbalance:.3f}",
        _show_bytes(cost.num_bytes),
        _show_bytes(cost.most_bytes),
        _UNKNOWN if cost.requests is None else shown(cost.requests),
    )


def _show_bytes(count: int | None) -> str:
    return _UNKNOWN if count is None else show_bytes(count)


def shown(value: object) -> str:
    """A number with commas, or what else it is."""
    return f"{value:,}" if isinstance(value, int) else repr(value)


def _describe_zero_rows(plan: EpochNumbers, about: str) -> str:
    if not plan.zero_row_steps or plan.first_zero_row_step is None:
        return "none"
    first = shown(plan.first_zero_row_step)
    batches = show_count(plan.zero_row_batches or 0, "zero-row batch")
    return f"{about}{shown(plan.zero_row_steps)}, from step {first} on ({batches})"


def _describe_spread(spread: Spread) -> str:
    if spread.least == spread.most:
        return shown(spread.least)
    return f"{shown(spread.least)} to {shown(spread.most)}, mean {spread.mean:,.1f}"


def _with_bytes(files: str, num_bytes: int | None) -> str:
    return files if num_bytes is None else f"{files}, {show_bytes(num_bytes)}"


def _layout(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A table whose columns are as wide as what is in them; a refusal runs over the rest."""
    full = [row for row in rows if row[2:] != ("",) * (len(headings) - 2)]
    names = max(len(row[0]) for row in (headings, *rows))
    widths = [max(len(row[i]) for row in (headings, *full)) for i in range(1, len(headings))]
    for row in (headings, *rows):
        if row in full or row == headings:
            cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True)]
            yield f"  {row[0]:<{names}}  " + "  ".join(cells)
        else:
            yield f"  {row[0]:<{names}}  {row[1]}"
