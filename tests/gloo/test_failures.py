"""What happens to a real rank reaches the others: an error in time that names it, a clean exit."""

from __future__ import annotations

import faulthandler
import itertools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_distinput as tdi
from tests.conftest import LONG
from torch_distinput.testing import run_ranks_outcomes

TIMEOUT = 3.0
LIMIT = 40.0
PLAN = {
    "ranks": 2, "victim": 1, "number": 3, "place": "loop", "examples": 20_000, "loaders": 0,
    "timeout": TIMEOUT, "pace": 0.003,
}  # fmt: skip


class Fault:
    """What is to happen to the victim, once, at a place and a step."""

    def __init__(self, plan, rank):
        self.plan, self.is_victim = plan, rank == plan["victim"]

    def __call__(self, place, number):
        plan = self.plan
        if not self.is_victim or plan["place"] != place or number != plan["number"]:
            return
        if Path(plan["mark"]).exists():
            return
        Path(plan["mark"]).write_text(str(time.time()))
        if plan["kind"] == "raise":
            msg = "rotten record"
            raise ArithmeticError(msg)
        if plan["kind"] in {"hang", "slow"}:
            threading.Event().wait(0.75 * TIMEOUT if plan["kind"] == "slow" else None)
        else:
            os.kill(os.getpid(), getattr(signal, plan["kind"]))


class Examples(torch.utils.data.Dataset):
    def __init__(self, count, fault):
        self.count, self.fault = count, fault

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.fault("source", index // 4)
        return torch.tensor(index)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, count, fault):
        self.count, self.fault = count, fault

    def __iter__(self):
        for index in range(self.count):
            self.fault("source", index // 4)
            yield torch.tensor(index)


def work(plan, strategy):
    """Two epochs on one rank: how they ended, after how many steps, and when."""
    fault = Fault(plan, strategy.worker_index)
    dataset = strategy.distribute_dataset(
        (Examples if plan["known"] else Stream)(plan["examples"], fault),
        global_batch_size=4,
        num_workers=plan["loaders"],
        options=tdi.InputOptions(timeout=plan["timeout"]),
    )
    steps = 0
    try:
        for _ in range(2):
            for _ in dataset:
                fault("loop", steps)
                steps += 1
                if plan["coupled"]:
                    dist.all_reduce(torch.zeros(8))
                else:
                    time.sleep(plan["pace"])
    except Exception as error:  # noqa: BLE001 - judged by the test
        return f"{type(error).__name__}: {error}", steps, time.time()
    return "completed", steps, time.time()


def store_of(rank, plan):
    """A file; or in rank 0, as without torchrun, on a port that it tells by the file."""
    if not plan.get("is_hosted"):
        return dist.FileStore(plan["store"], plan["ranks"])
    path = Path(plan["store"])
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        path.with_suffix(".new").write_text(str(store.port))
        path.with_suffix(".new").rename(path)
        return store
    while not path.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(path.read_text()), None, is_master=False)


def main(rank, text):
    """A rank as a process of its own."""
    plan = json.loads(text)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    logging.basicConfig(format="log: %(message)s")
    dist.init_process_group(
        "gloo", store=store_of(rank, plan), rank=rank, world_size=plan["ranks"],
        timeout=timedelta(seconds=plan["timeout"]),
    )  # fmt: skip
    print(json.dumps(work(plan, tdi.MultiWorkerMirroredStrategy(["cpu"]))), flush=True)


COMMAND = """
import sys
from tests.gloo.test_failures import main
main(int(sys.argv[1]), sys.argv[2])
"""


def play_processes(folder, **plan):
    """Run the ranks to the end of their interpreters.

    For each survivor: its words, its steps, the seconds since the fault, and its log.
    """
    plan = PLAN | {"store": str(folder / "store"), "mark": str(folder / "mark")} | plan
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(rank), json.dumps(plan)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(plan["ranks"])
    ]  # fmt: skip
    survivors = [process for rank, process in enumerate(processes) if rank != plan["victim"]]
    try:
        ends = [process.communicate(timeout=2 * LIMIT) for process in survivors]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [0] * len(survivors) == [process.returncode for process in survivors], ends
    began = float((folder / "mark").read_text())
    return [
        (words, steps, at - began, err)
        for out, err in ends
        for words, steps, at in [json.loads(out)]
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
def test_a_stopped_rank(tmp_path, known, coupled):
    outcomes = play_processes(
        tmp_path, kind="SIGSTOP", known=known, coupled=coupled, number=300
    )
    check(outcomes, coupled=coupled, names=("worker 1", "of iteration 0", "last heard of"))


@pytest.mark.parametrize(
    ("kind", "known"),
    itertools.product(["SIGKILL", "SIGSTOP"], [True, False])
    if LONG
    else [("SIGKILL", False), ("SIGSTOP", True)],
)
def test_the_rank_that_hosts_the_store(tmp_path, kind, known):
    """Whoever waits for its answer is a thread; ``next`` says what happened."""
    outcomes = play_processes(
        tmp_path, kind=kind, known=known, coupled=False, number=300, victim=0, is_hosted=True
    )
    check(outcomes, coupled=False, names=())


def test_the_rank_that_hosts_the_store_is_stopped_between_epochs(tmp_path):
    """Nobody stays inside a call of torch that waits for its answer."""
    outcomes = play_processes(
        tmp_path, kind="SIGSTOP", known=True, coupled=False, number=19, examples=80, victim=0,
        is_hosted=True,
    )  # fmt: skip
    check(outcomes, coupled=False, names=("the store of the process group",))


@some_streets
def test_a_source_that_hangs(tmp_path, known, coupled):
    """With known lengths the others notice where they have to wait: at the next epoch."""
    outcomes = play_processes(
        tmp_path, kind="hang", place="source", known=known, coupled=coupled, examples=80
    )
    check(outcomes, coupled=coupled, names=("worker 1", "reading step"))


@some_streets
def test_a_slow_rank_is_waited_for(tmp_path, known, coupled):
    """It is late but alive: the others say so, once, and go on."""
    plan = {"place": "source", "examples": 40, "pace": 0.0, "coupled": False}
    ((words, steps, _, err),) = play_processes(tmp_path, kind="slow", known=known, **plan)
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
def test_random_kills(tmp_path, seed):
    """Any rank, any step, any place, any street."""
    choice = random.Random(seed)
    ranks = choice.choice([2, 3])
    coupled = choice.random() < 0.5
    victim = choice.randrange(ranks)
    outcomes = play_processes(
        tmp_path, kind="SIGKILL", known=choice.random() < 0.5, coupled=coupled, ranks=ranks,
        victim=victim, place=choice.choice(["source", "loop"]), number=choice.randrange(200),
        loaders=choice.choice([0, 0, 1]),
    )  # fmt: skip
    check(outcomes, coupled=coupled, names=(f"worker {victim}",), within=20)
