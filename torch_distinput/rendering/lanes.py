"""The picture of who has which rows: a lane for each replica, coloured by its rank.

    replica 0   ■■■■■■■□□□□□□□□□□□□□   7 rows
    replica 1   □□□□□□□■■■■■■■□□□□□□   7 rows
    replica 2   □□□□□□□□□□□□□□■■■■■■   6 rows
    replica 3   □□□□□□□□□□□□□□□□□□□□   zero rows

Boxes of HTML, not SVG: their text keeps its size where the page is narrow. Text has the colour of
the page around it; the colours of ranks can be told apart on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torch_distinput.rendering.units import show_count

RANK_COLORS = (
    *("#0969da", "#bc4c00", "#1a7f37", "#8250df"),
    *("#bf3989", "#116b75", "#953800", "#57606a"),
)
"""White text can be read on each of them; ranks 8, 9, ... have them again."""
MOST_LANES = 16
_MOST_CELLS = 32
_LEGIBLE = 0.15
"""The share of a lane from which on two names fit into a block."""
_TRACK = "rgba(128,128,128,.18)"
_FAINT = "rgba(128,128,128,.6)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """What one replica has.

    Attributes:
        label: its name.
        rank: which colour it has; None: none, as it stands for several ranks.
        start: rows of the picture before its first one.
        num_rows: how many it has.
        names: of its rows, written into their cells where there is room; may be empty.
    """

    label: str
    rank: int | None
    start: int
    num_rows: int
    names: tuple[str, ...] = ()


def draw_lanes(lanes: Sequence[Lane], *, num_rows: int, num_hidden: int = 0) -> str:
    """Return HTML with a line for each lane, and a legend where there are several ranks.

    Args:
        lanes: from top to bottom.
        num_rows: of the whole picture, from left to right.
        num_hidden: lanes for which there was no room: they are mentioned.
    """
    lines = [_draw_lane(lane, num_rows) for lane in lanes]
    if num_hidden:
        lines.append(f"<div style='opacity:.7'>and {show_count(num_hidden, 'more replica')}</div>")
    ranks = sorted({lane.rank for lane in lanes if lane.rank is not None})
    if 1 < len(ranks) <= len(RANK_COLORS):  # more would share colours: their labels tell
        lines.append(_draw_legend(ranks))
    return f"<div style='font-size:12px;line-height:20px;max-width:52em'>{''.join(lines)}</div>"


def color_of(rank: int | None) -> str:
    """The colour of a rank."""
    return _FAINT if rank is None else RANK_COLORS[rank % len(RANK_COLORS)]


def _draw_lane(lane: Lane, num_rows: int) -> str:
    count = show_count(lane.num_rows, "row") if lane.num_rows else "zero rows"
    return (
        "<div style='display:flex;align-items:center;margin:2px 0'>"
        f"<span style='flex:0 0 11em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap'>"
        f"{escape(lane.label)}</span>"
        f"<span style='flex:1 1 auto;display:flex;height:20px;background:{_TRACK}'>"
        f"{_draw_cells(lane, num_rows)}</span>"
        f"<span style='flex:0 0 6em;text-align:right;white-space:nowrap'>{count}</span></div>"
    )


def _draw_cells(lane: Lane, num_rows: int) -> str:
    """What lies before, and a cell for each row, or one for all of them."""
    if not lane.num_rows or not num_rows:
        return ""
    before = _box(lane.start / num_rows, "", "") if lane.start else ""
    color = f"background:{color_of(lane.rank)};color:#fff;"
    if num_rows > _MOST_CELLS:
        share, ends = lane.num_rows / num_rows, lane.names[:1] + lane.names[1:][-1:]
        return before + _box(share, color, " \N{EN DASH} ".join(ends) * (share >= _LEGIBLE))
    names = lane.names or ("",) * lane.num_rows
    border = "box-sizing:border-box;border:1px solid rgba(255,255,255,.5);"
    cells = (_box(1 / num_rows, color + border, name) for name in names)
    return before + "".join(cells)


def _box(share: float, style: str, text: str) -> str:
    place = f"flex:0 0 {share:.4%};min-width:0;text-align:center;overflow:hidden;white-space:nowrap"
    return f"<span style='{style}{place}' title='{escape(text)}'>{escape(text)}</span>"


def _draw_legend(ranks: Sequence[int]) -> str:
    squares = (
        f"<span style='display:inline-block;margin-left:12px'><span style='display:inline-block;"
        f"width:10px;height:10px;margin-right:4px;background:{color_of(rank)}'></span>"
        f"rank {rank}</span>"
        for rank in ranks
    )
    return f"<div style='padding-left:10em'>{''.join(squares)}</div>"
