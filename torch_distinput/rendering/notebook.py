"""What notebooks show of our values: a title, facts, and a picture of who has which rows.

A cell that only names a value must not fail, wait or read: each part is made of what is known in
this process, and one that cannot be made is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import accumulate

from torch_distinput.rendering.lanes import MOST_LANES, Lane, color_of, draw_lanes
from torch_distinput.rendering.units import show_count

Section = Callable[[], str]
_MOST_CHARACTERS = 80
_MOST_WORKERS = 32
_MOST_REPLICAS = 16


def show(title: str, *parts: Section) -> str:
    """Return HTML with a title and the parts that can be made, one below the other."""
    style = "font-weight:600;margin-bottom:4px;overflow-wrap:anywhere"
    made = [f"<div style='{style}'>{escape(title)}</div>"]
    for part in parts:
        with suppress(Exception):
            made.append(part())
    return f"<div style='margin:4px 0'>{''.join(made)}</div>"


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a table with a name and a value in each row."""
    cell = "style='text-align:left;padding:1px 12px 1px 0;background:none;border:none"
    name_cell = f"{cell};font-weight:400;opacity:.7;min-width:10em'"
    rows = "".join(
        f"<tr style='background:none'><th {name_cell}>{escape(name)}</th>"
        f"<td {cell}'>{escape(_short(value))}</td></tr>"
        for name, value in pairs
    )
    return f"<table style='border:none;margin:4px 0;font-size:12px'>{rows}</table>"


def caption(text: str) -> str:
    """Return a line of text above a picture."""
    return f"<div style='font-size:12px;margin-top:6px'>{escape(text)}</div>"


def show_per_replica(values: Sequence[object]) -> str:
    """What each local replica holds, and its rows where all of them have rows."""
    return show(
        f"PerReplica: {show_count(len(values), 'local replica')}",
        lambda: facts((f"replica {i}", _describe(value)) for i, value in enumerate(values)),
        lambda: _draw_sizes([_count_rows(value) for value in values]),
    )


def show_stats(counters: Mapping[str, object]) -> str:
    """Counters that have counted something, by their names; what has names in it in a line each."""
    flat: list[tuple[str, object]] = []
    for name, value in counters.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}: {key}", number) for key, number in value.items()]
        elif value is not None:
            flat.append((name, value))
    return show("InputStats: since this iterator was made", lambda: facts(flat))


def show_topology(num_workers: int, replicas_per_worker: int, worker_index: int) -> str:
    """Ranks from top to bottom, with the numbers in sync of their replicas; this rank in bold."""
    title = (
        f"{show_count(num_workers, 'worker')} x {show_count(replicas_per_worker, 'replica')}, seen "
        f"from worker {worker_index}"
    )
    return show(title, lambda: _draw_ranks(num_workers, replicas_per_worker, worker_index))


def show_step(
    title: str,
    counts: Mapping[str, int | None],
    rows: Callable[[], Sequence[tuple[str, ...]]],
    *,
    num_examples: int,
    first_replica: int | None,
) -> str:
    """Show a step: facts, and the rows of this rank's replicas beside those of the others.

    Args:
        title: above it.
        counts: facts; None for what is not known.
        rows: the names of the rows of each local replica, if they can be told.
        num_examples: over all replicas in sync.
        first_replica: the number in sync of this rank's first replica; None if nobody knows.
    """
    return show(
        title,
        lambda: facts((name, count) for name, count in counts.items() if count is not None),
        lambda: _draw_own(rows(), num_examples, first_replica),
    )


def draw_plan(sizes: Sequence[Sequence[int]], *, is_numbered: bool, num_hidden: int) -> str:
    """Return the picture of one step.

    Args:
        sizes: rows of each replica, by rank.
        is_numbered: whether the rows are those of one global batch, which has numbers for them.
        num_hidden: replicas of further ranks, which are not in ``sizes``.
    """
    flat = [(rank, size) for rank, own in enumerate(sizes) for size in own]
    starts = list(accumulate((size for _, size in flat), initial=0))
    lanes = [
        Lane(
            label=f"replica {replica} (rank {rank})",
            rank=rank,
            start=starts[replica],
            num_rows=size,
            names=tuple(map(str, range(starts[replica], starts[replica + 1]))) * is_numbered,
        )
        for replica, (rank, size) in enumerate(flat[:MOST_LANES])
    ]
    return draw_lanes(
        lanes, num_rows=starts[-1], num_hidden=num_hidden + len(flat) - len(lanes)
    )


def _draw_own(
    rows: Sequence[tuple[str, ...]], num_examples: int, first_replica: int | None
) -> str:
    starts = list(accumulate(map(len, rows), initial=0))
    first = first_replica or 0
    rank = first // len(rows)
    where = "local replica" if first_replica is None else "replica"
    lanes = [
        Lane(
            label=f"{where} {first + i}",
            rank=rank,
            start=starts[i],
            num_rows=len(names),
            names=names,
        )
        for i, names in enumerate(rows[:MOST_LANES])
    ]
    if rest := num_examples - starts[-1]:
        lanes.append(Lane(label="other ranks", rank=None, start=starts[-1], num_rows=rest))
    hidden = len(rows) - len(rows[:MOST_LANES])
    return draw_lanes(lanes, num_rows=num_examples, num_hidden=hidden)


def _draw_sizes(sizes: Sequence[int]) -> str:
    starts = list(accumulate(sizes, initial=0))
    lanes = [
        Lane(label=f"replica {i}", rank=0, start=starts[i], num_rows=size)
        for i, size in enumerate(sizes[:MOST_LANES])
    ]
    hidden = len(sizes) - len(lanes)
    return draw_lanes(lanes, num_rows=starts[-1], num_hidden=hidden)


def _draw_ranks(num_workers: int, replicas_per_worker: int, worker_index: int) -> str:
    shown, wide = min(num_workers, _MOST_WORKERS), min(replicas_per_worker, _MOST_REPLICAS)
    lines = [
        "<div style='display:flex;align-items:center;margin:2px 0;"
        f"font-weight:{700 if rank == worker_index else 400}'>"
        f"<span style='flex:0 0 6em'>worker {rank}</span>"
        + "".join(_square(rank, rank * replicas_per_worker + i) for i in range(wide))
        + (f"<span>and {replicas_per_worker - wide:,} more</span>" * (wide < replicas_per_worker))
        + "</div>"
        for rank in range(shown)
    ]
    if shown < num_workers:
        more = show_count(num_workers - shown, "more worker")
        lines.append(f"<div style='opacity:.7'>and {more}</div>")
    style = "font-size:12px;line-height:20px;overflow-x:auto"
    return f"<div style='{style}'>{''.join(lines)}</div>"


def _square(rank: int, replica: int) -> str:
    return (
        f"<span style='background:{color_of(rank)};color:#fff;min-width:2.2em;text-align:center;"
        f"margin-right:2px;padding:0 2px'>{replica}</span>"
    )


def _describe(value: object) -> str:
    """Shape, dtype and place of what has them; else the value, cut short."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return f"{type(value).__name__} {value!r}"
    device = getattr(value, "device", None)
    place = "" if device is None else f" on {device}"
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}{place}"


def _count_rows(value: object) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0])
    if isinstance(value, (str, bytes, Mapping)):
        message = "no rows"
        raise TypeError(message)
    return len(value)  # type: ignore[arg-type] # a part that cannot be made is left out


def _short(value: object) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    if isinstance(value, float):
        text = f"{value:.3g}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
