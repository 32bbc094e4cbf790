"""What `make docs` would refuse, as far as the pages alone tell it: no Sphinx is needed here."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS, PAGES, ROOT

HOME = DOCS / "site" / "home.md"


def in_toctrees() -> list[Path]:
    """The pages that the toctrees of the landing page name, stars resolved."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", HOME.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if line[:1] not in {"", ":"}]
    named = [line.partition("<")[2].rstrip(">") or line for line in lines]  # "a title <page>"
    return [page.resolve() for name in named for page in sorted(HOME.parent.glob(f"{name}.md"))]


def test_every_page_is_in_one_toctree() -> None:
    pages = sorted(set(PAGES) - {HOME})
    pages += [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
    pages += [ROOT / "torch_distinput/plan/progress/README.md"]
    assert sorted(pages) == sorted(in_toctrees())


def test_cards_lead_to_pages() -> None:
    linked = re.findall(r"^:link: (.*)$", HOME.read_text(), re.MULTILINE)
    assert linked
    assert [] == [link for link in linked if not (HOME.parent / f"{link}.md").exists()]


def test_every_how_to_has_a_card_with_its_title() -> None:
    card = re.compile(r"^:::\{grid-item-card\} (.*)\n:link: ../how-to/(.*)$", re.MULTILINE)
    titles = {
        (page.read_text().partition("\n")[0].removeprefix("# "), page.stem)
        for page in (DOCS / "how-to").glob("*.md")
    }
    assert titles == set(card.findall(HOME.read_text()))


def test_the_site_is_made_of_the_packages_of_the_extra() -> None:
    text = (ROOT / "constraints-docs.txt").read_text()
    extra = re.search(r"^docs = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra
    assert re.findall(r'"([a-z-]+)"', extra[1]) == re.findall(r"^([a-z-]+)==", text, re.MULTILINE)
