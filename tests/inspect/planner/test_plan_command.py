"""The command ``torch-distinput plan``, and that it imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from torch_distinput.inspect.command import main


@pytest.fixture
def pattern(tmp_path):
    """Three files of 700, 300 and 500 lines of two bytes."""
    for name, lines in zip("abc", (700, 300, 500), strict=True):
        (tmp_path / f"{name}.txt").write_text("x\n" * lines)
    return str(tmp_path / "*.txt")


@pytest.mark.slow
def test_a_plan_of_files_imports_no_torch(pattern, tmp_path):
    """Not for the page either; nor does the front door."""
    script = f"""
import sys, torch_distinput as tdi
from torch_distinput.inspect.command import main
size = "--workers 3 --global-batch-size 60 --bytes-per-example 2 --shuffle --html".split()
assert main(["plan", {pattern!r}, *size, {str(tmp_path / "plan.html")!r}]) == 0
tdi.plan_epoch([5, 6], num_workers=2, global_batch_size=3)
tdi.plan_epoch(100, num_workers=2, global_batch_size=tdi.Topology().num_workers)
assert not {{"torch", "pandas", "pyarrow"}} & {{*sys.modules}}
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert 0 == done.returncode, done.stderr
    assert "about 36" in done.stdout
    assert "<svg" in (tmp_path / "plan.html").read_text()


def test_the_numbers_are_there_as_json(pattern, capsys):
    size = ["--workers", "3", "--global-batch-size", "60", "--bytes-per-example", "2", "--json"]
    assert 0 == main(["plan", pattern, *size])
    found = json.loads(capsys.readouterr().out)
    assert (36, 21, 15) == tuple(
        found[name] for name in ("steps", "zero_row_steps", "first_zero_row_step")
    )
    assert {"least": 600, "most": 1400, "mean": 1000} == found["bytes"]
    assert not found["is_exact"]


def test_a_number_of_examples_is_no_path(capsys):
    assert 0 == main(["plan", "1_281_167", "--workers", "8", "--global-batch-size", "1024"])
    assert "1,252" in capsys.readouterr().out


def test_records_are_counted_where_the_format_tells(tmp_path, capsys):
    """In the run's own words and numbers: an array of 10 rows and one of 7."""
    for name, rows in (("a", 10), ("b", 7)):
        np.save(tmp_path / f"{name}.npy", np.zeros((rows, 2)))
    size = ["--workers", "2", "--global-batch-size", "4", "--count", "--json"]
    assert 0 == main(["plan", str(tmp_path / "*.npy"), *size])
    found = json.loads(capsys.readouterr().out)
    assert (17, True, 6) == (found["num_examples"], found["is_exact"], found["steps"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--workers 4 --global-batch-size 60", "has 3 for 4 workers"),
        ("--workers 0 --global-batch-size 60", "--workers must be at least 1, got 0"),
        ("--workers 2 --global-batch-size 60 --bytes-per-example 0", "a number above 0, got 0.0"),
    ],
)
def test_what_a_run_would_refuse_is_said_in_one_line(pattern, capsys, arguments, expected):
    assert 1 == main(["plan", pattern, *arguments.split()])
    error = capsys.readouterr().err
    assert expected in error
    assert 1 == error.count("\n")


@pytest.mark.parametrize(
    ("arguments", "advised"),
    [
        ("--workers 4", ["Pass --policy data, under", "or pass --split-files."]),
        ("--workers 1 --seed -1", ["--seed must be at least 0"]),
        ("--workers 1 --bytes-per-example -1", ["--bytes-per-example must be a number"]),
        ("--workers 1", ["pass --bytes-per-example for an estimate, or --count where"]),
        ("--workers 1 --replicas-per-worker 50", ["--rebatch even gives some to all"]),
    ],
)
def test_what_is_advised_are_options_of_the_command(pattern, capsys, arguments, advised):
    """Not arguments of the function."""
    main(["plan", pattern, "--global-batch-size", "60", *arguments.split()])
    said = "".join(capsys.readouterr())
    assert all(words in said for words in advised), said
    for word in ("InputOptions", "=True", "bytes_per_example", '="'):
        assert word not in said


@pytest.mark.parametrize(
    ("arguments", "advised"),
    [
        ("--count", "expects --count with paths only, got it beside"),
        ("--policy file", "--policy file needs a source with files or shards"),
    ],
)
def test_what_a_number_of_examples_has_not_is_said_in_options(capsys, arguments, advised):
    command = ["plan", "5", "--workers", "1", "--global-batch-size", "1", *arguments.split()]
    assert 1 == main(command)
    assert advised in capsys.readouterr().err


def test_one_of_a_thing_is_not_many(capsys):
    assert 0 == main(["plan", "7", "--workers", "1", "--global-batch-size", "6", "--drop-last"])
    said = capsys.readouterr().out
    assert said.startswith("7 examples on 1 worker, global batch 6")
    assert "1 example of partial batches" in said


def test_a_file_that_cannot_be_counted_is_named_in_one_line(tmp_path, capsys):
    (tmp_path / "a.npy").write_bytes(b"no array")
    size = ["--workers", "1", "--global-batch-size", "6", "--count"]
    assert 1 == main(["plan", str(tmp_path / "*.npy"), *size])
    error = capsys.readouterr().err
    assert "a.npy" in error
    assert 1 == error.count("\n")


def test_a_path_that_is_not_there_is_said_in_one_line(tmp_path, capsys):
    arguments = [str(tmp_path / "*.csv"), *["--workers", "2", "--global-batch-size", "60"]]
    assert 1 == main(["plan", *arguments])
    assert "No file matches" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(tmp_path, capsys):
    """The plan is printed all the same."""
    size = ["--workers", "2", "--global-batch-size", "4", "--html", f"{tmp_path}/none/plan.html"]
    assert main(["plan", "100", *size]) == 1
    shown = capsys.readouterr()
    assert "100 examples" in shown.out
    assert "none/plan.html" in shown.err
