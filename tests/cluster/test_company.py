"""What a worker can know by itself of the others: that one has died, and how long it has waited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch_distinput as tdi
from torch_distinput.cluster.liveness import heartbeat, wait_limit
from torch_distinput.cluster.liveness.coordinated_stop import CoordinatedStop
from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.process_identity import (
    ProcessIdentity,
    has_died,
    identify_process,
)
from torch_distinput.cluster.liveness.status import LEFT
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.engine.feeds import FailedSteps, PlannedFeed


@pytest.fixture
def other():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def named(process):
    """The name that a process of this machine has for others."""
    own = identify_process()
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessIdentity(own.machine, process.pid, fields[19])


def test_a_process_that_runs_has_not_died(other):
    assert not has_died(named(other), identify_process())
    assert not has_died(identify_process(), identify_process())


def test_a_killed_process_has_died_before_its_parent_asks_for_it(other):
    name = named(other)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert has_died(name, identify_process())
    other.wait()
    assert has_died(name, identify_process())


def test_a_later_process_of_the_same_number_is_another_one(other):
    assert has_died(named(other)._replace(started="1"), identify_process())


def test_a_process_of_another_machine_cannot_be_looked_up(other):
    name = named(other)
    other.kill()
    other.wait()
    assert not has_died(name._replace(machine="another"), identify_process())
    assert not has_died(name._replace(machine=""), ProcessIdentity("", 1, ""))


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([0.5, 1.0, 2.9], False),
        ([0.5, 1.0, 1.5, 2.0, 2.5, 3.0], True),
        ([0.5, 1000.0], False),  # stopped for a quarter of an hour
        ([0.5, 1000.0, 1000.5], True),
    ],
)
def test_time_in_which_a_process_was_stopped_is_no_waiting(monkeypatch, looks, expected):
    now = [0.0]
    monkeypatch.setattr(wait_limit.time, "monotonic", lambda: now[0])
    waiting = WaitLimit(3.0)
    for now[0] in looks:
        is_over = waiting.is_over
    assert expected == is_over


class Notes:
    """A board on which the other worker's note stays as it is."""

    rank, size = 0, 2

    def __init__(self):
        self.notes = {}

    def read(self):
        return dict(self.notes)

    def post(self, text):
        self.notes[0] = text
        self.notes.setdefault(1, text)


