"""A rank that something happens to, as a process: see test_failures.py.

    python -m tests.gloo.failing_rank

reads plans, one a line. It has imported what ranks need, and forks those of a plan, so that they
are there in no time; where that is in question, each runs to the end of its interpreter. Their
output is in the plan's folder, and at last the survivors' exit codes in its ``codes``.

What takes long is that the others wait. So a plan begins when the fault of the one before it has
happened, and they wait side by side:

    plan 0    start . . fault  wait wait wait wait  end
    plan 1                     start . . fault  wait wait wait wait  end
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import torch_distinput as tdi

TIMEOUT = 5.0  # must pass where a rank falls silent: more than busy cores keep one that is well
LIMIT = 100.0


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
        if plan["kind"] == "hang":
            threading.Event().wait()
        elif plan["kind"] == "slow":
            wait_until_said(plan)
        else:
            os.kill(os.getpid(), getattr(signal, plan["kind"]))


def wait_until_said(plan):
    """Return when the other rank has told its log that it waits."""
    while "late: worker 1" not in Path(plan["folder"], "err-0").read_text():
        time.sleep(0.01)


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


held: list[object] = []
"""Iterators that are there until the interpreter has ended."""


def leave(plan, strategy):
    """Stop in the middle of three streams, and leave their iterators in three ways."""
    streams = [Stream(plan["examples"], lambda place, number: None) for _ in range(3)]
    left, closed, gone = (
        iter(strategy.distribute_dataset(stream, global_batch_size=4)) for stream in streams
    )
    for iterator in (left, closed, gone):
        for _ in range(3):
            next(iterator)
    closed.close()
    del gone, iterator
    held.append(left)  # whose votes are under way
    Path(plan["mark"]).write_text(str(time.time()))
    return "left", 3, time.time()


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


def main(rank, plan):
    """A rank as a process of its own."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    logging.basicConfig(format="log: %(message)s")
    dist.init_process_group(
        "gloo", store=store_of(rank, plan), rank=rank, world_size=plan["ranks"],
        timeout=timedelta(seconds=LIMIT),
    )  # fmt: skip
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=plan["timeout"]))
    play = leave if plan["kind"] == "leave" else work
    print(json.dumps(play(plan, tdi.MultiWorkerMirroredStrategy(["cpu"]))), flush=True)
    if plan["leaves"]:
        dist.destroy_process_group()  # a gloo group that is left aborts at exit


def start(plan):
    """Fork the ranks: in a rank its number, else None, when the survivors' exit codes are known.

    All of them are in one process group, which is killed then: the victim may hang or be stopped.
    """
    processes = []
    for rank in range(plan["ranks"]):
        process = os.fork()
        if not process:
            os.setpgid(0, processes[0] if processes else 0)
            return rank
        os.setpgid(process, processes[0] if processes else process)
        processes.append(process)
    survivors = [process for rank, process in enumerate(processes) if rank != plan["victim"]]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in survivors]
    if plan["victim"] is not None:
        os.killpg(processes[0], signal.SIGKILL)
        os.waitpid(processes[plan["victim"]], 0)
    write_codes(plan, codes)
    return None


def write_codes(plan, codes):
    """All at once, for somebody looks at it all the time."""
    path = Path(plan["folder"], "codes")
    path.with_suffix(".new").write_text(json.dumps(codes))
    path.with_suffix(".new").rename(path)


def serve():
    """Play plans until there are no more."""
    gc.freeze()  # what has been imported is not to be collected, and so copied, in each rank
    for line in sys.stdin:
        plan = json.loads(line)
        supervisor = os.fork()
        if not supervisor:
            rank = start(plan)
            if rank is None:
                os._exit(0)  # without the end of an interpreter, which takes long
            play(rank, plan)
            if not (plan["leaves"] or plan.get("is_hosted")):
                end_soon()
            return
        while not Path(plan["mark"]).exists() and not os.waitpid(supervisor, os.WNOHANG)[0]:
            time.sleep(0.01)
    with suppress(ChildProcessError):  # there are no more
        while os.wait():
            pass


def end_soon():
    """End like an interpreter, which would take longer to take all of torch apart than a test."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def play(rank, plan):
    """Be a rank, with its output in a file."""
    for descriptor, name in ((1, "out"), (2, "err")):
        path = f"{plan['folder']}/{name}-{rank}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    main(rank, plan)


if __name__ == "__main__":
    serve()
