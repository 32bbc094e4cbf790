"""Signs of life of many workers: one reads all and tells the others, until it is gone itself."""

from __future__ import annotations

from functools import partial

import pytest

import torch_distinput as tdi
from tests.cluster.many_workers import SIZE, TIMEOUT, TOPIC, Town
from tests.distribute.street import options, stream_of
from torch_distinput.cluster.liveness import watch
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.process_identity import ProcessIdentity
from torch_distinput.cluster.liveness.status import Activity, IterationFailure
from torch_distinput.cluster.liveness.summary import Summary
from torch_distinput.communicator import BoardClosedError
from torch_distinput.testing import simulate

WAITING = Activity("waiting for the others at", TOPIC, 7)


@pytest.fixture
def town(monkeypatch):
    return Town(monkeypatch)


def test_one_worker_reads_all_and_the_others_one_text(town):
    before = [board.num_read for board in town.boards]
    town.live(10)
    read = [board.num_read - first for board, first in zip(town.boards, before, strict=True)]
    assert [10 * (SIZE + 1)] + [10] * (SIZE - 1) == read
    assert [0] == town.watchers


def test_few_workers_all_read_all(monkeypatch):
    town = Town(monkeypatch, size=watch.ALL_READ)
    assert watch.ALL_READ == len(town.watchers)
    assert [] == town.summaries


def test_what_is_told_of_many_who_all_do_alike_is_short(monkeypatch):
    few, many = (Town(monkeypatch, size=size).summaries[-1] for size in (20, 200))
    assert len(many) < 1.1 * len(few)


@pytest.mark.parametrize("victim", [0, 1, 7, SIZE - 1])
def test_a_worker_that_falls_silent_is_named_by_all_and_nobody_else(town, victim):
    """Not before the timeout, and soon after it: the watcher's words take two beats."""
    town.alive.discard(victim)
    for heart in town.hearts:
        heart.peers.has_died = lambda _: False  # on another machine
    town.live(int(TIMEOUT) - 1)
    assert {""} == set(town.all_words().values())
    town.live(4)
    for words in town.all_words().values():
        assert f"but rank {10 * victim} gave none" in words


@pytest.mark.parametrize("victims", [{0, 1}, {0, 7, 8}, {3, 4, 5}])
def test_workers_that_die_together_with_the_watcher_are_all_named(town, victims):
    town.alive -= victims
    for heart in town.hearts:
        heart.peers.has_died = lambda _: False
    town.live(int(TIMEOUT) + 6)
    for words in town.all_words().values():
        assert all(f"rank {10 * victim}:" in words for victim in victims), words
        assert len(victims) == words.count("last heard of")


@pytest.mark.parametrize("victim", [0, 7])
def test_a_killed_process_is_named_by_those_of_its_machine(town, victim):
    gone = ProcessIdentity("this machine", 2**22 + 1, "1")
    for heart in town.hearts:
        heart.peers._process = gone._replace(number=1)
    town.hearts[victim]._process = gone
    town.live(3)
    town.alive.discard(victim)
    town.live(5)
    for words in town.all_words().values():
        assert f"the process of rank {10 * victim} has ended without an error" in words


def test_one_of_the_others_takes_the_place_of_a_watcher_that_died(town):
    town.alive.discard(0)
    town.live(5)
    (successor,) = town.watchers
    town.live(20)
    assert [successor] == town.watchers
    town.alive.discard(successor)
    town.live(5)
    (third,) = town.watchers
    assert third not in (0, successor)


def test_who_takes_the_place_takes_nobody_for_silent_who_is_not(town):
    """Whom it has read of once it may not have read of in time."""
    town.alive.discard(0)
    num_before = len(town.summaries)
    town.live(8)
    summaries = map(Summary.read, town.summaries[num_before:])
    silent = {name for one in summaries for name, (_, ago) in one.told.items() if ago > 1.5}
    assert {town.names[0]} == silent


