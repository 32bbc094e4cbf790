"""The script of the page does what the page says."""

from __future__ import annotations

from tests.docs.pages import ROOT
from tests.examples.scripts import run_by_torchrun

PAGE = (ROOT / "docs/transformers.md").read_text()


def test_the_script_trains_goes_on_and_evaluates(tmp_path):
    lines = run_by_torchrun(tmp_path, 2, "train_transformers.py", f"--folder={tmp_path / 'saved'}")
    first = lines.index("10 updates, 2 epochs")  # rank 0's; what rank 1 says comes behind
    assert "\n".join(lines[first : first + 2]) in PAGE
