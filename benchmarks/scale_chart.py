"""The chart of the page "Scale", from the tables that ``scale.py --keep`` writes into it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log2, log10
from pathlib import Path

from bars import STYLE, draw_box, write_text

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
CHART = PAGE.with_suffix(".svg")
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
Line = tuple[str, int, str]
"""A table, a column of it, and what it is."""
Point = tuple[int, float]
"""Workers, and so many bytes."""
RANK: tuple[Line, ...] = (
    ("votes", 4, "a vote on 64 steps"),
    ("states", 3, "a state of files, all alike"),
    ("start-index", 2, "start of an epoch"),
    ("heartbeat", 3, "a sign of life"),
)
BUSIEST: tuple[Line, ...] = (
    ("start-index", 5, "start of an epoch: the last rank"),
    ("heartbeat", 6, "a sign of life: the watcher"),
    ("states", 4, "a state of files, all different"),
)
COLOURS = {"votes": 0, "states": 1, "start-index": 2, "heartbeat": 3}
WIDTH, LEFT, RIGHT, HEIGHT = 520, 68, 500, 200
TICKS = ("100 B", "1 kB", "10 kB", "100 kB", "1 MB", "10 MB", "100 MB")
LINES = """
.line { fill: none; stroke-width: 2 } .guide { stroke: #59636e; stroke-dasharray: 5 4 }
.end { text-anchor: end; font-size: 12px; fill: #59636e }
.stroke0 { stroke: #0b62a8 } .stroke1 { stroke: #b34700 } .stroke2 { stroke: #00755a }
.stroke3 { stroke: #a3348e } .fill0 { fill: #0b62a8 } .fill1 { fill: #b34700 }
.fill2 { fill: #00755a } .fill3 { fill: #a3348e }
@media (prefers-color-scheme: dark) {
  .guide { stroke: #9da7b3 } .end { fill: #9da7b3 }
  .stroke0 { stroke: #4493f8 } .stroke1 { stroke: #f0883e } .stroke2 { stroke: #3fb08f }
  .stroke3 { stroke: #e07fce } .fill0 { fill: #4493f8 } .fill1 { fill: #f0883e }
  .fill2 { fill: #3fb08f } .fill3 { fill: #e07fce }
}
"""


def read_column(page: str, name: str, column: int) -> list[Point]:
    """The workers, and so many bytes, of each row of a table of the page."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found = re.search(f"{begin}(.*?){end}", page, re.DOTALL)
    assert found, name
    rows = [line.strip("| ").split(" | ") for line in found[1].split("\n") if line[:3] != "|--"]
    cells = [(row[0], row[column].split()) for row in rows if row[0][:1].isdigit()]
    return [(int(size.replace(",", "")), float(n) * BYTES[unit]) for size, (n, unit) in cells]


def draw(page: str) -> str:
    """Bytes against workers, at each rank and at the busiest, on logarithmic axes."""
    shapes = [write_text(20, 26, "Less is better. Both axes are logarithmic.", "faint")]
    top = 46
    for title, lines in (("At each rank", RANK), ("Where most of the work is", BUSIEST)):
        shapes += _panel(page, title, lines, top)
        top += HEIGHT + 104 + 22 * (len(lines) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" role="img" aria-label="Bytes against workers">\n'
        f"<style>{STYLE}{LINES}</style>\n{draw_box(0, 0, WIDTH, top, 'paper')}\n"
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _panel(page: str, title: str, lines: tuple[Line, ...], top: int) -> Iterator[str]:
    """Yield the title, the legend, and below it the axes and the lines."""
    yield write_text(20, top + 14, title, "title")
    colours = [COLOURS[name] for name, _, _ in lines]
    for number, (_, _, label) in enumerate(lines):
        y = top + 36 + 22 * number
        yield f'<circle class="fill{colours[number]}" cx="27" cy="{y - 4}" r="5"/>'
        yield write_text(42, y, label)
    y = top + 36 + 22 * len(lines)
    yield f'<path class="line guide" d="M20 {y - 4}H34"/>'
    yield write_text(42, y, "1 kB for each worker")
    bottom = y + 24 + HEIGHT
    columns = [read_column(page, name, column) for name, column, _ in lines]
    sizes = [size for size, _ in columns[0]]
    yield from _axes(sizes, bottom)
    yield _polyline([(size, 1000.0 * size) for size in sizes], bottom, sizes, "guide")
    for colour, points in zip(colours, columns, strict=True):
        yield _polyline(points, bottom, sizes, f"stroke{colour}")
        for x, y_of in (_place(point, bottom, sizes) for point in points):
            yield f'<circle class="fill{colour}" cx="{x:.1f}" cy="{y_of:.1f}" r="4"/>'


def _axes(sizes: list[int], bottom: int) -> Iterator[str]:
    for power, words in enumerate(TICKS, 2):
        _, y = _place((sizes[0], 10.0**power), bottom, sizes)
        yield draw_box(LEFT, y, RIGHT - LEFT, 1, "axis")
        yield write_text(LEFT - 8, y + 4, words, "end")
    for size in sizes:
        x, _ = _place((size, 100.0), bottom, sizes)
        yield write_text(x, bottom + 20, f"{size:,}", "number")
    yield write_text(RIGHT, bottom + 38, "workers", "end")


def _place(point: Point, bottom: int, sizes: list[int]) -> tuple[float, float]:
    """Where workers and bytes are in the picture."""
    first, last = log2(sizes[0]), log2(sizes[-1])
    x = LEFT + 8 + (RIGHT - LEFT - 16) * (log2(point[0]) - first) / (last - first)
    return x, bottom - HEIGHT * (log10(point[1]) - 2) / (len(TICKS) - 1)


def _polyline(points: list[Point], bottom: int, sizes: list[int], kind: str) -> str:
    places = (_place(point, bottom, sizes) for point in points)
    return f'<path class="line {kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>'


def main() -> None:
    """Write it beside the page."""
    CHART.write_text(draw(PAGE.read_text()))


if __name__ == "__main__":
    main()
