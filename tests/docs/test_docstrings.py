"""The examples in docstrings run, and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import torch_distinput


def modules() -> list[str]:
    """All of the package but integrations, whose libraries may be missing here."""
    found = pkgutil.walk_packages(torch_distinput.__path__, "torch_distinput.")
    names = [module.name for module in found if ".integrations." not in module.name]
    return ["torch_distinput", *names]


def test_the_examples_in_docstrings_run() -> None:
    """A docstring without examples is not run: each run looks at all files of source ever read."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for name in modules():
        for found in finder.find(importlib.import_module(name)):
            if found.examples:
                runner.run(found)
    assert runner.failures == 0
    assert runner.tries > 0
