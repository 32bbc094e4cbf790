"""The tests of plan are as pure as plan: a file for each module, and nothing but integers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = sorted((HERE.parents[1] / "torch_distinput" / "plan").glob("*/*.py"))
TESTS = sorted(HERE.glob("*.py"))


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.stem != "__init__"], ids=lambda m: m.stem
)
def test_every_module_has_a_test_file(module):
    assert (HERE / f"test_{module.stem}.py").exists()


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.stem)
def test_no_test_sees_threads_or_tensors(test):
    """Nor any part of the package but plan and the ground floor; and it is of a size to read."""
    for node in ast.walk(ast.parse(test.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            assert not name.startswith(("threading", "torch.")), name
            assert name != "torch", name
            if name.startswith("torch_distinput"):
                assert name.split(".")[1] in {"errors", "options", "plan"}, name
    assert len(test.read_text().splitlines()) <= 350
