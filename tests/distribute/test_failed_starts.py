"""Epochs that could not begin on all workers, and what is possible after them."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.distribute.street import options, stream_of
from torch_distinput.distribute.epoch_warnings import EpochWarnings
from torch_distinput.errors import PEER_ERRORS
from torch_distinput.testing import simulate

LIMIT = 30.0
PATIENCE = 4.0
"""More than the second that a worker waits for a reader that does not return."""
STEPS = 200
"""More than are read ahead."""


class Broken(BaseException):
    """As an interruption from the keyboard."""


def test_an_error_behind_the_start_of_the_threads_ends_them(monkeypatch):
    """There is no iterator that could be closed; the next one plays."""
    begin = EpochWarnings.begin

    def break_off(self, position):
        if position.epoch == 0:
            raise Broken
        begin(self, position)

    monkeypatch.setattr(EpochWarnings, "begin", break_off)

    def work(strategy):
        dataset = strategy.distribute_dataset(
            stream_of(range(STEPS)), global_batch_size=1, options=options(timeout=LIMIT)
        )
        with pytest.raises(Broken):
            iter(dataset)
        dataset.set_epoch(1)
        return sum(1 for _ in dataset)

    assert [STEPS, STEPS] == simulate(work, num_workers=2)


@pytest.mark.slow
def test_who_could_not_begin_an_epoch_does_not_vote_in_the_next():
    """Its votes would be taken for those of the epoch that the others have begun."""
    is_reading, read_on = threading.Event(), threading.Event()
    both = threading.Barrier(2, timeout=LIMIT)

    def work(strategy):
        is_slow = strategy.worker_index == 0

        def stream():
            for number in range(8):
                if is_slow and number == 3:
                    is_reading.set()
                    read_on.wait(LIMIT)
                yield torch.tensor([number])

        dataset = strategy.distribute_datasets_from_function(
            lambda context: stream, options=options(timeout=PATIENCE)
        )
        with iter(dataset) as iterator:
            next(iterator)
            assert is_reading.wait(LIMIT)
        said = []
        for _ in range(2):
            dataset.set_epoch(1)
            with pytest.raises(PEER_ERRORS) as caught:
                next(iter(dataset))
            said.append(str(caught.value))
            read_on.set()
            both.wait()
        return said

    said = simulate(work, num_workers=2)
    assert "this worker's source has not returned" in said[0][0]
    assert "Restart the job" in said[0][1]
    assert "worker 0" in said[1][1]
