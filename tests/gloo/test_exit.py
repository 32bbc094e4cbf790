"""Nothing may hold up an exit, not a source that does not return, and it makes no noise.

A peer that hangs: see ``test_a_stopped_rank`` in test_failures.py.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LIMIT = 100
"""Seconds: a tenth of those that the source takes."""

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


@pytest.mark.slow
def test_a_source_that_does_not_return(tmp_path):
    """A thread inside a user's Python is left there."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(BLOCKED))
    command = [sys.executable, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "the last line\n" == process.stdout.readline()
        assert 0 == process.wait(LIMIT)


OPEN_LOOP = """
    import torch_distinput as tdi

    def numbers(dataset):
        iterator = iter(dataset)
        try:
            yield from iterator
        finally:
            iterator.close()

    strategy = tdi.OneDeviceStrategy("cpu")
    loop = numbers(strategy.distribute_dataset(list(range(8)), global_batch_size=4))
    next(loop)
"""


@pytest.mark.slow
def test_a_loop_that_is_open_at_the_exit_says_nothing(tmp_path):
    """Python runs its ``finally`` when our modules have lost their names."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(OPEN_LOOP))
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (0, "") == (done.returncode, done.stderr)
