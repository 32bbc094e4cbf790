"""Errors name the section that explains them: it exists, and no section is named by none."""

from __future__ import annotations

import re
import sys
import traceback

import pytest

import torch_distinput as tdi
from tests.docs.pages import ROOT, headings
from torch_distinput.errors import refer

SECTION = re.compile(r'"docs/([a-z-]+\.md)#([a-z-]+)"')


def named_sections() -> set[tuple[str, str]]:
    """All sections that strings of the package name: only errors do."""
    files = (ROOT / "torch_distinput").rglob("*.py")
    return {found for file in files for found in SECTION.findall(file.read_text())}


def test_the_sections_that_errors_name_exist() -> None:
    named = named_sections()

    assert ("errors.md", "the-ranks-differ") in named
    assert [] == [
        (page, name) for page, name in sorted(named) if name not in headings(ROOT / "docs" / page)
    ]


def test_each_section_about_errors_is_named_by_one() -> None:
    explained = {name for page, name in named_sections() if page == "errors.md"}

    assert headings(ROOT / "docs" / "errors.md", "##+") == explained


def test_an_error_on_other_pages_is_explained_there() -> None:
    assert tdi.AuditError.explained_in == "docs/checkpoints.md#auditing-an-epoch"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 prints no notes")
class TestTheNote:
    def test_ends_the_traceback(self) -> None:
        lines = traceback.format_exception_only(tdi.MismatchError("Expected one seed, got two."))

        assert lines[-1] == "See docs/errors.md#the-ranks-differ\n"

    def test_is_no_part_of_the_message(self) -> None:
        """Others quote it, and it would end in the middle of theirs."""
        assert str(tdi.MismatchError("Expected one seed.")) == "Expected one seed."

    def test_of_a_single_error_takes_the_place_of_that_of_its_class(self) -> None:
        error = refer(tdi.MismatchError("Expected one seed."), "docs/errors.md#forks")

        assert traceback.format_exception_only(error)[1:] == ["See docs/errors.md#forks\n"]
