"""Tests of a framework that is not installed are skipped; in `make test-integrations` they fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "integrations" / "conftest.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("required", "ended"),
    [("0", (pytest.ExitCode.NO_TESTS_COLLECTED, "1 skipped")),
     ("1", (pytest.ExitCode.INTERRUPTED, "1 error"))],
)  # fmt: skip
def test_a_framework_that_is_not_installed(tmp_path, required, ended):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_nowhere_at_all.py").write_text("import nowhere\n\ndef test_it(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "."],
        cwd=tmp_path,
        env={**os.environ, "TDI_TEST_INTEGRATIONS": required},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "needs nowhere: not installed" in done.stdout
    assert ended == (done.returncode, re.search(r"1 \w+(?= in)", done.stdout)[0])
