"""The README's first table is what the real libraries do."""

from __future__ import annotations

import sys

from tests.commands import output_of
from tests.docs.pages import ROOT


def test_the_table_of_the_readme_is_what_the_script_prints():
    """Accelerate, Lightning and torchdata on 3 ranks, and on 2."""
    lines = (ROOT / "README.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    shown = lines[first : lines.index("", first)]
    script = ROOT / "benchmarks" / "exactness.py"
    assert shown == output_of([sys.executable, script]).splitlines()
