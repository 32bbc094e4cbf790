"""Whatever happens to a worker, the others end: random faults over simulated workers."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import options
from torch_distinput.cluster.liveness import peer_monitor
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.errors import PEER_ERRORS
from torch_distinput.testing import simulate, simulated

LIMIT = 60.0
TIMEOUT = 1.0
EXAMPLES = 24


@dataclass(frozen=True)
class Fault:
    """What happens to a worker, where, and at which of its examples or steps."""

    kind: str
    place: str
    number: int


faults = st.builds(
    Fault,
    kind=st.sampled_from(["raise", "leave", "hang", "slow"]),
    place=st.sampled_from(["source", "loop"]),
    number=st.integers(0, 5),
)


class Scene:
    """Carries out the faults; who hangs is freed when nobody else is left."""

    def __init__(self, planned):
        self.planned = planned
        self.is_well = all(fault is None or fault.kind == "slow" for fault in planned.values())
        self.saved = {worker: [] for worker in planned}  # examples of each step, state after it
        self.done = dict.fromkeys(planned, False)
        self.changed = threading.Condition()

    def happens(self, worker, place, number):
        """True if the worker has to leave."""
        fault = self.planned[worker]
        if fault is None or (fault.place, fault.number) != (place, number):
            return False
        if fault.kind == "raise":
            msg = "rotten"
            raise ArithmeticError(msg)
        if fault.kind == "hang":
            self.hang(worker)
        if fault.kind == "slow":
            time.sleep(0.02)
        return fault.kind == "leave" and place == "loop"

    def hang(self, worker):
        if threading.current_thread().name.startswith("torch_distinput"):
            worker = None  # its main thread goes on
        with self.changed:
            self.mark(worker)
            assert self.changed.wait_for(lambda: all(self.done.values()), LIMIT)

    def mark(self, worker):
        with self.changed:
            if worker is not None:
                self.done[worker] = True
            self.changed.notify_all()


class Examples:
    def __init__(self, scene, worker):
        self.scene, self.worker, self.read = scene, worker, 0

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        self.scene.happens(self.worker, "source", self.read)
        self.read += 1
        return torch.tensor(index)


def stream(scene, worker):
    for number in range(EXAMPLES):
        scene.happens(worker, "source", number)
        yield torch.tensor(number)


def play(scene, known, coupled, strategy):
    """Return how a worker ended."""
    worker = strategy.worker_index
    source = Examples(scene, worker) if known else (lambda: stream(scene, worker))
    try:
        # Where nobody fails, nobody is taken for gone whom the machine holds up for a while.
        limit = options(timeout=LIMIT if scene.is_well else TIMEOUT)
        dataset = strategy.distribute_dataset(source, global_batch_size=4, options=limit)
        steps = 0
        for epoch in range(2):
            for batch in dataset:
                if not epoch:
                    if scene.happens(worker, "loop", steps):
                        return "left"
                    scene.saved[worker].append((batch.tolist(), json.dumps(dataset.state_dict())))
                steps += 1
                if coupled:
                    strategy.reduce("sum", 1)
    except Exception as error:  # noqa: BLE001 - judged by the test
        return error
    else:
        return steps
    finally:
        scene.mark(worker)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10 if LONG else 1))  # each within a test's time limit
@settings(max_examples=100 if LONG else 40)
@given(
    st.lists(st.none() | faults, min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_every_worker_ends(part, planned, known, coupled, afterwards):
    """With a whole epoch or with a clear error, in bounded time; and no thread stays.

    From the last step that all of them saved, any number of workers finishes the epoch.
    """
    del part
    scene = Scene(dict(enumerate(planned)))
    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_monitor, "_ROLL_CALL_SECONDS", 0.4)
        if not scene.is_well:
            patch.setattr(simulated, "_PATIENCE_SECONDS", 1.25 * TIMEOUT)
        started = time.monotonic()
        outcomes = simulate(
            lambda strategy: play(scene, known, coupled, strategy), num_workers=len(planned)
        )
    assert time.monotonic() - started < LIMIT
    if scene.is_well:
        assert [2 * EXAMPLES // 4] * len(planned) == outcomes
    for worker, outcome in enumerate(outcomes):
        check(worker, outcome, planned[worker])
    finish(scene.saved.values(), known, afterwards)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("torch_distinput"):
            thread.join(LIMIT)
            assert not thread.is_alive(), thread.name


def finish(saved, known, num_workers):
    steps = list(zip(*saved, strict=False))  # those that every worker saved
    state = steps[-1][0][1] if steps else None
    assert all(len({said for _, said in step}) == 1 for step in steps)

    def go_on(strategy):
        worker = strategy.worker_index
        scene = Scene({worker: None})
        source = Examples(scene, worker) if known else (lambda: stream(scene, worker))
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        return [example for batch in dataset for example in batch.tolist()]

    before = [example for step in steps for batch, _ in step for example in batch]
    rest = [example for worker in simulate(go_on, num_workers=num_workers) for example in worker]
    assert sorted(before + rest) == list(range(EXAMPLES))


def check(worker, outcome, fault):
    if isinstance(outcome, tdi.SourceError):
        assert fault is not None
        assert "raise" == fault.kind
        # Some examples with an index are looked at before the first step.
        at_start = re.match(r"The source raised ArithmeticError at example \d+: ", str(outcome))
        assert at_start or f"Worker {worker}, step" in str(outcome)
        assert "rotten" in str(outcome)
    elif isinstance(outcome, PEER_ERRORS):
        assert "worker" in str(outcome)
    elif isinstance(outcome, Exception) and not isinstance(outcome, ChannelBrokenError):
        assert fault is not None, repr(outcome)
        assert ("raise", "loop") == (fault.kind, fault.place), repr(outcome)
        assert "rotten" == str(outcome)
    elif outcome == "left":
        assert fault is not None
        assert "leave" == fault.kind