def test_who_wakes_first_does_not_take_the_others_for_gone(monkeypatch):
    """After a suspension of the whole job; but who stays silent then is gone."""
    now = [0.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    board = Notes()
    heart = Heartbeat(board)
    for now[0] in (1.0, 2.0, 3.0, 603.0):
        heart._beat(board)
    assert {} == heart.peers.gone(120.0)
    for step in range(130):
        now[0] = 604.0 + step
        heart._beat(board)
    assert "no sign of life within 120 s" in heart.peers.gone(120.0)[1]


def test_workers_that_leave_while_one_looks_who_has_left():
    """The heartbeat's thread hears of them in the middle of the look."""
    peers = Heartbeat(Notes()).peers

    class Late(int):
        def __le__(self, other):
            peers.heard.steps_of_left[len(peers.heard.steps_of_left)] = Late()
            return False

    peers.heard.steps_of_left = {0: Late()}
    monitor = PeerMonitor.__new__(PeerMonitor)
    monitor._peers, monitor._stop = peers, CoordinatedStop()
    monitor.check_company(0)
    assert 2 == len(peers.heard.steps_of_left)


def test_a_failure_that_was_read_ahead_is_not_told():
    """All workers may leave the loop before the step that fails."""
    heart = Heartbeat(Notes())
    feed = PlannedFeed(
        FailedSteps(ArithmeticError("rotten record")),
        PeerMonitor(heart, "iteration 0", 0, timeout=1.0),
        origin=None, worker=0, spec=None,
    )  # fmt: skip
    with pytest.raises(tdi.SourceError, match="Worker 0, step 3: ArithmeticError: rotten record"):
        feed.next(3)
    assert heart.failed is None


@pytest.mark.parametrize(("steps", "expected"), [(3, "rank 1, rank 2 wi"), (4, "but rank 2 wi")])
def test_who_has_left_after_later_steps_broke_nothing_off(steps, expected):
    """Ranks of a mesh that share no data with this one may come to the end before it."""
    board = Notes()
    board.size = 3
    heart = Heartbeat(board, ("worker 0", "rank 1", "rank 2"))
    heart.stop.delivered = 3
    heart._beat(board)
    for rank, delivered in ((1, steps), (2, 2)):
        said = {**json.loads(board.notes[0]), "beat": 9, "steps": delivered, "has_left": True}
        board.notes[rank] = json.dumps(said)
    heart._beat(board)
    with pytest.raises(tdi.PeerFailedError, match=expected):
        PeerMonitor(heart, "iteration 0", 0, timeout=1.0).call_roll()


def test_an_iteration_that_is_closed_late_leaves_the_next_one_as_it_is():
    """The collector may find an iterator in any thread, while main is in the next epoch."""
    heart = Heartbeat(Notes())
    first = PeerMonitor(heart, "iteration 0", 0, timeout=1.0)
    first.leave(0)
    assert (0, 1) == heart.progress.reached
    second = PeerMonitor(heart, "iteration 1", 1, timeout=1.0)
    second.leave(0)
    first.close()
    first.leave(1)
    assert second.is_newest
    assert (1, 1) == heart.progress.reached
    second.close()
    second.leave(1)
    assert not second.is_newest
    assert (1, LEFT) == heart.progress.reached


LEFT_LOOP = {"reached": [0, LEFT]}


@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        ({**LEFT_LOOP, "steps": 2}, True),
        ({**LEFT_LOOP, "steps": 3}, True),  # in this step, before it came to the collective
        ({"reached": [1, 0], "steps": 2}, False),  # in a loop inside of this one, perhaps
        ({**LEFT_LOOP, "activity": "waiting for the others at iteration 1", "steps": 2}, False),
        ({"has_left": True, "steps": 2}, True),
        ({**LEFT_LOOP, "steps": 4}, False),  # it was ahead
        ({"reached": [0, 2], "steps": 2}, False),  # it is slow
    ],
)
def test_who_stays_in_a_step_that_others_do_not_come_to_is_told_why(
    monkeypatch, caplog, said, is_told
):
    """A break on one worker leaves the others in the collectives of a training step."""
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    board = Notes()
    heart = Heartbeat(board)
    monitor = PeerMonitor(heart, "iteration 0", 0, timeout=1.0)
    for step in range(3):
        monitor.leave(step)
    heart._beat(board)
    board.notes[1] = json.dumps({**json.loads(board.notes[0]), "beat": 9, **said})
    for now[0] in (100.0 + heartbeat._ALONE_SECONDS - 1, 200.0, 300.0):
        heart._beat(board)
        assert is_told == bool(caplog.messages) or now[0] < 200.0
    if is_told:
        (words,) = caplog.messages
        assert "worker 0 has been training after step 2 of iteration 0 for 100 s" in words
        assert "(worker 1: " in words
        assert "leave a loop at the same step" in words


def test_steps_are_told_as_they_were_delivered():
    """Though they are counted on from elsewhere after an error."""
    board = Notes()
    heart = Heartbeat(board)
    monitor = PeerMonitor(heart, "iteration 0", 0, timeout=1.0)
    heart.stop.skip_ahead()
    for step in range(3):
        monitor.leave(step)
    heart._beat(board)
    board.notes[1] = board.notes[0]
    heart._beat(board)
    assert "with 3 steps delivered" in heart.peers.describe([1])


def test_a_worker_says_that_its_loop_waits_for_its_own_data(monkeypatch, caplog):
    """Once an iteration: of others, who wait in a collective, none can tell."""
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    board = Notes()
    heart = Heartbeat(board)
    monitor = PeerMonitor(heart, "iteration 0", 0, timeout=600.0)
    monitor.enter(0)
    monitor.reading(0)
    monitor.leave(0)  # a thread may read the next step meanwhile
    monitor.reading(1)
    for now[0] in (140.0, 200.0):
        heart._beat(board)
        assert not caplog.messages
    monitor.enter(1)
    for now[0] in (201.0, 300.0):
        heart._beat(board)
        (words,) = caplog.messages
        assert "worker 0 has been reading step 1 of iteration 0 for 101 s" in words


def test_who_has_left_its_loop_itself_is_not_told(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    board = Notes()
    heart = Heartbeat(board)
    monitor = PeerMonitor(heart, "iteration 0", 0, timeout=1.0)
    monitor.leave(0)
    monitor.close()
    for now[0] in (101.0, 200.0):
        heart._beat(board)
        board.notes[1] = board.notes[0]
    assert not caplog.messages
