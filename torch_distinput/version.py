"""The version of the package: ``torch_distinput.__version__`` asks for it when it is needed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

_PROJECT = re.compile('^name = "torch_distinput"\nversion = "(.*)"$', re.MULTILINE)


def find_version() -> str:
    """Return the version of the checkout that this file is in, else of the installed package."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    # A checkout comes first: the package that is installed beside it may be an older one.
    named = _PROJECT.search(project.read_text(encoding="utf-8")) if project.is_file() else None
    return named[1] if named else metadata.version("torch_distinput")
