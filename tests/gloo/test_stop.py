"""A signal to one rank stops all of them at one step."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.conftest import LONG
from tests.gloo.meshes import TWO_BY_TWO, strategy_on
from torch_distinput.testing import run_ranks


def numbers():
    """A stream that does not end by itself."""
    k = 0
    while True:
        yield torch.tensor(k)
        k += 1


def train(known, coupled, strategy):
    """Where a rank stopped, and what the handler before ours has heard."""
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    strategy.stop_on_signal()
    try:
        source = range(1_000_000) if known else numbers
        for step, _ in enumerate(strategy.distribute_dataset(source, global_batch_size=4)):
            if coupled:
                dist.all_reduce(torch.zeros(8))
            if step == 5 and strategy.worker_index == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            if strategy.stop_requested:
                return step, heard
            time.sleep(0.002)  # as a step would take; thousands go by until all have agreed
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return None


STREETS = [(True, False), (False, True), (True, True), (False, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("known", "coupled"), STREETS if LONG else STREETS[:2])
def test_a_signal_stops_all_ranks_at_one_step(known, coupled):
    first, second, third = run_ranks(partial(train, known, coupled), 3)
    assert first[0] == second[0] == third[0] > 5
    assert ([], [signal.SIGTERM] * 2, []) == (first[1], second[1], third[1])


SCRIPT = """
    import multiprocessing, sys
    import torch
    import torch_distinput as tdi

    tdi.init_distributed(timeout=100)
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    strategy.stop_on_signal()
    num_workers = int(sys.argv[1])
    train = strategy.distribute_dataset(
        range(10_000_000), global_batch_size=4, num_workers=num_workers
    )
    for step, batch in enumerate(train):
        torch.distributed.all_reduce(torch.zeros(8))
        if step == 5 and strategy.worker_index == 0:
            print("under way", flush=True)
            assert num_workers == len(multiprocessing.active_children())
        if strategy.stop_requested:
            print(f"saved at {step}", flush=True)
            break
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchrun_passes_the_signal_on(tmp_path, num_workers):
    """As a scheduler sends it: all ranks save at one step.

    It sends it to their process groups, in which loader processes would end at once.
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(path), str(num_workers)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "under way\n" == process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    saved = re.findall(r"saved at \d+", out)  # two ranks may share a line
    assert 2 == len(saved), (out, err)
    assert 1 == len(set(saved))


def counted(how, _):
    """One rank has delivered more, to a thread that read ahead of an epoch that was left."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input=how)
    dataset = strategy.distribute_dataset(torch.arange(8), global_batch_size=4)
    stop = strategy._session.heartbeat.stop
    stop.delivered += torch.distributed.get_rank() == 3
    list(dataset)
    return stop.delivered


@pytest.mark.parametrize("how", ["read", "broadcast"])
def test_all_ranks_of_a_mesh_count_steps_from_one_number(how):
    """Or a stop would be taken for another step."""
    assert 1 == len(set(run_ranks(partial(counted, how), 4)))


ORPHAN = """
    import os, signal, sys, time
    import torch_distinput as tdi


    class Stuck:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            print(os.getpgid(0) == os.getpid(), flush=True)
            time.sleep(1000)


    strategy = tdi.OneDeviceStrategy("cpu")
    strategy.stop_on_signal()
    next(iter(strategy.distribute_dataset(Stuck(), global_batch_size=4, num_workers=1)))
"""


@pytest.mark.slow
def test_a_loader_process_outside_of_the_group_ends_with_its_parent():
    """What kills the group does not reach it, and it may be stuck in the user's code."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHAN)], stdout=subprocess.PIPE, text=True
    ) as process:
        leads = process.stdout.readline()
        process.kill()
        out, _ = process.communicate(timeout=60)  # until the child has closed it, too
    assert ("True\n", "") == (leads, out)
