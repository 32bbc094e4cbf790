"""The script of the page does what the page says."""

from __future__ import annotations

from tests.docs.pages import ROOT
from tests.examples.scripts import run_by_torchrun

PAGE = (ROOT / "docs/accelerate.md").read_text()


def test_the_script_counts_every_example_once(tmp_path):
    lines = run_by_torchrun(tmp_path, 2, "train_accelerate.py", f"--folder={tmp_path / 'saved'}")
    assert "\n".join(lines[-2:]) in PAGE
    assert lines[-1].startswith("epoch 1: 1000 once")
