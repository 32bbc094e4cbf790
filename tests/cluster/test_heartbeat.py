"""The thread of a worker's heartbeat ends: the worker learns it, whatever it was."""

from __future__ import annotations

import pytest

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.communicator import BoardClosedError

SECONDS = 100
"""A watchdog."""


class Broken:
    """A board, of two workers, that cannot be read; and the meeting that has it."""

    rank, size, ranks, names = 0, 2, (0, 1), (0, 1)

    def __init__(self, error) -> None:
        self.error = error

    def open_board(self):
        return self

    def post(self, text) -> None:
        pass

    def read(self):
        raise self.error


def beat_until_the_end(error):
    heartbeat = Heartbeat(Broken(error))
    heartbeat.start(1.0)
    heartbeat._thread.join(SECONDS)
    return heartbeat.lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BoardClosedError("the store is gone", on_purpose=False), "the store is gone"),
        (RuntimeError("Broken pipe"), "Broken pipe"),
        (ValueError("a status of another version"), "ValueError: a status of another version"),
    ],
)
def test_an_error_of_the_board_is_noted(error, said):
    assert said == str(beat_until_the_end(error))


@pytest.mark.slow
def test_a_board_that_was_closed_on_purpose_is_none():
    assert beat_until_the_end(BoardClosedError("by close()", on_purpose=True)) is None