def test_who_takes_the_place_counts_silence_from_the_last_summary(town):
    """Not from when it began to listen."""
    town.alive -= {0, 9}
    town.live(8)
    (successor,) = town.watchers
    peers = town.hearts[successor].peers
    silences = {peers.names[worker]: peers.silence(worker) for worker in peers.others}
    assert {"rank 0", "rank 90"} == {name for name, seconds in silences.items() if seconds > 6}


def test_who_claims_and_dies_keeps_the_others_waiting_for_some_beats_only(town):
    town.alive.discard(0)
    town.terms.add(0)  # somebody did, and was never heard of
    town.live(4)
    assert [] == town.watchers
    town.live(5)
    (successor,) = town.watchers
    assert 2 == town.hearts[successor]._watch._term


def test_a_watcher_that_was_stopped_for_a_while_gives_way(town):
    town.alive.discard(0)
    town.live(6)
    town.alive.add(0)
    town.live(4)
    assert 1 == len(town.watchers)
    assert 0 not in town.watchers
    assert {""} == set(town.all_words().values())


def test_what_a_watcher_says_that_was_replaced_is_not_heard(town):
    """It was stopped between its two looks at the board."""
    late = town.summaries[-1]
    town.alive.discard(0)
    town.live(6)
    before = town.watchers
    town.summaries.append(late)
    town.live(1)
    assert before == town.watchers
    assert {1} == {town.hearts[worker]._watch._term for worker in town.alive}


def test_a_watcher_that_leaves_has_a_successor_at_once(town):
    town.leave(0)
    town.live(3)
    (successor,) = town.watchers
    assert 0 != successor


@pytest.mark.parametrize("victim", [0, 5])
def test_who_has_left_is_named_by_all_with_its_last_words(town, victim):
    town.hearts[victim].failed = IterationFailure(TOPIC, "ArithmeticError: rotten record", 0)
    town.leave(victim)
    town.live(4)
    for words in town.all_words().values():
        assert f"rank {10 * victim}: ArithmeticError: rotten record" in words


def test_who_asks_why_waits_for_what_the_watcher_had_not_heard_yet(town):
    """The next summary may be older than the words."""
    town.order.sample = lambda workers, _: sorted(workers, reverse=True)  # the watcher comes last
    town.hearts[0]._beat(town.boards[0])
    town.hearts[9].failed = IterationFailure(TOPIC, "ArithmeticError: rotten record", 0)
    town.hearts[9]._post(town.boards[9])
    with pytest.raises(tdi.PeerFailedError, match="rank 90: ArithmeticError: rotten record"):
        PeerMonitor(town.hearts[11], TOPIC, 0, timeout=TIMEOUT).ask_why([3], "a step")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 5])
def test_who_has_left_without_a_word_is_named_by_all(town, victim):
    town.leave(victim)
    town.live(4)
    for words in town.all_words().values():
        assert f"rank {10 * victim} closed the iterator or left its loop" in words


def assert_all_hear_of_rank_90(town):
    """But for itself, which is worker 9."""
    for worker, words in town.all_words().items():
        assert worker == 9 or "rank 90: ArithmeticError: rotten record" in words


def test_the_newest_of_many_failures_is_heard_by_all(town):
    earlier = IterationFailure("an earlier iteration", "ArithmeticError: long ago", 0)
    for worker in range(20, 39):
        town.hearts[worker].failed = earlier
    town.live(3)
    town.hearts[9].failed = IterationFailure(TOPIC, "ArithmeticError: rotten record", 0)
    town.live(3)
    assert_all_hear_of_rank_90(town)


def test_a_failure_is_heard_by_all_though_many_have_failed_of_it(town):
    for worker in range(1, SIZE):
        town.hearts[worker].failed = IterationFailure(TOPIC, "PeerFailedError: worker 9 failed", 0)
    town.live(2)
    town.hearts[9].failed = IterationFailure(TOPIC, "ArithmeticError: rotten record", 0)
    town.live(3)
    assert_all_hear_of_rank_90(town)


