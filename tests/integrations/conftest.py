"""The rule by which tests of a framework run, and the end of pipelines that tests leave half-way.

A framework that is not installed: its tests are skipped, but for `make test-integrations`, where
that is an error. So a file of this folder imports its framework at the top, as if it were there.
"""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = {
    "comparison": ["accelerate", "lightning"],
    "doctor": ["accelerate", "lightning"],
    "published": ["packaging"],
    "ray": ["ray", "pyarrow"],
    "transformers": ["transformers", "accelerate"],
    "versions": [],
}
"""What test_<product>.py, test_<product>_<subject>.py and a folder <product> need, if more than
the package of that name."""
WITH_FRAMEWORKS = os.environ.get("TDI_TEST_INTEGRATIONS") == "1"


class NotImported(pytest.Module):
    """A file of tests whose framework is missing."""

    missing: list[str]

    def collect(self):
        message = f"needs {', '.join(self.missing)}: not installed"
        if WITH_FRAMEWORKS:
            raise self.CollectError(message)
        pytest.skip(message, allow_module_level=True)


def packages_of(path: Path) -> list[str]:
    """The packages that a file of tests needs, by its name."""
    name = path.relative_to(Path(__file__).parent).parts[0]
    product = name.removesuffix(".py").removeprefix("test_").partition("_")[0]
    return PACKAGES.get(product, [product])


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    missing = [name for name in packages_of(module_path) if find_spec(name) is None]
    if not missing:
        return None  # as everywhere
    module = NotImported.from_parent(parent, path=module_path)
    module.missing = missing
    return module


@pytest.fixture(autouse=True)
def collected():
    """A loader and its iterator refer to each other: threads of nodes end when both are collected.

    In the thread of a node itself that would be an error, since it would wait for itself.
    """
    yield
    gc.collect()
