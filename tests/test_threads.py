"""What a forked child inherits: no held lock, no exit of ours, and no way to the other workers."""

from __future__ import annotations

import ast
import atexit
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import fsspec
import pytest
import torch
import torch.distributed as dist

import torch_distinput as tdi
from torch_distinput import threads
from torch_distinput.data.batch.tree import flatten
from torch_distinput.testing import run_ranks, simulate

SECONDS = 100
"""After which a child that hangs is ended by a signal."""


@pytest.fixture(scope="module", autouse=True)
def without_sessions():
    """At its exit a child waits seconds for each session of fsspec that tests before have left."""
    for kind in fsspec.registry.values():
        kind.clear_instance_cache()
    gc.collect()


def forked(work):
    """Run in a child made by ``os.fork`` what a script would run: then it exits."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        status = 2
        with suppress(BaseException):
            status = work()
        atexit._run_exitfuncs()
        os._exit(status or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def held(lock):
    """A thread that holds a lock until the event is set."""
    there, leave = threading.Event(), threading.Event()

    def hold():
        with lock:
            there.set()
            leave.wait()

    threading.Thread(target=hold, daemon=True).start()
    assert there.wait(SECONDS)
    return leave


LOCKS = {
    "lock": threads.new_lock,
    "rlock": threads.new_rlock,
    "condition": threads.new_condition,
    "named": lambda: threads.named_lock("of a test"),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_a_child_can_take_every_lock(kind):
    lock = LOCKS[kind]()
    leave = held(lock)

    def take():
        mine = LOCKS[kind]() if kind == "named" else lock
        with mine:
            return 0

    try:
        assert 0 == forked(take)
    finally:
        leave.set()


def test_a_child_can_set_an_event():
    event = threads.new_event()
    leave = held(event._cond)
    try:
        assert 0 == forked(event.set)
    finally:
        leave.set()


@pytest.mark.slow
def test_a_child_of_a_loader_process_is_none():
    with threads.forking_loaders():
        assert 0 == forked(lambda: int(not threads.is_loader_process()))
        assert 0 == forked(lambda: forked(lambda: int(threads.is_loader_process())))


class Circle:
    """What only the garbage collector frees."""

    def __init__(self, held):
        self.me, self.held = self, held


def leave_a_group_and_fork(strategy):
    """Exit code of a child that looks for garbage, where a group that was used is some."""
    del strategy
    gc.disable()  # only the child is to find it
    try:
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        Circle(group)
        dist.destroy_process_group(group)
        del group
        process = multiprocessing.get_context("fork").Process(target=gc.collect)
        process.start()
        process.join(SECONDS)
        process.kill()
        return process.exitcode
    finally:
        gc.enable()


def test_a_child_does_not_collect_a_process_group_that_it_inherits_as_garbage():
    """It would wait for gloo's threads, which were not forked."""
    assert [0, 0] == run_ranks(leave_a_group_and_fork, 2)


def test_no_hook_of_others_collects_garbage_in_a_child_before_ours():
    """They may allocate, as the one of threading does, which comes first."""
    script = """
import gc, os, sys

class Circle:
    def __init__(self):
        self.me = self

    def __del__(self):
        found.append(os.getpid())

found = []
os.register_at_fork(after_in_child=lambda: [[] for _ in range(10_000)])
from torch_distinput import threads
threads.num_forks()  # registers
gc.collect()
Circle()
child = os.fork()
if not child:
    early = list(found)
    [[] for _ in range(10_000)]
    os._exit(bool(early) + 2 * (not gc.isenabled()) + 4 * bool(found))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status + 8 * (not gc.isenabled()))
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=SECONDS, check=False)
    assert 0 == done.returncode


@pytest.mark.parametrize("is_on", [True, False])
def test_a_fork_leaves_the_collector_as_it_was(is_on):
    threads.num_forks()  # registers
    (gc.enable if is_on else gc.disable)()
    try:
        assert int(is_on) == forked(lambda: int(gc.isenabled()))
        assert is_on == gc.isenabled()
    finally:
        gc.enable()


class Header:
    """Examples for whose reading the lock of the parser is taken."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with threads.named_lock("ast"):
            return torch.tensor(ast.literal_eval(str(index)))


def test_a_loader_process_inherits_no_held_lock():
    leave = held(threads.named_lock("ast"))
    try:
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            Header(), global_batch_size=4, num_workers=1
        )
        assert [[0, 1, 2, 3], [4, 5, 6, 7]] == [batch.tolist() for batch in dataset]
    finally:
        leave.set()


