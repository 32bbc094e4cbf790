"""The command line: one subcommand a question, each in a module that is imported when asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

_SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "doctor": (
        "torch_distinput.inspect.doctor.command:add_doctor_arguments",
        "run a script for some steps, and say what its DataLoaders do",
    ),
    "plan": (
        "torch_distinput.inspect.planner.plan_command:add_plan_arguments",
        "what an epoch will be on a number of workers: steps, rows, bytes, requests",
    ),
}
"""Name: a function, and what the list of subcommands says of it.

The function adds arguments to a parser, and sets its default ``run`` to a function of the parsed
arguments that returns the exit status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the arguments name, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="torch-distinput", description="Shows what the input of a training run does."
    )
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    given = list(sys.argv[1:] if argv is None else argv)
    for name, (function, summary) in _SUBCOMMANDS.items():
        own = subparsers.add_parser(name, help=summary)
        if name in given[:1]:  # nobody waits for the imports of the others
            module, _, add_arguments = function.partition(":")
            getattr(importlib.import_module(module), add_arguments)(own)
    arguments = parser.parse_args(given)
    return int(arguments.run(arguments))
