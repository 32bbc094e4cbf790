"""Who is waited for at the end of an epoch, by what is heard of the others."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.cluster import epoch_barrier
from torch_distinput.cluster.epoch_barrier import EpochBarrier
from torch_distinput.cluster.liveness.process_identity import ProcessIdentity
from torch_distinput.cluster.liveness.status import Status
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

PLACE = "iteration 3"


def status(*, steps=0, beat=0, activity=f"training after step 0 of {PLACE}", left="", gone=False):
    """What another worker has posted."""
    return Status(
        process=ProcessIdentity("here", 1, "0"),
        beat=beat,
        steps=steps,
        activity=activity,
        seconds=0.0,
        vote=None,
        failed=None,
        left=left,
        has_left=gone,
    )


class Company:
    """The others, of whom is heard what is written, look by look; then the last of it.

    It is heartbeat, peers and monitor at once, as far as they are asked.
    """

    hears_all = True
    is_inside = False
    delivered = 10
    left = ""
    outside = None

    def __init__(self, *heard) -> None:
        self.said = list(heard)
        self.num_looks = 0
        self.peers = self.heard = self.stop = self

    def is_newest(self, topic) -> bool:
        return topic == PLACE and not self.is_inside

    def check_failures(self) -> None:
        if isinstance(self._said(self.num_looks), Exception):
            raise self._said(self.num_looks)

    def look(self) -> None:
        self.num_looks += 1

    @property
    def in_view(self):
        return list(self._said(self.num_looks - 1))

    def status(self, worker):
        return self._said(self.num_looks - 1)[worker]

    def describe(self, workers) -> str:
        return f"workers {sorted(workers)}"

    def _said(self, look):
        return self.said[min(max(look, 0), len(self.said) - 1)]


class Workers:
    """They come when some looks are over; or one of them does not come."""

    def __init__(self, come_after=None, error=None) -> None:
        self.come_after, self.error = come_after, error

    def join(self, topic, text, merge, *, timeout, gone):
        assert topic == f"end of {PLACE}"
        for _ in range(1000) if self.come_after is None else range(self.come_after):
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
    """How many looks it takes."""
    EpochBarrier(workers or Workers(), company, company, PLACE, timeout=timeout).wait()
    return company.num_looks


def test_all_come():
    company = Company({1: status()})
    assert 2 == wait(company, Workers(come_after=2))
    assert f"waiting for the others at the end of {PLACE}" == company.outside.words


def test_one_fails_meanwhile():
    with pytest.raises(PeerFailedError, match="rotten"):
        wait(Company({1: status()}, PeerFailedError("rotten")))


def test_one_has_delivered_as_much_and_does_not_come():
    """It may have left the loop behind the last step, or hold it open."""
    late, there = status(steps=9), status(steps=10)
    assert 3 == wait(Company({1: late, 2: there}, {1: late, 2: there}, {1: there, 2: there}))


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"left": PLACE},
        {"activity": "waiting for the others at the start of iteration 4"},
        {"activity": "training after step 0 of iteration 13"},
    ],
)
def test_one_is_out_of_the_loop(elsewhere):
    """As it says at least two beats later: before, that may be of the epoch before."""
    assert 3 == wait(Company(*({1: status(beat=beat, **elsewhere)} for beat in (7, 8, 9))))


def test_one_has_gone_for_good():
    assert 1 == wait(Company({1: status(gone=True)}))


def test_one_of_which_nothing_is_heard_is_waited_for():
    company = Company({})
    company.hears_all = False
    assert 4 == wait(company, Workers(come_after=4))
    assert 4 == wait(Company({1: None}), Workers(come_after=4))


def test_who_has_closed_the_iterator_waits_no_more():
    company = Company({1: status()})
    company.left = PLACE
    assert 1 == wait(company)


def test_who_moves_is_waited_for_and_who_does_not_is_given_up(caplog):
    """The limit counts from the last step that was heard of."""
    moves = [{1: status(steps=step, beat=step)} for step in range(9)]
    assert 9 < wait(Company(*moves), timeout=5.0) < 9 + 8
    (record,) = caplog.records
    assert "nothing has moved for 5 s (workers [1])" in record.getMessage()


@pytest.mark.parametrize("error", [PeerFailedError("gone"), PeerTimeoutError("late", (1,))])
def test_it_goes_on_by_what_is_heard_when_one_does_not_come(error):
    late = status(steps=9)
    assert 3 == wait(Company({1: late}, {1: late}, {1: status(steps=10)}), Workers(error=error))


def test_a_store_that_does_not_answer_is_an_error():
    with pytest.raises(PeerTimeoutError, match="store"):
        wait(Company({1: status()}), Workers(error=PeerTimeoutError("store", ())))


def test_loops_inside_of_each_other_end_as_they_come():
    company = Company({1: status()})
    company.is_inside = True
    assert 0 == wait(company)
    assert company.outside is None
