"""The street of a step: a bar for each station of each rank."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from torch_distinput.rendering.run_report import draw_street, render_report

STATIONS = ("source", "your step")
RANKS = [(0, (0.0, 0.040)), (3, (0.020, 0.020))]


def bars():
    drawn = ET.fromstring(draw_street(STATIONS, RANKS, bound=(3, "source")))  # noqa: S314 - our own
    return [bar for bar in drawn.iter("rect") if bar.find("title") is not None]


def test_bars_are_as_long_as_their_times():
    widths = [float(bar.get("width")) for bar in bars()]
    assert widths[0] == 0
    assert widths[2] == widths[3] == widths[1] / 2 > 0


def test_what_the_verdict_names_has_a_frame():
    assert [False, False, True, False] == [bar.get("stroke") is not None for bar in bars()]


def test_a_page_says_the_verdict_and_needs_nothing_beside_itself():
    page = render_report(
        "rank 3 < rank 0",
        stations=STATIONS,
        ranks=RANKS,
        headings=("rank", "step"),
        rows=[("0", "40.0"), ("3", "40.0")],
        bound=(3, "source"),
    )
    assert "rank 3 &lt; rank 0" in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
