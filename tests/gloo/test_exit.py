"""An exit that nothing may hold up: not a source that does not return.

Nor a peer that hangs: see ``test_a_stopped_rank`` in test_failures.py.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

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


def test_a_source_that_does_not_return(tmp_path):
    """A thread inside a user's Python is left there."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(BLOCKED))
    command = [sys.executable, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "the last line\n" == process.stdout.readline()
        assert 0 == process.wait(LIMIT)
