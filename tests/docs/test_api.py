"""docs/api.md lists what is public now; ``docs/make_api.py`` writes it."""

from __future__ import annotations

import runpy

import torch_distinput
from tests.docs.pages import ROOT

MAKE_API = runpy.run_path(str(ROOT / "docs" / "make_api.py"))


def test_the_page_of_public_names_is_up_to_date() -> None:
    current = (ROOT / "docs" / "api.md").read_text() == MAKE_API["page"]()
    assert current, "docs/api.md is out of date. Run: .venv/bin/python docs/make_api.py"


def test_what_is_left_out_is_there() -> None:
    """A method that was renamed or removed goes from the list in ``make_api.py`` too."""
    names = [name.split(".") for name in MAKE_API["INTERNAL"]]
    gone = [name for name in names if not hasattr(getattr(torch_distinput, name[0]), name[1])]
    assert not gone, f"Remove from INTERNAL in docs/make_api.py: {gone}"
