"""The report that the page shows is the one that its script gets, but for times."""

from __future__ import annotations

import re
import sys

from tests.docs.pages import FENCED, ROOT, blocks_of
from torch_distinput.inspect.command import main


def without_times(report: str) -> str:
    """On one line, because longer times wrap elsewhere; which rank waits longest is chance."""
    joined = " ".join(report.split())
    return re.sub(r"Rank \d|[\d.]+ (s|ms|us)\b|\d+%", "_", joined)


def test_the_report_of_the_page_is_that_of_its_script(tmp_path, monkeypatch, capsys) -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    (script,) = (block for block in blocks_of(page) if block.file_name == "train.py")
    (shown,) = (text for _, text in FENCED.findall(page) if text.startswith("torch-distinput doc"))
    (tmp_path / "train.py").write_text(script.code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    options = ["--steps", "20", "--records", str(tmp_path / "records")]
    # One after the other: rank 1 waits for no report, and rank 0 finds its record.
    for rank, more in ((1, ["--patience", "0.01"]), (0, [])):
        monkeypatch.setenv("RANK", str(rank))
        assert 0 == main(["doctor", *options, *more, str(tmp_path / "train.py")])
    assert without_times(shown) == without_times(capsys.readouterr().out)