def test_a_whole_job_that_was_suspended_names_nobody_when_it_goes_on(town):
    town.now += 3600.0
    for _ in range(6):
        town.live(1)
        assert {""} == set(town.all_words().values())


def test_the_late_one_of_many_is_told_of(town):
    for worker, heart in enumerate(town.hearts):
        reads = worker == 33
        heart.outside = WAITING._replace(verb="reading" if reads else WAITING.verb)
    town.live(3)
    for worker in town.alive - {33}:
        peers = town.hearts[worker].peers
        late = [peers.names[other] for other in peers.late(WAITING)]
        assert ["rank 330"] == late


@pytest.mark.parametrize("highest", [0, 17, 30])
def test_all_stop_after_the_highest_vote(town, highest):
    for worker, heart in enumerate(town.hearts):
        heart.stop.claimed = 12 if worker == highest else 5 + worker % 7
    town.hearts[17].stop.is_requested = True
    town.live(6)
    assert {13} == {heart.stop.at for heart in town.hearts}


def test_nobody_stops_before_all_have_voted(town):
    town.alive.discard(20)  # held up, and not yet missed
    town.hearts[17].stop.is_requested = True
    town.live(4)
    assert {None} == {town.hearts[worker].stop.at for worker in town.alive}
    town.alive.add(20)
    town.live(4)
    assert 1 == len({heart.stop.at for heart in town.hearts} - {None})
    assert None not in {heart.stop.at for heart in town.hearts}


@pytest.mark.parametrize("victim", [0, 21])
def test_a_roll_call_names_who_does_not_answer_and_nobody_else(town, victim):
    for heart in town.hearts:
        heart.peers.has_died = lambda _: False
    town.alive.discard(victim)
    with pytest.raises(tdi.PeerFailedError, match=f"but rank {10 * victim} died") as got:
        PeerMonitor(town.hearts[11], TOPIC, 0, timeout=TIMEOUT).call_roll()
    assert 1 == str(got.value).count("last heard of")


def test_a_board_that_is_closed_ends_the_beat(town):
    def close(_):
        raise BoardClosedError("gone", on_purpose=True)

    town.boards[3].claim = town.boards[3].post = close
    with pytest.raises(BoardClosedError, match="gone"):
        town.hearts[3]._beat(town.boards[3])


def play(strategy, *, asks=None, raises=None):
    """Steps of a stream of which one worker asks to stop, or raises; how it ended for this one."""
    dataset = strategy.distribute_dataset(
        stream_of(range(4000)), global_batch_size=4, options=options(timeout=4.0)
    )
    try:
        for step, _ in enumerate(dataset):
            if step == 5 and strategy.worker_index == asks:
                strategy.request_stop()
            if step == 5 and strategy.worker_index == raises:
                msg = "rotten record"
                raise ArithmeticError(msg)
            if strategy.stop_requested:
                return step
    except tdi.PeerFailedError as error:
        return str(error)
    return None


@pytest.fixture
def watched(monkeypatch):
    """Few workers behave as many do."""
    monkeypatch.setattr(watch, "ALL_READ", 1)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("asks", [0, 2])
def test_a_request_to_stop_reaches_all_over_the_watcher(asks):
    steps = simulate(partial(play, asks=asks), num_workers=4)
    assert 1 == len(set(steps))
    assert steps[0] > 5


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("victim", [0, 2])
def test_the_words_of_a_failed_worker_reach_all_over_the_watcher(victim):
    heard = []

    def work(strategy):
        heard.append(play(strategy, raises=victim))

    with pytest.raises(ArithmeticError):
        simulate(work, num_workers=4)
    assert 3 == len(heard)
    assert all(f"worker {victim}: ArithmeticError: rotten record" in words for words in heard)
