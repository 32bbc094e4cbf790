"""The picture of an epoch: a row for each worker, its files in it, and who has none left when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _ROW, _TOP = 760, 110, 18, 8
_BAR = _WIDTH - _LEFT - 10


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRow:
    """A worker, or some of them together.

    Attributes:
        name: what stands before it.
        least: up to where all of its workers have rows, as a part of the longest.
        most: up to where one of them has.
        borders: where files end, as parts of what it has.
    """

    name: str
    least: float
    most: float
    borders: tuple[float, ...] = ()


def draw_epoch_grid(
    rows: Sequence[GridRow], *, unit: str, total: int | None, left: str, title: str
) -> str:
    """Draw the rows below one another.

    Args:
        rows: one or more.
        unit: what is counted along them, such as ``"step"``.
        total: how many of these the longest row has; None where nobody knows.
        left: what there is where a row has ended and others have not; empty: nothing to be drawn.
        title: a sentence that says what is seen, which is read aloud as well.
    """
    height = _TOP + _ROW * len(rows) + 44
    opening = (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(title)}" font-size="12" fill="currentColor">'
    )
    parts = [
        f'<figure style="margin:1rem 0"><figcaption>{escape(title)}</figcaption>',
        opening,
        f"<style>{_STYLE}</style>{_PATTERN}",
        *(_draw_row(row, _TOP + _ROW * number, left) for number, row in enumerate(rows)),
        *_draw_axis(_TOP + _ROW * len(rows), unit, total),
        *(_draw_legend(height - 12, rows, left) if left else ()),
        "</svg></figure>",
    ]
    return "\n".join(parts)


_STYLE = (
    ".tdi-has{fill:var(--accent,#0969da)}.tdi-some{fill:var(--accent,#0969da);opacity:.45}"
    ".tdi-cut{stroke:var(--paper,#fff);stroke-width:1.5}"
    ".tdi-none{stroke:var(--warn,#bc4c00);stroke-width:1.5}"
    ".tdi-axis{stroke:currentColor;stroke-width:1}"
)
_PATTERN = (
    '<defs><pattern id="tdi-starved" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="tdi-none" x1="0" y1="0" x2="0" y2="6"/>'
    "</pattern></defs>"
)


def _draw_row(row: GridRow, top: int, left: str) -> str:
    least, most, height = row.least * _BAR, row.most * _BAR, _ROW - 4
    parts = [
        f'<text x="{_LEFT - 8}" y="{top + height - 2}" text-anchor="end">{escape(row.name)}</text>',
        _draw_box(_LEFT, top, least, 'class="tdi-has"'),
        _draw_box(_LEFT + least, top, most - least, 'class="tdi-some"'),
        _draw_box(_LEFT + most, top, _BAR - most if left else 0, 'fill="url(#tdi-starved)"'),
    ]
    parts += (
        f'<line class="tdi-cut" x1="{_LEFT + end * least:.1f}" x2="{_LEFT + end * least:.1f}" '
        f'y1="{top}" y2="{top + height}"/>'
        for end in row.borders
    )
    return "".join(parts)


def _draw_box(left: float, top: int, width: float, look: str) -> str:
    if width < 0.05:
        return ""
    return f'<rect {look} x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 4}"/>'


def _draw_axis(top: int, unit: str, total: int | None) -> Iterator[str]:
    yield f'<line class="tdi-axis" x1="{_LEFT}" x2="{_LEFT + _BAR}" y1="{top}" y2="{top}"/>'
    for quarter in range(5):
        x = _LEFT + _BAR * quarter / 4
        anchor = {0: "start", 4: "end"}.get(quarter, "middle")
        yield f'<line class="tdi-axis" x1="{x}" x2="{x}" y1="{top}" y2="{top + 4}"/>'
        if total is not None:
            named = f"{unit} " if quarter in (0, 4) else ""
            label = f"{named}{total * quarter // 4:,}"
            yield f'<text x="{x}" y="{top + 17}" text-anchor="{anchor}">{label}</text>'


def _draw_legend(baseline: int, rows: Sequence[GridRow], left: str) -> Iterator[str]:
    shown = [('class="tdi-has"', "has rows left")]
    if any(row.most > row.least for row in rows):
        shown.append(('class="tdi-some"', "some of them have"))
    if any(row.least < 1 for row in rows):
        shown.append(('fill="url(#tdi-starved)"', left))
    x = _LEFT
    for look, name in shown:
        yield f'<rect {look} x="{x}" y="{baseline - 10}" width="14" height="12"/>'
        yield f'<text x="{x + 20}" y="{baseline}">{name}</text>'
        x += 34 + 8 * len(name)
