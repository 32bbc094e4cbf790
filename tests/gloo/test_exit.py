"""Exits that nothing may hold up: a peer that hangs, a source that does not return."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

HUNG = """
    import os, signal, sys
    import torch
    import torch_distinput as tdi

    rank, path = int(sys.argv[1]), sys.argv[2]
    store = torch.distributed.FileStore(path, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])

    def numbers():
        yield from (torch.tensor(k) for k in range(100_000))

    options = tdi.InputOptions(timeout=2)
    dataset = strategy.distribute_dataset(numbers, global_batch_size=4, options=options)
    try:
        for step, _ in enumerate(dataset):
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
    except tdi.PeerTimeoutError:
        print("the last line")
        torch.distributed.destroy_process_group()
"""

BLOCKED = """
    import threading, time
    from torch_distinput.testing import simulate

    def work(strategy):
        inside = threading.Event()

        def numbers():
            yield from range(8)
            inside.set()
            time.sleep(1000)

        iterator = iter(strategy.distribute_dataset(numbers, global_batch_size=4))
        next(iterator)
        assert inside.wait(20)
        return iterator

    held = simulate(work, num_workers=2)
    print("the last line", flush=True)
"""


def script(folder, text):
    """Write a script and return the command that runs it."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def test_a_peer_that_hangs(tmp_path):
    """A vote that cannot be stopped does not keep the interpreter."""
    command = script(tmp_path, HUNG)
    store = str(tmp_path / "store")
    with subprocess.Popen([*command, "1", store]) as peer:
        try:
            ended = subprocess.run(
                [*command, "0", store], capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            peer.kill()
    assert (0, "the last line\n") == (ended.returncode, ended.stdout), ended.stderr


def test_a_source_that_does_not_return(tmp_path):
    """A thread inside a user's Python is left there."""
    with subprocess.Popen(script(tmp_path, BLOCKED), stdout=subprocess.PIPE, text=True) as process:
        assert "the last line\n" == process.stdout.readline()
        started = time.monotonic()
        assert 0 == process.wait(30)
        assert time.monotonic() - started < 5
