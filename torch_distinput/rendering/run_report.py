"""The way of a step as a street: a row for each rank, as long as its step, cut by station."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch_distinput.rendering.html import page, table

Times = tuple[float, ...]
"""Seconds of a step by station, in their order."""

_WIDTH, _ROW, _BAR = 860, 34, 22
_LEFT, _TOP, _RIGHT = 70, 34, 90
_HUES = {
    "source": "#cf6a32",
    "decode": "#c9a227",
    "collate": "#7a9a3a",
    "agreement": "#8d6cc1",
    "copy": "#3f9aa8",
    "your step": "#8a949e",
}
"""Each stands out on white and on black; what follows the last one has its colour."""
_LEGEND = (
    "<p>A bar is a step of one rank. Its coloured parts are what the training loop waits for; the "
    "grey one is your step, from one batch to the next call. What is read, decoded or copied while "
    "your step runs costs no time, and is not in it.</p>"
)
_NARROWEST = 44
"""Of a part with a number in it, in units of the picture."""


def render_report(
    verdict: str,
    *,
    stations: Sequence[str],
    ranks: Sequence[tuple[int, Times]],
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    bound: tuple[int | None, str | None],
) -> str:
    """Return the page of a run report.

    Args:
        verdict: a sentence or two.
        stations: names, in the order of the way.
        ranks: a rank's number and its times, of the ranks in the picture.
        headings: of the table.
        rows: of the table, of all ranks.
        bound: the rank and the station that the verdict names.
    """
    return page(
        "Where the time of a step goes",
        [
            f"<p><strong>{escape(verdict)}</strong></p>",
            _scrolled(draw_street(stations, ranks, bound=bound)),
            _LEGEND,
            "<h2>Milliseconds of a step</h2>",
            _scrolled(table(headings, rows)),
        ],
    )


def draw_street(
    stations: Sequence[str],
    ranks: Sequence[tuple[int, Times]],
    *,
    bound: tuple[int | None, str | None] = (None, None),
) -> str:
    """Return the picture as SVG; the part that ``bound`` names has a frame."""
    longest = max((sum(times) for _, times in ranks), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(ranks) + 8
    parts = [_legend(stations)]
    for row, (rank, times) in enumerate(ranks):
        top = _TOP + _ROW * row
        parts.append(_text(_LEFT - 10, top + _BAR - 6, f"rank {rank}", anchor="end"))
        left = float(_LEFT)
        for station, seconds in zip(stations, times, strict=True):
            width = seconds * scale
            parts.append(_bar(left, top, width, station, is_bound=(rank, station) == bound))
            if width >= _NARROWEST:
                number = f"{seconds * 1e3:.1f}"
                parts.append(_text(left + width / 2, top + _BAR - 6, number, ink="#000"))
            left += width
        parts.append(_text(left + 8, top + _BAR - 6, f"{sum(times) * 1e3:.1f} ms", anchor="start"))
    title = "A step of each rank, by station"
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {_WIDTH} {height}" '
        'style="width:100%;min-width:38rem" '
        f'font-size="13" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _scrolled(wide: str) -> str:
    """What is wider than a narrow window is scrolled by itself."""
    return f'<div style="overflow-x:auto">{wide}</div>'


def _legend(stations: Sequence[str]) -> str:
    parts, left = [], float(_LEFT)
    for station in stations:
        parts.append(f'<rect x="{left:.1f}" y="4" width="12" height="12" fill="{_hue(station)}"/>')
        parts.append(_text(left + 17, 15, station, anchor="start"))
        left += 45 + 7.5 * len(station)
    return "".join(parts)


def _bar(left: float, top: float, width: float, station: str, *, is_bound: bool) -> str:
    frame = ' stroke="var(--ink, #1f2328)" stroke-width="2"' if is_bound else ""
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" '
        f'fill="{_hue(station)}"{frame}><title>{escape(station)}</title></rect>'
    )


def _text(x: float, y: float, words: str, *, anchor: str = "middle", ink: str = "") -> str:
    fill = ink or "var(--ink, #1f2328)"
    said = escape(words)
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{fill}">{said}</text>'


def _hue(station: str) -> str:
    return _HUES.get(station, _HUES["your step"])
