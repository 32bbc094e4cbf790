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
    results = [doctest.testmod(importlib.import_module(name)) for name in modules()]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 0
