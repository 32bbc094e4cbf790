"""Loader processes: who fetches what, how far ahead, and what becomes of those that end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

import torch_distinput as tdi
from torch_distinput.data.loader import process_datasets, shared_memory
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.data.loader.task_run import _AHEAD_BYTES, _MOST_AHEAD


def processes(fetch, num_workers=2, *, grouped=True, persistent=False, init_fn=None, **keywords):
    """A loader with so many of them."""
    options = LoaderOptions(
        num_workers=num_workers, persistent=persistent, init_fn=init_fn, keywords=keywords
    )
    return TaskLoader(fetch, options, grouped=grouped)


def who(task):
    """The process that fetches a task, and the task."""
    return torch.tensor([get_worker_info().id, task])


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("grouped", [True, False])
def test_tasks_go_to_the_processes_in_turn(num_workers, grouped):
    """Whatever travels together: what a process has seen of its random numbers depends on it."""
    results = processes(who, num_workers, grouped=grouped).run(iter(range(100)))
    expected = [[task % num_workers, task] for task in range(100)]
    assert expected == [result.tolist() for result in results]


def array_of(size):
    """A result of so many bytes."""
    return np.zeros(size, dtype=np.uint8)


def most_ahead(size, **keywords):
    """How many tasks are drawn at most beyond those whose results were taken, by process."""
    drawn, ahead = count(), []
    tasks = (size for _ in islice(drawn, 100))
    for taken, _ in enumerate(processes(array_of, **keywords).run(tasks), 1):
        ahead.append(drawn.__reduce__()[1][0] - taken)
    return max(ahead) / 2


@pytest.mark.slow
def test_small_batches_go_further_ahead():
    """In groups, for each message wakes a process; large ones as far as torch has them go."""
    assert _MOST_AHEAD == most_ahead(1000)
    assert 4 == most_ahead(_AHEAD_BYTES // 5)
    assert 2 == most_ahead(_AHEAD_BYTES)
    assert 2 == most_ahead(1000, grouped=False)


@pytest.mark.parametrize("factor", [1, 3])
def test_a_prefetch_factor_is_kept(factor):
    """Whoever sets one gets no other."""
    assert factor == most_ahead(1000, prefetch_factor=factor)


@pytest.mark.slow
def test_batches_that_grow_go_less_far_ahead():
    """The largest until now counts, from where it was seen."""
    sizes = [1000] * 40 + [_AHEAD_BYTES] * 40
    drawn = []
    tasks = (drawn.append(size) or size for size in sizes)
    for taken, result in enumerate(processes(array_of).run(tasks), 1):
        assert sizes[taken - 1] == result.size
        if taken > 40 + 2 * _MOST_AHEAD and len(drawn) < len(sizes):
            assert len(drawn) - taken <= 4


def twice(task):
    """A task of many bytes, and a result of more."""
    return task + task


@pytest.mark.parametrize("num_slots", [0, 8])
def test_tasks_and_results_that_no_socket_holds(monkeypatch, num_slots):
    """Both ends may be writing: without slots results go through the channel, too."""
    monkeypatch.setattr(shared_memory, "_MOST_SLOTS", num_slots)
    tasks = [bytes([number]) * 500_000 for number in range(12)]
    assert list(map(twice, tasks)) == list(processes(twice).run(iter(tasks)))


def kill_at(task):
    """End without a word."""
    if task == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


# Torch's signal handler may raise once more while torch ends the other processes, wherever that
# finds the main thread: in a finalizer, or where Hypothesis looks at the garbage collector.
TORCH_SAYS_IT_TWICE = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)


def guarded(loader, tasks):
    """As epochs use it: torch's signal handler may also raise where the loss is being told."""
    return loader.guard(loader.run(iter(tasks)))


@pytest.mark.slow
@TORCH_SAYS_IT_TWICE
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_process_that_is_killed(in_thread):
    """Whoever iterates; the next epoch has new ones."""
    loader = processes(kill_at, persistent=True)
    said, ended = [], threading.Event()

    def run():
        try:
            with pytest.raises(tdi.SourceError) as caught:
                list(guarded(loader, range(20)))
            said.append(str(caught.value))
        finally:
            ended.set()

    if in_thread:
        threading.Thread(target=run).start()
        while not ended.is_set():  # Python 3.11 takes a disturbed join for an end
            with contextlib.suppress(RuntimeError):  # of torch's signal handler, in the main thread
                ended.wait(30)
    else:
        run()
    assert "The loader processes did not deliver batch" in said[0]
    assert [0, 1, 2] == list(loader.run(iter(range(3))))


def hang_at(task):
    """Never answer."""
    if task == 3:
        threading.Event().wait()
    return task


@pytest.mark.slow
def test_a_timeout_of_a_loader():
    """What came before is delivered."""
    results = processes(hang_at, timeout=3).run(iter(range(9)))  # also for the first to start
    assert [0, 1, 2] == list(islice(results, 3))
    with pytest.raises(tdi.SourceError, match="batch 3 .*timed out after 3 seconds"):
        next(results)


def test_an_epoch_that_is_left_does_not_mix_with_the_next():
    """Its results are on their way when the next one asks."""
    loader = processes(who, persistent=True)
    for first in range(0, 500, 100):
        results = loader.run(iter(range(first, first + 100)))
        assert [first, first + 1] == [int(result[1]) for result in islice(results, 2)]


