"""The script of the page on Lightning, as its users run it."""

from __future__ import annotations

import sys

from tests.commands import output_of
from tests.docs.pages import ROOT
from tests.examples.scripts import EXAMPLES

SCRIPT = str(EXAMPLES / "train_lightning.py")
PAGE = (ROOT / "docs" / "lightning.md").read_text()


def test_it_goes_on_on_one_rank_after_two(tmp_path):
    """Every example is trained once an epoch, and the page shows what it prints."""
    folder = f"--folder={tmp_path}"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    first = [sys.executable, *torchrun, SCRIPT, "--stop-after=12", folder]
    second = [sys.executable, SCRIPT, "--resume", "--global-batch-size=100", folder]
    printed = [output_of(command) for command in (first, second)]
    assert "2 rank(s), up to step 12\nepoch 0: 384 examples once, 616 to come" in printed[0]
    assert "1000 examples once, 0 to come, 0 repeated" in printed[1]
    for lines in printed:
        said = [line for line in lines.splitlines() if "rank(s)" in line or "examples" in line]
        assert "\n".join(said) in PAGE


def test_the_page_shows_the_script():
    """Its blocks are lines of the script, or of tests."""
    script = (EXAMPLES / "train_lightning.py").read_text()
    blocks = [block.partition("```")[0] for block in PAGE.split("```py\n# from the example\n")[1:]]
    assert blocks
    for block in blocks:
        assert block in script


def test_the_loaders_of_your_own(tmp_path):
    """The page's script trains, validates with two loaders, and predicts in order."""
    script = tmp_path / "own_loaders.py"
    script.write_text(PAGE.partition("# own_loaders.py\n")[2].partition("```")[0])
    start = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path({str(script)!r})"
    printed = output_of([sys.executable, "-W", "ignore", "-c", start])
    assert "['loss/dataloader_idx_0', 'loss/dataloader_idx_1']" in printed
    assert "200 predictions" in printed
