"""Layers adapted by real ranks: the same bits for any number of them, in memory and in a folder."""

from __future__ import annotations

import hashlib
import os
import runpy
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import torch_distinput as tdi
from tests.preprocessing.table import as_json_lines, make_features, make_table
from tests.torchrun import run_script
from torch_distinput import preprocessing as pp
from torch_distinput.testing import RankError, run_ranks, run_ranks_outcomes

ROWS = 61
TABLE = make_table(ROWS)

RECIPE = """
import torch_distinput as tdi
from tests.preprocessing.table import make_features as features

dataset = tdi.FileDataset({pattern!r}, reader="jsonl")
"""


def digest(folder: Path) -> str:
    """One SHA-256 over names and contents."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for number, start in enumerate(range(0, ROWS, 10)):
        (folder / f"{number}.jsonl").write_text(as_json_lines(TABLE, start, min(start + 10, ROWS)))
    return folder


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The folder that one process writes."""
    out = tmp_path_factory.mktemp("expected") / "out"
    pp.analyze(make_features(), tdi.FileDataset(f"{data}/*", reader="jsonl"), str(out))
    return out


def deal(strategy):
    """Send each rank something else, of unequal sizes."""
    own = strategy.worker_index
    values = [(own, other, b"x" * 1000 * own * other) for other in range(strategy.num_workers)]
    return strategy._session.communicator.deal_objects(values)


@pytest.mark.slow
def test_each_rank_gets_what_all_have_for_it():
    found = run_ranks(deal, 3)
    assert [
        [(sender, own, b"x" * 1000 * own * sender) for sender in range(3)] for own in range(3)
    ] == found


def adapted(strategy, *, batch_size):
    """The fingerprint after adapt over columns."""
    features = make_features()
    features.adapt(TABLE, strategy=strategy, batch_size=batch_size)
    return features.fingerprint()


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_state_does_not_depend_on_the_ranks(num_ranks, replicas, expected):
    run = partial(adapted, batch_size=7 * num_ranks)
    found = run_ranks(run, num_ranks, replicas_per_worker=replicas)
    assert {pp.load(str(expected)).fingerprint()} == set(found)


def analyzed(strategy, *, data, out, cache):
    """Write the folder."""
    dataset = tdi.FileDataset(f"{data}/*", reader="jsonl")
    pp.analyze(make_features(), dataset, out, cache=cache, strategy=strategy)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_folder_has_the_same_bytes(num_ranks, data, expected, tmp_path):
    out, cache = tmp_path / "out", str(tmp_path / "cache")
    run_ranks(partial(analyzed, data=data, out=str(out), cache=cache), num_ranks)
    assert digest(expected) == digest(out)


def burnt(row):
    """Kill this rank after some rows; 0 is never.

    They are counted where nobody looks who asks whether this is still the same function.
    """
    rows = int(os.environ["TDI_ROWS_LEFT"])
    if rows == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ["TDI_ROWS_LEFT"] = str(rows - 1)
    return row


def killed(strategy, *, data, out, cache, rows):
    """Lose rank 1 in the middle of its files."""
    os.environ["TDI_ROWS_LEFT"] = str(rows if strategy.worker_index == 1 else 0)
    dataset = tdi.FileDataset(f"{data}/*", reader="jsonl").map(burnt)
    pp.analyze(make_features(), dataset, out, cache=cache, strategy=strategy)
    return sorted(path.name for path in Path(cache).iterdir())


@pytest.mark.slow
def test_a_killed_rank_leaves_what_was_counted(data, expected, tmp_path):
    """Whatever was kept is whole, and nothing is in the folder; the next run goes on."""
    out, cache = tmp_path / "out", str(tmp_path / "cache")
    run = partial(killed, data=data, out=str(out), cache=cache)
    outcomes = run_ranks_outcomes(partial(run, rows=15), 2)
    assert outcomes[1].error is not None
    assert not out.exists()
    kept = {path.name: path.stat().st_mtime_ns for path in Path(cache).iterdir()}
    assert 0 < len(kept) < 7
    assert 7 == len(run_ranks(partial(run, rows=0), 3)[0])
    assert all(kept[name] == (Path(cache) / name).stat().st_mtime_ns for name in kept)
    assert digest(expected) == digest(out)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_command_writes_the_same(num_ranks, data, expected, tmp_path, monkeypatch, capsys):
    """By torchrun, and alone in this process."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(pattern=f"{data}/*"))
    out, name = tmp_path / "out", "torch_distinput.preprocessing"
    arguments = [str(recipe), str(out), "--cache", str(tmp_path / "cache")]
    if num_ranks > 1:
        logs = tmp_path / "logs"
        logs.mkdir()
        ended = run_script(logs, num_ranks, name, *arguments)
        assert ended.is_well, ended.err
        said = ended.out
    else:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        # Another test of this process may have imported it; runpy would warn of that.
        monkeypatch.delitem(sys.modules, f"{name}.__main__", raising=False)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        said = capsys.readouterr().out
    assert f"{out}: fingerprint {pp.load(str(expected)).fingerprint()}" in said
    assert digest(expected) == digest(out)


def scoped(strategy, *, replicate):
    """Make a layer that differs on rank 1."""
    with strategy.scope(replicate=replicate):
        layer = pp.StringLookup()
        layer.adapt([f"token {strategy.worker_index}"])
    return layer.get_vocabulary()


@pytest.mark.slow
def test_a_scope_compares_ranks():
    with pytest.raises(RankError, match="worker 1 differs from worker 0 in layer 0"):
        run_ranks(partial(scoped, replicate=False), 2)


@pytest.mark.slow
def test_a_scope_replicates_rank_0():
    assert [["[UNK]", "token 0"]] * 3 == run_ranks(partial(scoped, replicate=True), 3)


def unequal(strategy):
    """One rank cannot read its rows."""
    features = pp.Features(size=pp.Normalization())
    data = {"size": np.float32([1, 2, 3]) if strategy.worker_index else np.array(["a"] * 3)}
    features.adapt(data, strategy=strategy)


@pytest.mark.slow
def test_a_rank_that_fails_is_an_error_on_all():
    outcomes = run_ranks_outcomes(unequal, 2)
    assert all(outcome.error is not None for outcome in outcomes)
