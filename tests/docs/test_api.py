"""docs/api.md and its kin say what is public now; ``docs/make_api.py`` writes them."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import inspect
import re
import runpy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch_distinput
from tests.docs.pages import ROOT, headings

MAKE_API = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
PAGES = MAKE_API["pages"]()
LONGEST = 2_500
"""Lines that a reader still finds his way in."""


@cache
def public() -> dict[str, Any]:
    """Every public name but the modules, with its value."""
    return {
        f"{name}.{own}": value
        for name, module in MAKE_API["modules"]()
        for own, value in MAKE_API["public_names"](module).items()
        if not MAKE_API["is_module"](value)
    }


def described() -> Iterator[tuple[str, Any, dict[str, list[str]]]]:
    """Every public name and method, with the names that each section of its docstring lists."""
    found = dict(public())
    for name, kind in public().items():
        if isinstance(kind, type) and not MAKE_API["is_error"](kind):
            found |= {f"{name}.{own}": getattr(kind, own) for own in MAKE_API["members_of"](kind)}
    for name, value in found.items():
        if isinstance(value, (int, str)) and not isinstance(value, enum.Enum):
            continue
        parts = MAKE_API["sections"](value)
        listed = {
            heading: [one for names in MAKE_API["items"](text) for one in names.split(", ")]
            for heading, text in parts.items()
        }
        yield name, value, listed


def parameters(value: Any) -> list[str]:
    """The parameters that a caller passes."""
    return [name for name in inspect.signature(value).parameters if name != "self"]


def test_the_pages_of_public_names_are_up_to_date() -> None:
    current = {file: (ROOT / "docs" / file).read_text() for file in PAGES}
    assert current == PAGES, "They are out of date. Run: .venv/bin/python docs/make_api.py"


def test_no_page_of_public_names_is_too_long() -> None:
    assert not [file for file, text in PAGES.items() if text.count("\n") > LONGEST]


def test_every_public_name_has_an_entry() -> None:
    found = set().union(*(headings(ROOT / "docs" / file, "###") for file in PAGES))
    errors = {name for name, value in public().items() if MAKE_API["is_error"](value)}
    assert errors
    missing = [name for name in public() if name.replace(".", "").lower() not in found]
    assert sorted(errors) == sorted(missing)
    text = "".join(PAGES.values())
    assert not [name for name in errors if f"- `{name.rpartition('.')[2]}`: " not in text]


def test_every_section_is_read_to_its_end() -> None:
    """What is listed and what is not read as an item would be left out of the page."""
    lists = ("Args", "Attributes", "Raises")
    lost = {}
    for name, value, listed in described():
        parts = MAKE_API["sections"](value)
        for heading in (one for one in lists if one in listed):
            first = [line for line in parts[heading].splitlines() if line[:1].strip()]
            if len(first) != len(MAKE_API["items"](parts[heading])):
                lost[name] = first
    assert {} == lost


def test_no_docstring_has_a_section_of_another_name() -> None:
    """It would be prose on the page, all in one paragraph."""
    named = {
        name: re.findall(r"^[A-Z]\w+:$", MAKE_API["prose"](value), re.MULTILINE)
        for name, value, _ in described()
    }
    assert {} == {name: found for name, found in named.items() if found}


def test_every_argument_of_a_docstring_is_a_parameter_and_the_reverse() -> None:
    listed = {name: (value, found["Args"]) for name, value, found in described() if "Args" in found}
    assert len(listed) > 50
    differ = {
        name: sorted(set(parameters(value)) ^ {one.lstrip("*") for one in args})
        for name, (value, args) in listed.items()
    }
    assert {} == {name: names for name, names in differ.items() if names}


def test_every_attribute_of_a_docstring_is_a_field_and_the_reverse() -> None:
    listed = {
        name: (value, found["Attributes"])
        for name, value, found in described()
        if dataclasses.is_dataclass(value) and "Attributes" in found
    }
    assert len(listed) > 20
    differ = {
        name: sorted({one.name for one in dataclasses.fields(value)} ^ set(attributes))
        for name, (value, attributes) in listed.items()
    }
    shown = {name: [one for one in names if one[0] != "_"] for name, names in differ.items()}
    assert {} == {name: names for name, names in shown.items() if names}


def test_every_error_of_a_docstring_exists() -> None:
    named = {(name, error) for name, _, found in described() for error in found.get("Raises", ())}
    assert named
    places = (torch_distinput, torch_distinput.testing, builtins)
    lost = {one for one in named if not any(hasattr(place, one[1]) for place in places)}
    assert set() == lost
