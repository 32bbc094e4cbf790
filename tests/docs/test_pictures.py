"""The pictures show what ranks deliver now; ``docs/make_pictures.py`` draws them."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.docs.pages import DOCS, PAGES

PICTURES = runpy.run_path(str(DOCS / "make_pictures.py"))["PICTURES"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    current = (DOCS / "pictures" / name).read_text() == PICTURES[name]()
    assert current, f"docs/pictures/{name} is out of date. Run: python docs/make_pictures.py"


def test_every_picture_has_a_script_and_a_page() -> None:
    assert sorted(PICTURES) == sorted(file.name for file in (DOCS / "pictures").iterdir())
    text = "".join(page.read_text() for page in PAGES)
    assert [] == [name for name in PICTURES if f"pictures/{name})" not in text]


def test_stages_lead_to_pages_of_the_site() -> None:
    links = re.findall(r'href="\.\./(.*)\.html"', (DOCS / "pictures" / "stages.svg").read_text())
    assert links
    assert [] == [link for link in links if not (DOCS / f"{link}.md").exists()]
