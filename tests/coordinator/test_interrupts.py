"""Ctrl-C in a call of the coordinator: it ends the call, and nothing else."""

from __future__ import annotations

import linecache
import os
import signal
import threading

import pytest

from tests.coordinator.simulated_engine import Gate
from tests.coordinator.waiting import SECONDS, add, hold_once, pass_through
from tests.interrupts import interrupt_at
from torch_distinput.coordinator.closures import queue as queue_module


class TestInterrupts:
    @pytest.fixture(autouse=True)
    def handler(self):
        """That of a terminal: a job in the background ignores Ctrl-C."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_ctrl_c_ends_a_join_and_nothing_else(self, coordinator, waits, pool) -> None:
        gate = Gate("interrupted")
        value = coordinator.schedule(pass_through, args=(gate, 5))
        gate.expect()
        waits.has_timeout = True
        waits.watch(threading.main_thread())
        pool.submit(interrupt, waits)
        with pytest.raises(KeyboardInterrupt):
            coordinator.join()
        gate.open()
        coordinator.join()
        assert 5 == value.fetch()
        assert 1 == coordinator.schedule(add, args=(1,)).fetch()

    @pytest.mark.parametrize("call", ["put", "join", "done", "hold", "dataset"])
    def test_ctrl_c_at_any_line_leaves_the_queue_whole(self, coordinator, call) -> None:
        """Raise KeyboardInterrupt at the first, second, ... line that runs under the call."""
        calls = {
            "put": lambda: coordinator.schedule(add, args=(1,)),
            "join": coordinator.join,
            "done": coordinator.done,
            "hold": lambda: hold_once(coordinator),
            "dataset": lambda: coordinator.create_per_worker_dataset([1]),
        }
        for number in range(1, 200):
            was_reached = interrupt_in_queue(number, calls[call])
            assert coordinator._queue._lock.acquire(timeout=SECONDS), number
            coordinator._queue._lock.release()
            coordinator.join()
            assert 2 == coordinator.schedule(add, args=(2,)).fetch()
            if not was_reached:
                assert number > 3
                return
        pytest.fail("the call has more lines than were tried")


def interrupt(waits) -> None:
    waits.expect()
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_in_queue(number, call) -> bool:
    """Whether as many lines, or returns, of the queue and of its condition were reached."""
    files = {queue_module.__file__, threading.__file__}
    # The latter from wait(), whose lock is not back yet.
    raised = (KeyboardInterrupt, RuntimeError)
    return interrupt_at(number, call, watches=files.__contains__, counts=may_break, raised=raised)


def may_break(frame, event) -> bool:
    """Not in a line of ``with``: that is C, both ways."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return event in ("line", "return") and not line.startswith("with ")
