"""The chart of the page "Scale", from the tables that ``scale.py --keep`` writes into it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
CHART = PAGE.with_suffix(".png")
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
# A table, a column of it, and what it is; of each rank, and of the one that does more than others.
RANK = (
    ("start-index", 2, "start of an epoch"),
    ("votes", 4, "a vote on 64 steps"),
    ("heartbeat", 3, "a sign of life"),
    ("states", 3, "a state of files, all alike"),
)
BUSIEST = (
    ("start-index", 5, "start of an epoch: the last rank"),
    ("heartbeat", 6, "a sign of life: the watcher"),
    ("states", 4, "a state of files, all different"),
)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by all eyes
MARKERS = "osD^"


def read_column(page: str, name: str, column: int) -> list[tuple[int, float]]:
    """The workers, and so many bytes, of each row of a table of the page."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found = re.search(f"{begin}(.*?){end}", page, re.DOTALL)
    assert found, name
    rows = [line.strip("| ").split(" | ") for line in found[1].split("\n") if line[:3] != "|--"]
    cells = [(row[0], row[column].split()) for row in rows if row[0][:1].isdigit()]
    return [(int(size.replace(",", "")), float(n) * BYTES[unit]) for size, (n, unit) in cells]


def draw(page: str, file: Path) -> None:
    """Bytes against workers, at each rank and at the busiest, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        1, 2, sharey=True, figsize=(9.5, 3.8), layout="constrained"
    )  # fmt: skip
    _draw_panel(axes[0], page, RANK, "bytes at each rank")
    _draw_panel(axes[1], page, BUSIEST, "bytes where most of the work is")
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _draw_panel(axis: Any, page: str, lines: tuple[tuple[str, int, str], ...], title: str) -> None:
    sizes: list[int] = []
    for (name, column, label), colour, marker in zip(lines, COLOURS, MARKERS, strict=False):
        points = read_column(page, name, column)
        sizes = [size for size, _ in points]
        axis.plot(
            sizes, [count for _, count in points], marker=marker, ms=5, color=colour, label=label
        )  # fmt: skip
    guide = [1000 * size for size in sizes]
    axis.plot(sizes, guide, "--", color="#a6a6a6", lw=1, label="1 kB for each worker", zorder=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.set_xlabel("workers")
    ticks = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
    axis.set_yticks(ticks, ["100 B", "1 kB", "10 kB", "100 kB", "1 MB", "10 MB", "100 MB"])
    axis.set_title(title, fontsize=9, loc="left", fontweight="bold")
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def main() -> None:
    """Write it beside the page."""
    draw(PAGE.read_text(), CHART)


if __name__ == "__main__":
    main()
