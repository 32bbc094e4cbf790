"""docs/cli.md has every subcommand of ``torch-distinput`` and every option of each."""

from __future__ import annotations

import argparse
import importlib

from tests.docs.pages import DOCS, headings
from torch_distinput.inspect import command


def options_of(subcommand: str) -> set[str]:
    module, _, name = command._SUBCOMMANDS[subcommand][0].partition(":")
    parser = argparse.ArgumentParser(add_help=False)
    getattr(importlib.import_module(module), name)(parser)
    return {text for action in parser._actions for text in action.option_strings}


def test_the_page_has_every_subcommand() -> None:
    assert {"doctor", "plan"} <= set(command._SUBCOMMANDS)
    assert set() == set(command._SUBCOMMANDS) - headings(DOCS / "cli.md")


def test_the_page_has_every_option() -> None:
    page = (DOCS / "cli.md").read_text()

    assert "--workers" in options_of("plan")
    missing = {
        (subcommand, option)
        for subcommand in command._SUBCOMMANDS
        for option in options_of(subcommand)
        if f"`{option}" not in page
    }
    assert set() == missing