def test_trees_are_taken_apart_without_a_lock():
    """``functools.cached_property`` has one on Python 3.11, for all instances."""
    _, structure = flatten({"a": torch.zeros(2), "b": (torch.zeros(2),)})
    kept = [vars(type(structure))[name] for name in ("build", "num_leaves")]
    assert [] == [one for one in kept if hasattr(one, "lock")]
    assert structure.num_leaves == vars(structure)["num_leaves"] == 2


def refusal(call):
    """The words of the UsageError that a call in a child raises."""
    ours, theirs = multiprocessing.Pipe()

    def work():
        try:
            call()
        except tdi.UsageError as error:
            theirs.send(str(error))
        else:
            theirs.send("no error")

    assert 0 == forked(work)
    return ours.recv()


def numbers():
    yield from map(torch.tensor, range(4000))


def play_and_fork(known, strategy):
    """What a child of a rank is told, and whether the rank goes on as if nothing had been."""
    source = range(4000) if known else numbers
    dataset = strategy.distribute_dataset(source, global_batch_size=4)
    rows = 0
    for step, batch in enumerate(dataset):
        rows += len(batch)
        if step == 3:
            iterator = dataset._running()
            told = [
                refusal(lambda it=iterator: next(it)),
                refusal(lambda: iter(dataset)),
                refusal(lambda: strategy.reduce("sum", 1)),
            ]
            assert 0 == forked(iterator.close)
        if step % 100 == 50:
            assert 0 == forked(lambda: None)
            process = multiprocessing.get_context("fork").Process(target=gc.collect)
            process.start()
            process.join()
            assert 0 == process.exitcode
    return told, strategy.reduce("sum", rows)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_a_child_of_a_rank_is_refused_and_does_no_harm(known):
    for told, rows in run_ranks(partial(play_and_fork, known), 2):
        by_a_fork, *in_a_child = told
        assert "closed by a fork" in by_a_fork
        assert all("got a call in its child" in words for words in in_a_child)
        assert 4000 == rows


def test_a_child_of_simulated_workers_is_refused():
    def work(strategy):
        dataset = strategy.distribute_dataset(numbers, global_batch_size=4)
        next(iter(dataset))
        if strategy.worker_index:
            return ""
        return refusal(lambda: iter(dataset))

    assert "got a call in its child" in simulate(work, num_workers=2)[0]


def test_a_signal_ends_the_child_of_a_rank_that_stops_on_it():
    """It is nobody's rank, so there is nothing to stop in step with."""
    before = signal.getsignal(signal.SIGTERM)
    strategy = tdi.OneDeviceStrategy("cpu")
    try:
        strategy.stop_on_signal()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=lambda: (theirs.send("here"), threading.Event().wait()))
        process.start()
        assert "here" == ours.recv()
        process.terminate()
        process.join(SECONDS)
        assert -signal.SIGTERM == process.exitcode
        assert not strategy.stop_requested
    finally:
        signal.signal(signal.SIGTERM, before)


def test_at_exit_one_step_that_fails_keeps_no_other_from_being_done(caplog):
    done, ended = [], threading.Event()

    def fail():
        ended.set()
        raise OSError("its process is gone")

    def leave():
        threads.start_thread(ended.wait, name="first", stop=fail)
        threads.start_thread(ended.wait, name="second", stop=lambda: done.append("stop"))
        for release in (fail, lambda: done.append("release")):
            threads.release_at_exit(release)
        threads._end_all()
        return int((done, len(caplog.records)) != (["stop", "release"], 2))

    assert 0 == forked(leave)


@pytest.mark.parametrize("heeds", [True, False])
def test_at_exit_only_a_thread_that_does_not_end_when_asked_is_given_up(monkeypatch, heeds):
    """Giving up breaks connections, and what went over them may be on its way yet."""
    monkeypatch.setattr(threads, "_EXIT_SECONDS", SECONDS if heeds else 0.01)

    def leave():
        ended, given_up = threading.Event(), []

        def give_up():
            given_up.append(True)
            ended.set()

        stop = ended.set if heeds else (lambda: None)
        threads.start_thread(ended.wait, name="test", stop=stop, give_up=give_up)
        threads._end_all()
        return len(given_up)

    assert (0 if heeds else 1) == forked(leave)


def test_one_thread_at_a_time_starts_loader_processes() -> None:
    """filelock refuses a fork beside another one, on Python 3.12 and later."""
    with threads.forking_loaders():
        assert threads.named_lock("start of loader processes").locked()
    assert not threads.named_lock("start of loader processes").locked()
