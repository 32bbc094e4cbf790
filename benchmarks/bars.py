"""Draw the chart of the page as SVG: bars on logarithmic axes, light or dark as the system asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from measuring import Figure, rounded

WIDTH, LEFT, RIGHT, ROW = 520, 20, 500, 74
STYLE = """
.paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }
.title { font-weight: 600; font-size: 15px } .faint { fill: #59636e }
.number { text-anchor: middle; fill: #59636e; font-size: 12px }
.ours { fill: #0b62a8 } .peer { fill: #a6a6a6 } .target { fill: #d55e00 }
.ring { fill: #ffffff; stroke: #59636e; stroke-width: 1.5 } .axis { fill: #d0d7de }
.floor { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #161b22 } text { fill: #e6edf3 } .faint { fill: #9da7b3 }
  .number { fill: #9da7b3 } .ours { fill: #4493f8 } .peer { fill: #6e7681 }
  .target { fill: #f0883e } .ring { fill: #161b22; stroke: #c9d1d9 } .axis { fill: #3d444d }
  .floor { fill: #e6edf3 }
}
"""
Row = tuple[Figure, list[Figure]]
"""Ours, and the peers from the best on."""


def chart(panels: dict[str, Sequence[Row]]) -> str:
    """Return the chart: one panel for each title, with bars for each row."""
    shapes, top = [*_legend()], 78
    for title, rows in panels.items():
        shapes += _panel(title, rows, top)
        top += 66 + len(rows) * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" role="img" aria-label="Ours, the best peer and the target">\n'
        f"<style>{STYLE}</style>\n{draw_box(0, 0, WIDTH, top, 'paper')}\n" + "\n".join(shapes)
    ) + "\n</svg>\n"


def _legend() -> Iterator[str]:
    names = {"ours": "torch_distinput", "peer": "best peer", "ring": "other peers"}
    for at, (kind, words) in enumerate({**names, "target": "target"}.items()):
        x = (20, 162, 270, 390)[at]
        box = draw_box(x + 4 * (kind == "target"), 20, 4 if kind == "target" else 12, 12, kind)
        yield f'<circle class="ring" cx="{x + 6}" cy="26" r="4"/>' if kind == "ring" else box
        yield write_text(x + 18, 31, words)
    yield write_text(20, 54, "Less is better. Axes are logarithmic.", "faint")


def _panel(title: str, rows: Sequence[Row], top: int) -> Iterator[str]:
    """Yield the axis of a panel and its rows; bars of ratios begin at the floor, 1."""
    values = [one.value for ours, peers in rows for one in (ours, *peers)]
    values += [ours.target for ours, _ in rows if ours.target is not None]
    lowest, highest = log10(min(value for value in values if value > 0) / 2), log10(max(values))
    span = (RIGHT - LEFT - 8) / (highest - lowest)

    def place(value: float) -> float:  # a difference of times may be below nothing
        return LEFT + max(log10(value) - lowest, 0) * span if value > 0 else LEFT

    is_ratio = rows[0][0].unit == "ratio"
    powers = [10.0**power for power in range(ceil(lowest), floor(highest) + 1)]
    yield write_text(LEFT, top + 12, title, "title")
    for at, row in enumerate(rows):
        y = top + 26 + at * ROW
        yield from (draw_box(place(power), y + 38, 1, 30, "axis") for power in powers)
        if is_ratio:
            yield draw_box(place(1) - 0.5, y + 38, 1.5, 30, "floor")
        yield from _row(row, y, place(1) if is_ratio else LEFT, place)
    end = top + 44 + len(rows) * ROW
    yield from (write_text(place(power), end, f"{power:g}", "number") for power in powers)


def _row(row: Row, y: float, start: float, place: Callable[[float], float]) -> Iterator[str]:
    """Yield what one workload is, the bar of ours with its target, and that of the best peer."""
    ours, peers = row
    which = ours.case.partition(", ")[2]
    yield write_text(LEFT, y + 16, f"{ours.workload} ({which})" if which else ours.workload)
    said = f"ours {rounded(ours.value)}; {peers[0].case}: {rounded(peers[0].value)}"
    yield write_text(LEFT, y + 33, said, "faint")
    for one, kind, down in ((ours, "ours", 41), (peers[0], "peer", 54)):
        x, end = sorted((start, place(one.value)))
        yield draw_box(x, y + down, max(end - x, 1), 11, kind)
    for one in peers[1:]:
        yield f'<circle class="ring" cx="{place(one.value):.1f}" cy="{y + 59.5:g}" r="4"/>'
    if ours.target is not None:
        yield draw_box(place(ours.target) - 2, y + 38, 4, 17, "target")


def write_text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words that begin, end or stand in the middle at x, as the style of their kind says."""
    return f'<text x="{x:.5g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def draw_box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle with its upper left corner at (x, y)."""
    return f'<rect class="{kind}" x="{x:.5g}" y="{y:g}" width="{width:.5g}" height="{height:g}"/>'
