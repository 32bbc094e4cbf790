"""Which rank and station hold up the steps: delays at each of them, and none where none is."""

from __future__ import annotations

import itertools

import pytest

from tests.distribute.reports.measured import play, verdict_of
from torch_distinput.meter import AGREEMENT, COPY, INPUT_STATIONS, STATIONS, YOUR_STEP

RANKS = range(4)
STEPS = 40


def slow_at(rank, station):
    """Everything takes a little, your step 10 ms, and one thing on one rank 20 ms more."""

    def delay(own, _, name):
        usual = 0.010 if name == YOUR_STEP else 0.0 if name == AGREEMENT else 0.0001
        return usual + 0.020 * ((own, name) == (rank, station))

    return delay


@pytest.mark.parametrize(("rank", "station"), list(itertools.product(RANKS, INPUT_STATIONS)))
def test_a_slow_input_is_named_by_rank_and_station(rank, station):
    """The others wait for it in their own step: in the all-reduce that ends it."""
    verdict = verdict_of(play(4, STEPS, slow_at(rank, station), all_reduce=True))
    assert ("input", rank, station) == (verdict.bound, verdict.rank, verdict.station)
    assert ((rank,), YOUR_STEP) == (verdict.ranks, verdict.others_wait_in)
    assert 0.6 < verdict.share < 0.7


@pytest.mark.parametrize(
    ("rank", "station"), [(r, s) for r in RANKS for s in INPUT_STATIONS if s != COPY]
)
def test_where_ranks_vote_the_others_wait_in_the_agreement(rank, station):
    verdict = verdict_of(play(4, STEPS, slow_at(rank, station), all_reduce=True, votes=True))
    assert ("input", rank, station) == (verdict.bound, verdict.rank, verdict.station)
    assert ((rank,), AGREEMENT) == (verdict.ranks, verdict.others_wait_in)


@pytest.mark.parametrize("rank", RANKS)
def test_a_slow_agreement_is_named(rank):
    delay = slow_at(rank, AGREEMENT)
    verdict = verdict_of(play(4, STEPS, delay, all_reduce=True, votes=True))
    assert ("agreement", rank, AGREEMENT) == (verdict.bound, verdict.rank, verdict.station)


@pytest.mark.parametrize("rank", RANKS)
def test_a_step_that_is_slow_on_one_rank_is_named_where_that_can_be_seen(rank):
    """Under an all-reduce all steps are as long: then no rank is named."""
    delay = slow_at(rank, YOUR_STEP)
    alone = verdict_of(play(4, STEPS, delay, all_reduce=False))
    together = verdict_of(play(4, STEPS, delay, all_reduce=True))
    assert ("your step", rank) == (alone.bound, alone.rank)
    assert ("your step", None) == (together.bound, together.rank)


@pytest.mark.parametrize("station", INPUT_STATIONS)
def test_an_input_that_is_slow_on_all_ranks_is_slow_on_all(station):
    def delay(_, __, name):
        return 0.010 if name in (station, YOUR_STEP) else 0.0

    verdict = verdict_of(play(4, STEPS, delay, all_reduce=True))
    assert ("input", station, (0, 1, 2, 3)) == (verdict.bound, verdict.station, verdict.ranks)
    assert verdict.others_wait_in is None


@pytest.mark.parametrize("votes", [False, True])
@pytest.mark.parametrize("station", STATIONS)
@pytest.mark.parametrize("late", [0, 7, STEPS - 1])
def test_one_long_step_is_no_rule(late, station, votes):
    """The first one, in which all starts; one with a checkpoint in it; one stall of 5 s."""

    def delay(rank, step, name):
        usual = 0.010 if name == YOUR_STEP else 0.0001
        return usual + 5.0 * ((rank, step, name) == (2, late, station))

    verdict = verdict_of(play(4, STEPS, delay, all_reduce=True, votes=votes))
    assert ("your step", None) == (verdict.bound, verdict.rank)


def test_bursts_count_by_what_they_take():
    """Eight processes deliver at once: each eighth step waits 80 ms, the others nothing."""

    def delay(_, step, name):
        return 0.010 if name == YOUR_STEP else 0.080 * (name == "source" and step % 8 == 0)

    verdict = verdict_of(play(1, 801, delay, all_reduce=True))
    assert ("input", "source") == (verdict.bound, verdict.station)
    assert 0.4 < verdict.share < 0.55


@pytest.mark.parametrize(("share", "bound"), [(0.09, "your step"), (0.11, "input")])
def test_a_tenth_of_a_step_is_the_limit(share, bound):
    def delay(_, __, name):
        return {"source": share, YOUR_STEP: 1 - share}.get(name, 0.0)

    assert bound == verdict_of(play(2, STEPS, delay, all_reduce=True)).bound


def test_a_few_steps_are_too_few():
    """The first one does not count, and the last one has not ended: so five of seven."""

    def bound(num_steps):
        return verdict_of(play(2, num_steps, slow_at(0, "source"), all_reduce=True)).bound

    assert ["unknown", "unknown", "input"] == [bound(0), bound(6), bound(7)]


def test_a_verdict_is_a_sentence():
    logs = play(4, STEPS, slow_at(3, "source"), all_reduce=True)
    expected = (
        "Input-bound on rank 3: 66% of its step waits for the source; the others wait for it in "
        "their own step, as in an all-reduce."
    )
    assert expected == str(verdict_of(logs))


def test_the_share_is_of_the_station_and_the_rest_is_said():
    def delay(_, __, name):
        return {"source": 0.3, "decode": 0.1, "collate": 0.1, YOUR_STEP: 0.5}.get(name, 0.0)

    verdict = verdict_of(play(1, STEPS, delay, all_reduce=True))
    assert (30, 50) == (round(verdict.share * 100), round(verdict.input_share * 100))
    expected = (
        "Input-bound on rank 0: 30% of its step waits for the source, and 20% for the rest of its "
        "input."
    )
    assert expected == str(verdict)


def test_with_a_device_the_sentence_claims_the_time_of_the_host_only():
    logs = play(1, STEPS, slow_at(0, "source"), all_reduce=True)
    assert "These are times of the host" in str(verdict_of(logs, has_device=True))
    assert "host" not in str(verdict_of(logs))
