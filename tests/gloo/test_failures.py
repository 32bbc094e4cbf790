"""What happens to a real rank reaches the others: an error in time that names it, a clean exit."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.gloo import failing_rank
from tests.gloo.failing_rank import LIMIT, TIMEOUT, work
from torch_distinput.testing import run_ranks_outcomes

PLAN = {
    "ranks": 2, "victim": 1, "number": 3, "place": "loop", "examples": 20_000, "loaders": 0,
    "timeout": TIMEOUT, "pace": 0.003,
}  # fmt: skip


class Starter:
    """Starts the ranks of one plan after another."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", failing_rank.__name__], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def exit_codes(self, plan):
        """Run the ranks of a plan to their ends; how the survivors have ended."""
        watchdog = threading.Timer(2 * LIMIT, self._process.kill)
        watchdog.start()
        try:
            print(json.dumps(plan), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        finally:
            watchdog.cancel()

    def close(self):
        """There are no more plans."""
        self._process.communicate(timeout=LIMIT)
        assert 0 == self._process.returncode


@pytest.fixture(scope="module")
def starter():
    made = Starter()
    yield made
    made.close()


@pytest.fixture
def play_processes(starter, tmp_path):
    """A function that runs the ranks of a plan to the end of their interpreters."""
    return partial(played_by, starter, tmp_path)


def played_by(starter, folder, **plan):
    """For each survivor: its words, its steps, the seconds since the fault, and its log."""
    plan = PLAN | {"store": str(folder / "store"), "mark": str(folder / "mark")} | plan
    codes = starter.exit_codes(plan | {"folder": str(folder)})
    survivors = [rank for rank in range(plan["ranks"]) if rank != plan["victim"]]
    out, err = ([(folder / f"{name}-{rank}").read_text() for rank in survivors]
                for name in ("out", "err"))  # fmt: skip
    assert [0] * len(survivors) == codes, (out, err)
    began = float((folder / "mark").read_text())
    return [
        (words, steps, at - began, log)
        for said, log in zip(out, err, strict=True)
        for words, steps, at in [json.loads(said)]
    ]


def play(folder, **plan):
    """Run the ranks in processes that are there already: the same, without a log."""
    plan = PLAN | {"mark": str(folder / "mark")} | plan
    outcomes = run_ranks_outcomes(partial(work, plan), plan["ranks"])
    began = float((folder / "mark").read_text())
    return [
        (words, steps, at - began, "")
        for rank, outcome in enumerate(outcomes)
        if rank != plan["victim"]
        for words, steps, at in [outcome.result]
    ]


def check(outcomes, *, coupled, names=("worker 1",), within=2 * TIMEOUT + 5):
    """Each ends in our error with all the names, or in that of its own collective."""
    for words, _, seconds, err in outcomes:
        ours = words.startswith(("PeerFailedError", "PeerTimeoutError"))
        assert ours or (coupled and words.startswith("RuntimeError")), (words, err)
        if ours:
            assert all(name in words for name in names), words
        assert seconds < within, words


streets = pytest.mark.parametrize(
    ("known", "coupled"), [(True, True), (True, False), (False, True), (False, False)]
)
some_streets = streets if LONG else pytest.mark.parametrize(
    ("known", "coupled"), [(True, False), (False, True)]
)  # fmt: skip


@streets
def test_a_source_that_raises(tmp_path, known, coupled):
    outcomes = play(tmp_path, kind="raise", place="source", known=known, coupled=coupled)
    check(outcomes, coupled=coupled, names=("worker 1", "ArithmeticError", "rotten record"))


@some_streets
def test_a_killed_rank(tmp_path, known, coupled):
    """Without votes and collectives nothing but the heart tells."""
    outcomes = play(tmp_path, kind="SIGKILL", known=known, coupled=coupled, ranks=3, number=300)
    check(outcomes, coupled=coupled)


@some_streets
def test_a_stopped_rank(play_processes, known, coupled):
    outcomes = play_processes(
        kind="SIGSTOP", known=known, coupled=coupled, number=300
    )
    check(outcomes, coupled=coupled, names=("worker 1", "of iteration 0", "last heard of"))


@pytest.mark.parametrize(
    ("kind", "known"),
    [*itertools.product(["SIGKILL", "SIGSTOP"], [True, False])]
    if LONG
    else [("SIGKILL", False), ("SIGSTOP", True)],
)
def test_the_rank_that_hosts_the_store(play_processes, kind, known):
    """Whoever waits for its answer is a thread; ``next`` says what happened."""
    outcomes = play_processes(
        kind=kind, known=known, coupled=False, number=300, victim=0, is_hosted=True
    )
    check(outcomes, coupled=False, names=())


def test_the_rank_that_hosts_the_store_is_stopped_between_epochs(play_processes):
    """Nobody stays inside a call of torch that waits for its answer."""
    outcomes = play_processes(
        kind="SIGSTOP", known=True, coupled=False, number=19, examples=80, victim=0,
        is_hosted=True,
    )  # fmt: skip
    check(outcomes, coupled=False, names=("the store of the process group",))


@some_streets
def test_a_source_that_hangs(play_processes, known, coupled):
    """With known lengths the others notice where they have to wait: at the next epoch."""
    outcomes = play_processes(
        kind="hang", place="source", known=known, coupled=coupled, examples=80
    )
    check(outcomes, coupled=coupled, names=("worker 1", "reading step"))


@some_streets
def test_a_slow_rank_is_waited_for(play_processes, known, coupled):
    """It is late but alive: the others say so, once, and go on."""
    plan = {"place": "source", "examples": 40, "pace": 0.0, "coupled": False}
    ((words, steps, _, err),) = play_processes(kind="slow", known=known, **plan)
    assert "completed" == words
    assert 20 == steps
    (warning,) = [line for line in err.splitlines() if line.startswith("log: ")]
    assert "late: worker 1: 3 steps delivered, reading step 3 of iteration 0" in warning


@pytest.mark.parametrize("loaders", [1, 2])
@some_streets
def test_a_killed_loader_process(tmp_path, known, coupled, loaders):
    """The rank that lost it fails, and the others with it."""
    outcomes = play(
        tmp_path, kind="SIGKILL", place="source", known=known, coupled=coupled,
        loaders=loaders, number=20,
    )  # fmt: skip
    check(outcomes, coupled=coupled, within=20)


@pytest.mark.parametrize("seed", range(50 if LONG else 3))
def test_random_kills(play_processes, seed):
    """Any rank, any step, any place, any kind of input."""
    choice = random.Random(seed)
    ranks = choice.choice([2, 3])
    coupled = choice.random() < 0.5
    victim = choice.randrange(ranks)
    outcomes = play_processes(
        kind="SIGKILL", known=choice.random() < 0.5, coupled=coupled, ranks=ranks,
        victim=victim, place=choice.choice(["source", "loop"]), number=choice.randrange(200),
        loaders=choice.choice([0, 0, 1]),
    )  # fmt: skip
    check(outcomes, coupled=coupled, names=(f"worker {victim}",), within=20)
