"""The tutorial runs as a script, and prints the tables of the original."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial.py"

TABLES = {
    "range(6), G=4, N=2": "step 0: [0, 1] | [2, 3]\n    step 1: [4] | [5]\n",
    "range(4), G=4, N=5": "step 0: [0] | [1] | [2] | [3] | []\n",
    "range(8), G=4, N=3": "step 0: [0, 1] | [2, 3] | []\n    step 1: [4, 5] | [6, 7] | []\n",
    "FILE": """
    worker 0: [0, 1]  [2, 3]  [4]  [5]
    worker 1: [6, 7]  [8, 9]  [10]  [11]
""",
    "DATA": """
    worker 0: [0, 1]  [4, 5]  [8, 9]
    worker 1: [2, 3]  [6, 7]  [10, 11]
""",
    "OFF": """
    worker 0: [0, 1]  [2, 3]  [4, 5]  [6, 7]  [8, 9]  [10, 11]
    worker 1: [0, 1]  [2, 3]  [4, 5]  [6, 7]  [8, 9]  [10, 11]
""",
    "TPU": """; what two of them would get:
    worker 0: [1, 3] [True, True]  [4, 4] [True, False]
    worker 1: [0, 2] [True, True]  [0, 0] [False, False]
""",
    "get_next_as_optional": "step 2: [8] | []\n",
    "parameter servers": "40 steps, 320 examples, of whichever worker was free\n",
}


@pytest.fixture(scope="module")
def printed() -> str:
    """Run the script once, in this process: its asserts are part of the test."""
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        runpy.run_path(str(TUTORIAL), run_name="__main__")
    return stdout.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_the_tutorial_prints_the_tables_of_the_original(printed: str, table: str) -> None:
    assert table in printed