def test_a_run_that_another_follows_is_over():
    """It takes nothing of what the next one asks for."""
    loader = processes(who, persistent=True)
    left = loader.run(iter(range(100)))
    assert [0, 1] == [int(result[1]) for result in islice(left, 2)]
    following = loader.run(iter(range(100, 200)))
    assert [] == list(left)
    assert list(range(100, 200)) == [int(result[1]) for result in following]


def wait_at(task):
    """Wait for another process to write into a pipe, if it is told its end."""
    return os.read(task, 1) if task else os.getpid()


@pytest.mark.slow
def test_a_run_that_a_thread_waits_in():
    """Its processes are left to it; the next run has others, and the one after has these."""
    loader = processes(wait_at, num_workers=1, persistent=True)
    asked, ask = os.pipe()
    left = loader.run(iter([0, asked]))
    first, arrived = next(left), []
    thread = threading.Thread(target=lambda: arrived.extend(left))
    thread.start()
    while not left.gi_running:
        pass
    (second,) = loader.run(iter([0]))
    (third,) = loader.run(iter([0]))
    os.write(ask, b"!")
    thread.join(60)
    assert [b"!"] == arrived
    assert first != second == third


def interrupt_main(task):
    """As Ctrl-C does, in the main process."""
    if task == 2:
        os.kill(os.getppid(), signal.SIGINT)
    return task


@pytest.mark.slow
def test_an_interrupted_run():
    """Nobody knows what it has read of a message: the next one has new processes."""
    loader = processes(interrupt_main, num_workers=1, grouped=False, persistent=True)
    with pytest.raises(KeyboardInterrupt):
        list(loader.run(iter(range(9))))
    assert loader._kept is None
    assert [0, 1] == list(loader.run(iter(range(2))))


@pytest.mark.slow
def test_processes_that_ended_between_two_runs():
    """As those of a program do that the user interrupts: new ones come without a word."""
    loader = processes(wait_at, num_workers=2, persistent=True)
    before = list(loader.run(iter([0, 0])))
    watched = list(loader._kept._torchs._workers)
    os.kill(before[1], signal.SIGINT)
    watched[1].join(60)
    after = list(loader.run(iter([0, 0])))
    assert not {*before} & {*after}


def break_channel(task):
    """Have the results of this process not sent."""

    def dump_message(*_):
        raise OSError("too many open files")

    if task == 3:
        process_datasets.dump_message = dump_message
    return task


@TORCH_SAYS_IT_TWICE
def test_a_result_that_cannot_be_sent(capfd):
    """Its process says why, and ends: nobody waits for it."""
    with pytest.raises(tdi.SourceError, match="did not deliver batch"):
        list(guarded(processes(break_channel), range(9)))
    assert "OSError: too many open files" in capfd.readouterr().err


def tensor_of(size):
    """In shared memory, which a descriptor keeps."""
    return torch.zeros(size)


def test_processes_for_which_no_file_is_left():
    """They are not started: whoever starts them hears of the limit, as of any error of the data."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 3, limit[1]))
    try:
        with pytest.raises(tdi.SourceError, match="may open no more files.*ulimit -n"):
            list(processes(tensor_of, 4).run(iter([1] * 9)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_batches_that_are_kept_when_no_file_is_left():
    """A cause that neither torch's message nor the process that ends tells."""
    results = processes(tensor_of, grouped=False).run(iter([100_000] * 300))
    kept = [next(results)]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 40, limit[1]))
    try:
        with pytest.raises(tdi.SourceError, match="may open no more files.*ulimit -n"):
            kept.extend(results)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert 1 < len(kept) < 300


def begin_late(process):
    """The second process begins when the main one has ended."""
    main = multiprocessing.parent_process().pid  # os.getppid() may be another one already
    while process and os.getppid() == main:
        os.sched_yield()


LEFT_BEHIND = """
import os, signal, sys
from tests.data.test_loader_processes import begin_late, processes, who
results = processes(who, init_fn={init_fn}).run(iter(range(1000)))
next(results)
{end}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "init_fn"),
    [
        (KILL, -signal.SIGKILL, None),
        (KILL, -signal.SIGKILL, "begin_late"),
        ("sys.exit(3)", 3, None),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, None),
    ],
    ids=["killed", "killed while one begins", "exit", "interrupted"],
)
def test_processes_end_with_the_main_process(end, code, init_fn):
    """However it ends: they hold its standard output, which is closed when all have ended."""
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND.format(end=end, init_fn=init_fn)],
        capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert code == ended.returncode
    assert b"Exception ignored" not in ended.stderr


def learned(task):
    """A result that travels torch's way, which keeps a file open for it."""
    return torch.full((1000,), float(task), requires_grad=True)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="files are listed there")
def test_what_was_left_unopened_does_not_stay_with_the_processes():
    """Persistent ones would run out of files, or the machine of shared memory."""
    loader = processes(learned, persistent=True)
    counts = []
    for _ in range(12):
        assert [0.0, 1.0] == [x[0].item() for x in islice(loader.run(iter(range(20))), 2)]
        workers = loader._kept._torchs._workers
        folders = [Path(f"/proc/{worker.pid}/fd") for worker in workers]
        counts.append(sum(len(list(folder.iterdir())) for folder in folders))
    assert max(counts[6:]) <= max(counts[:6]) + 4
