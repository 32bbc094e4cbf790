"""HTML without a template language: text is escaped, and a page needs nothing beside itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #d0d7de;
        --accent: #0969da; --warn: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d; --accent: #58a6ff; --warn: #f0883e; }
}
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--faint); text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole page, in the light or dark colours that the reader's system asks for.

    Args:
        title: plain text, for the tab and the heading.
        body: fragments of HTML, one below the other.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; the cells are plain text or numbers, a column for each heading."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
