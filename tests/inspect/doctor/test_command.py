"""``torch-distinput doctor``: what it prints, and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.inspect.doctor.scripts import DIVIDED
from torch_distinput.inspect.command import main
from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.report import write_report


@pytest.fixture(autouse=True)
def own_process(monkeypatch) -> None:
    """The command is a process of its own otherwise."""
    monkeypatch.setattr(sys, "argv", ["torch-distinput"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def run(folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()) -> int:
    file = folder / "train.py"
    file.write_text(script)
    return main(["doctor", *options, str(file), *arguments])


def test_a_script_runs_to_its_end_and_is_reported(tmp_path, capsys) -> None:
    assert 0 == run(tmp_path, DIVIDED, "3")
    printed = capsys.readouterr().out
    assert "the end of __main__" in printed
    assert "The script ran to the end." in printed
    assert "train.py:11: DataLoader over TensorDataset of 9 examples, batches of 2" in printed
    assert "1. same order in each epoch: 3 epochs have begun with the same 9" in printed


def test_a_script_is_stopped_after_so_many_steps(tmp_path, capsys) -> None:
    assert 0 == run(tmp_path, DIVIDED, "3", options=("--steps", "4"))
    printed = capsys.readouterr().out
    assert "the end" not in printed
    assert "The script stopped after 4 steps, as asked." in printed
    assert "Seen: 4 steps in 1 epoch, 8 rows in all." in printed
    assert "set_epoch is called: only one epoch was begun. --steps 6 comes to a second." in printed


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [
        ("raise KeyError('k')", 1, "raised KeyError: 'k'"),
        ("import sys; sys.exit(3)", 3, "exited with status 3"),
        ("raise SystemExit('no')", 1, "exited: no"),
        ("raise SystemExit([3])", 1, "exited: [3]"),
        ("raise SystemExit", 0, "exited with status 0"),
        ("raise KeyboardInterrupt", 130, "raised KeyboardInterrupt"),  # as a shell sees Ctrl-C
    ],
)
def test_however_a_script_ends_its_loaders_are_reported(
    end, status, outcome, tmp_path, capsys
) -> None:
    assert status == run(tmp_path, f"{DIVIDED}\n{end}", "1")
    printed = capsys.readouterr().out
    assert f"The script {outcome}." in printed
    assert "Seen: 5 steps in 1 epoch, 9 rows in all." in printed


def test_a_script_that_hides_its_end_is_stopped_all_the_same(tmp_path, capsys) -> None:
    indented = DIVIDED.replace("\n", "\n    ")
    script = f"try:{indented}\nexcept BaseException as error:\n    raise ValueError from error"
    assert 0 == run(tmp_path, script, "3", options=("--steps", "4"))
    assert "The script stopped after 4 steps, as asked." in capsys.readouterr().out


def test_a_module_is_run_as_one(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "trained_module.py").write_text(DIVIDED)
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["doctor", "-m", "trained_module", "1"])
    assert "trained_module.py:11: DataLoader" in capsys.readouterr().out


def test_a_script_without_loaders_says_so(tmp_path, capsys) -> None:
    assert 0 == run(tmp_path, "print(1)")
    assert "No DataLoader of the script's own delivered a batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "0"), "expected a number of steps, 1 or more, got '0'; leave it out for 50"),
        (("--steps", "two"), "expected a number of steps, 1 or more, got 'two'"),
        (("--patience", "0"), "expected seconds, more than 0, got '0'; leave it out for 60"),
        (("--patience", "nan"), "expected seconds, more than 0, got 'nan'"),
        (("--records", __file__), "expected a folder, or a path where one can be made, got '/"),
        (("--patience", "long"), "expected seconds, more than 0, got 'long'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, DIVIDED, "1", options=options)
    assert message in capsys.readouterr().err


def record(rank: int, outcome: str = "ran to the end") -> RankRecord:
    return RankRecord(rank=rank, num_ranks=5, outcome=outcome, was_stopped=False, loaders=())


def test_ranks_that_end_alike_share_a_line_and_missing_ones_are_named() -> None:
    printed = write_report([record(0, "raised E"), record(1), record(2), record(3)])
    assert "Rank 0: raised E.\nRanks 1 to 3: ran to the end.\nRank 4: left no record" in printed
