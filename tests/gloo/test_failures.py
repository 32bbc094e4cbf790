"""What happens to a real rank reaches the others: an error in time that names it, a clean exit."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.gloo import failing_rank
from tests.gloo.failing_rank import LIMIT, TIMEOUT, work
from torch_distinput.testing import run_ranks_outcomes

PLAN = {
    "ranks": 2, "victim": 1, "number": 3, "place": "loop", "examples": 20_000, "loaders": 0,
    "timeout": LIMIT, "pace": 0.003, "leaves": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    """The plans of all tests that were chosen, on their way; and the folder of each."""
    items = [item for item in request.session.items if item.path == request.path]
    plans = {i.name: i.callspec.params["plan"] for i in items if "plan" in i.fixturenames}
    with subprocess.Popen(
        [sys.executable, "-m", failing_rank.__name__], text=True,
        stdin=subprocess.PIPE, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        folders = {}
        for name, plan in plans.items():
            folders[name] = folder = tmp_path_factory.mktemp("plan")
            paths = {key: str(folder / key) for key in ("store", "mark")}
            print(json.dumps(PLAN | paths | plan | {"folder": str(folder)}), file=process.stdin)
        process.stdin.close()
        yield folders
        assert 0 == process.wait(2 * LIMIT)


@pytest.fixture
def outcomes(request, jobs, plan):
    """For each survivor: its words, its steps, the seconds since the fault, and its log."""
    folder, plan = jobs[request.node.name], PLAN | plan
    deadline = time.monotonic() + 2 * LIMIT
    while not (folder / "codes").exists():
        assert time.monotonic() < deadline, "the plan has not come to its end"
        time.sleep(0.01)
    survivors = [rank for rank in range(plan["ranks"]) if rank != plan["victim"]]
    out, err = ([(folder / f"{name}-{rank}").read_text() for rank in survivors]
                for name in ("out", "err"))  # fmt: skip
    assert [0] * len(survivors) == json.loads((folder / "codes").read_text()), (out, err)
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


def check(outcomes, *, coupled, names=("worker 1",)):
    """Each ends in our error with all the names, or in that of its own collective.

    In time: soon after the timeout on idle cores, and before its watchdog on busy ones, which is
    the timeout where nobody is to wait for it.
    """
    for words, _, seconds, err in outcomes:
        ours = words.startswith(("PeerFailedError", "PeerTimeoutError"))
        assert ours or (coupled and words.startswith("RuntimeError")), (words, err)
        if ours:
            assert all(name in words for name in names), words
        assert seconds < LIMIT - 10, words


STREETS = [(True, True), (True, False), (False, True), (False, False)]
SOME_STREETS = STREETS if LONG else STREETS[1:3]
streets = pytest.mark.parametrize(("known", "coupled"), STREETS)
some_streets = pytest.mark.parametrize(("known", "coupled"), SOME_STREETS)


@streets
def test_a_source_that_raises(tmp_path, known, coupled):
    outcomes = play(tmp_path, kind="raise", place="source", known=known, coupled=coupled)
    check(outcomes, coupled=coupled, names=("worker 1", "ArithmeticError", "rotten record"))


@pytest.mark.slow
@some_streets
def test_a_killed_rank(tmp_path, known, coupled):
    """Without votes and collectives nothing but the heart tells."""
    outcomes = play(tmp_path, kind="SIGKILL", known=known, coupled=coupled, ranks=3, number=300)
    check(outcomes, coupled=coupled)


def plans_of(cases, **plan):
    """A plan for each street of some."""
    return pytest.mark.parametrize(
        "plan",
        [plan | {"known": known, "coupled": coupled} for known, coupled in cases],
        ids=[f"{known}-{coupled}" for known, coupled in cases],
    )


# Who waits for a rank that is stopped goes on meanwhile: at a pace that keeps no core busy.
STOPPED = {"kind": "SIGSTOP", "number": 200, "pace": 0.01, "leaves": True, "timeout": TIMEOUT}


@pytest.mark.slow
@plans_of([*SOME_STREETS, (False, False)], **STOPPED)
def test_a_stopped_rank(plan, outcomes):
    """Nor does a vote that cannot be stopped keep the interpreter of a rank that leaves."""
    names = ("worker 1", "of iteration 0", "last heard of")
    check(outcomes, coupled=plan["coupled"], names=names)


@pytest.mark.parametrize("plan", [{"kind": "leave", "victim": None, "leaves": True}], ids=[""])
def test_a_script_that_stops_early_ends(outcomes):
    """Nothing that reads or votes ahead keeps a process alive, however its iterator was left."""
    assert ["left"] * 2 == [words for words, *_ in outcomes]


HOSTED = {"coupled": False, "victim": 0, "is_hosted": True, "timeout": TIMEOUT}


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        HOSTED | {"kind": kind, "known": known, "number": 300}
        for kind, known in itertools.product(["SIGKILL", "SIGSTOP"], [True, False])
        if LONG or (kind == "SIGSTOP") == known
    ],
    ids=lambda plan: f"{plan['kind']}-{plan['known']}",
)
def test_the_rank_that_hosts_the_store(plan, outcomes):
    """Whoever waits for its answer is a thread; ``next`` says what happened."""
    check(outcomes, coupled=plan["coupled"], names=())


BETWEEN_EPOCHS = HOSTED | {"kind": "SIGSTOP", "known": True, "number": 19, "examples": 80}


@pytest.mark.slow
@pytest.mark.parametrize("plan", [BETWEEN_EPOCHS], ids=["SIGSTOP"])
def test_the_rank_that_hosts_the_store_is_stopped_between_epochs(outcomes):
    """Nobody stays inside a call of torch that waits for its answer."""
    check(outcomes, coupled=False, names=("the store of the process group",))


@pytest.mark.slow
@plans_of(SOME_STREETS, kind="hang", place="source", examples=80, timeout=TIMEOUT)
def test_a_source_that_hangs(plan, outcomes):
    """With known lengths the others notice where they have to wait: at the next epoch."""
    check(outcomes, coupled=plan["coupled"], names=("worker 1", "reading step"))


SLOW = {"kind": "slow", "timeout": 12.0, "place": "source", "examples": 40, "pace": 0.0}


@pytest.mark.slow
@plans_of([(True, False), (False, False)], **SLOW)
def test_a_slow_rank_is_waited_for(outcomes):
    """It is late but alive: the others say so after a quarter of the timeout, once, and go on."""
    ((words, steps, _, err),) = outcomes
    assert "completed" == words
    assert 20 == steps
    (warning,) = [line for line in err.splitlines() if line.startswith("log: ")]
    assert "late: worker 1: last heard of" in warning
    assert "with 3 steps delivered, reading step 3 of iteration 0" in warning


@pytest.mark.slow
@pytest.mark.parametrize("loaders", [1, 2])
@some_streets
def test_a_killed_loader_process(tmp_path, known, coupled, loaders):
    """The rank that lost it fails, and the others with it."""
    outcomes = play(
        tmp_path, kind="SIGKILL", place="source", known=known, coupled=coupled,
        loaders=loaders, number=20,
    )  # fmt: skip
    check(outcomes, coupled=coupled)


def random_plan(seed):
    """Any rank, any step, any place, any kind of input."""
    choice = random.Random(seed)
    ranks = choice.choice([2, 3])
    plan = {
        "kind": "SIGKILL", "ranks": ranks, "coupled": choice.random() < 0.5,
        "victim": choice.randrange(ranks), "known": choice.random() < 0.5,
        "place": choice.choice(["source", "loop"]), "number": choice.randrange(200),
        "loaders": choice.choice([0, 0, 1]),
    }  # fmt: skip
    if plan["known"] and plan["place"] == "source":
        plan["victim"] %= 2  # of batches of 4 a third rank reads nothing
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [random_plan(seed) for seed in range(50 if LONG else 3)], ids=itertools.count()
)
def test_random_kills(plan, outcomes):
    check(outcomes, coupled=plan["coupled"], names=(f"worker {plan['victim']}",))
