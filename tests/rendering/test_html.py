"""Pages and tables: what is text stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from torch_distinput.rendering.html import page, table


class Cells(HTMLParser):
    """The text of the cells, and every tag that was met."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in {"td", "th"}:
            self.cells.append(data)


def parsed(text: str) -> Cells:
    parser = Cells()
    parser.feed(text)
    return parser


def test_a_table_has_a_row_for_each_row() -> None:
    assert ["rank", "rows", "0", "12", "1", "11"] == parsed(
        table(["rank", "rows"], [(0, 12), (1, 11)])
    ).cells


def test_text_of_a_cell_is_no_markup() -> None:
    found = parsed(table(["file"], [("<script>&",)]))
    assert ["file", "<script>&"] == found.cells
    assert "script" not in found.tags


def test_a_page_loads_nothing_from_elsewhere() -> None:
    whole = page("A & B", [table(["a"], [])])
    assert "<title>A &amp; B</title>" in whole
    assert not {"link", "script", "img", "iframe"} & set(parsed(whole).tags)
    assert "http" not in whole
