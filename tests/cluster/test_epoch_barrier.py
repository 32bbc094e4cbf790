"""Who is waited for at the end of an epoch, by what is heard of the others."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.cluster import epoch_barrier
from torch_distinput.cluster.epoch_barrier import EpochBarrier
from torch_distinput.cluster.liveness.process_identity import ProcessIdentity
from torch_distinput.cluster.liveness.status import LEFT, Status
from torch_distinput.communicator import BoardClosedError
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

TOPIC = "iteration 3"
OWN = (3, 10)


def status(reached=(3, 9), *, gone=False):
    """What another worker has posted."""
    return Status(
        process=ProcessIdentity("here", 1, "0"),
        beat=0,
        steps=0,
        activity=f"training after step 0 of {TOPIC}",
        seconds=0.0,
        vote=None,
        failed=None,
        reached=reached,
        has_left=gone,
    )


class Company:
    """The others, of whom is heard what is written, look by look; then the last of it.

    It is heartbeat, peers, monitor and stop at once, as far as they are asked.
    """

    is_newest = True
    is_closed = False
    reached = OWN
    progress = property(lambda self: self)
    outside = lost = None
    has_claim = True

    def __init__(self, *heard) -> None:
        self.said = list(heard)
        self.num_looks = 0
        self.peers = self.stop = self

    def unclaim(self) -> None:
        self.has_claim = False

    def check_open_loops(self) -> None:
        said = self.said[min(self.num_looks, len(self.said) - 1)]
        if isinstance(said, Exception):
            raise said

    def look(self) -> None:
        self.num_looks += 1

    @property
    def others(self):
        return [1, 2]

    @property
    def in_view(self):
        return list(self._statuses)

    def status(self, worker):
        return self._statuses.get(worker)

    def describe(self, workers) -> str:
        return f"workers {sorted(workers)}"

    @property
    def _statuses(self):
        return self.said[min(self.num_looks, len(self.said) - 1)]


class Workers:
    """They come when some looks are over; or one of them does not come."""

    def __init__(self, come_after=1000, error=None) -> None:
        self.come_after, self.error = come_after, error

    def join(self, topic, text, merge, *, timeout, gone):
        assert topic == f"end of {TOPIC}"
        for _ in range(self.come_after):
            if self.error is not None:
                raise self.error
            gone()
        return merge([text, text])


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """A clock that goes on by a second when it is looked at, and nobody sleeps."""
    seconds = itertools.count()
    monkeypatch.setattr(epoch_barrier.time, "sleep", lambda _: None)
    monkeypatch.setattr(
        "torch_distinput.cluster.liveness.wait_limit.time.monotonic", lambda: float(next(seconds))
    )


def wait(company, workers=None, timeout=5.0):
    """How many looks it takes, at which somebody is waited for."""
    EpochBarrier(workers or Workers(), company, company, TOPIC, timeout=timeout).wait()
    return company.num_looks


def test_all_come():
    company = Company({1: status()})
    assert 2 == wait(company, Workers(come_after=2))
    assert f"waiting for the others at the end of {TOPIC}" == company.outside.words
    assert not company.has_claim  # there is no step for which it would have to answer


def test_one_fails_meanwhile():
    with pytest.raises(PeerFailedError, match="rotten"):
        wait(Company({1: status()}, {1: status()}, PeerFailedError("rotten")))


@pytest.mark.parametrize("reached", [(3, 10), (3, LEFT), (4, 0), (5, LEFT)])
def test_one_is_as_far_and_does_not_come(reached):
    """It holds the loop open behind the last step, has left it, or is in a later one."""
    late, there = status(), status(reached)
    assert 2 == wait(Company({1: late, 2: there}, {1: late, 2: there}, {1: there, 2: there}))


@pytest.mark.parametrize("reached", [(3, 9), (2, LEFT), (-1, LEFT)])
def test_one_is_behind(reached):
    """What it said last may be of the epoch before."""
    assert 4 == wait(Company({1: status(reached)}), Workers(come_after=4))


def test_one_has_gone_for_good():
    assert 0 == wait(Company({1: status(gone=True)}))


@pytest.mark.parametrize("heard", [{}, {1: None}])
def test_one_of_which_nothing_is_heard_is_waited_for(heard):
    assert 4 == wait(Company(heard), Workers(come_after=4))


@pytest.mark.parametrize(("name", "value"), [("is_closed", True), ("is_newest", False)])
def test_a_process_that_ends_and_a_loop_that_is_closed_wait_no_more(name, value):
    class Closing(Company):
        def look(self) -> None:
            super().look()
            setattr(self, name, value)

    assert 1 == wait(Closing({1: status()}))


def test_who_moves_is_waited_for_and_who_does_not_is_given_up(caplog):
    """The limit counts from the last step that was heard of."""
    moves = [{1: status((3, step))} for step in range(9)]
    assert 9 < wait(Company(*moves), timeout=5.0) < 9 + 8
    (record,) = caplog.records
    assert "nothing has moved for 5 s (workers [1])" in record.getMessage()


def test_nobody_can_be_asked_any_more(caplog):
    """As when the rank that hosts the store has ended first; before that nobody had failed."""
    company = Company({1: status()})
    company.lost = BoardClosedError("connection reset", on_purpose=False)
    assert 0 == wait(company, Workers(error=PeerFailedError("lost")))
    assert "the store of the process group is gone" in caplog.text


@pytest.mark.parametrize("error", [PeerFailedError("gone"), PeerTimeoutError("late", (1,))])
def test_it_goes_on_by_what_is_heard_when_one_does_not_come(error):
    late = status()
    assert 2 == wait(Company({1: late}, {1: late}, {1: status(OWN)}), Workers(error=error))


def test_loops_inside_of_each_other_end_as_they_come():
    company = Company({1: status()})
    company.is_newest = False
    assert 0 == wait(company)
    assert company.outside is None
