"""docs/api.md lists what is public now; ``docs/make_api.py`` writes it."""

from __future__ import annotations

import runpy

from tests.docs.pages import ROOT

MAKE_API = runpy.run_path(str(ROOT / "docs" / "make_api.py"))


def test_the_page_of_public_names_is_up_to_date() -> None:
    current = (ROOT / "docs" / "api.md").read_text() == MAKE_API["page"]()
    assert current, "docs/api.md is out of date. Run: .venv/bin/python docs/make_api.py"
