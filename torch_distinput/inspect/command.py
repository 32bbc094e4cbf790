"""The command line: one subcommand a question, each in a module that is imported when asked for."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

_SUBCOMMANDS: dict[str, tuple[str, str]] = {}
"""Name: the module, and what the list of subcommands says of it.

A module has ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="torch-distinput", description="Shows what the input of a training run does."
    )
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    given = list(argv) if argv is not None else None
    modules = {}
    for name, (module, summary) in _SUBCOMMANDS.items():
        modules[name] = importlib.import_module(module)
        modules[name].add_arguments(subparsers.add_parser(name, help=summary))
    arguments = parser.parse_args(given)
    return int(modules[arguments.subcommand].run(arguments))
