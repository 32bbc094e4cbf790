"""What votes and resume points add up to."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import Vote, VoterState
from torch_distinput.plan.progress.position import BatchLayout, ResumePoint, begin_epoch

LAYOUT = BatchLayout(num_workers=3, replicas_per_worker=1, global_batch_size=4, rebatch="split")


def vote(counts, touched, points=()):
    """A vote of a worker with some steps ready."""
    return Vote(VoterState.RUNNING, tuple(counts), (), tuple(touched), tuple(points))


def point(batch, segment=0):
    """A resume point just before a batch of 4."""
    return ResumePoint(batch=batch, row=4 * batch - 1, segment=segment, start=(batch,))


def count_steps(counter, counts, touched, points, pace):
    """Count the steps of all workers, ``pace`` of them a round."""
    after_steps = []
    for first in range(0, len(counts[0]), pace):
        window = slice(first, first + pace)
        told = [[point for point in own[window] if point] for own in points]
        votes = [
            vote(own[window], two[window], new)
            for own, two, new in zip(counts, touched, told, strict=True)
        ]
        after_steps += counter.add_round(votes, len(votes[0].counts))
    return after_steps


COUNTS = [[2, 0, 3, 1, 1, 0], [1, 1, 1, 1, 0, 0], [0, 0, 4, 0, 0, 2]]
TOUCHED = [[1, 1, 2, 0, 3, 0], [1, 1, 1, 1, 2, 2], [0, 0, 1, 0, 0, 1]]
POINTS = [
    [point(0), None, None, point(1), None, None],
    [None] * 6,
    [None, None, point(0), None, point(1), None],
]


@pytest.mark.parametrize("pace", range(1, 7))
@pytest.mark.parametrize("shared", [False, True])
def test_counts_do_not_depend_on_how_many_steps_a_round_has(pace, shared):
    """Places may be told earlier; one that is ahead of the step is not used."""
    before = begin_epoch(0, LAYOUT, 1 if shared else 3)
    steps_per_batch = 1 if shared else 3
    expected, found = (
        [
            progress.to_position(before, shared=shared)
            for progress in count_steps(
                DeliveryCounter(before, 3, shared=shared, steps_per_batch=steps_per_batch),
                COUNTS, TOUCHED, POINTS, rounds,
            )
        ]
        for rounds in (1, pace)
    )  # fmt: skip
    for one, other in zip(expected, found, strict=True):
        assert one == replace(other, streams=one.streams)
        assert all(
            stream.batch <= other.steps_done // steps_per_batch for stream in other.streams
        )


def test_rows_and_files_add_up():
    before = begin_epoch(0, LAYOUT, 3)
    counter = DeliveryCounter(before, 3, shared=False, steps_per_batch=3)
    positions = [
        progress.to_position(before, shared=False)
        for progress in count_steps(counter, COUNTS, TOUCHED, POINTS, 4)
    ]
    assert [1, 2, 3, 4, 5, 6] == [position.steps_done for position in positions]
    rows = [tuple(itertools.accumulate(own)) for own in COUNTS]
    assert list(zip(*rows, strict=True)) == [position.rows for position in positions]
    most = [tuple(itertools.accumulate(own, max)) for own in TOUCHED]
    assert list(zip(*most, strict=True)) == [position.files_touched for position in positions]


def test_counts_go_on_from_a_position():
    """Rows of the layout, files touched and steps: not from zero."""
    start = begin_epoch(0, LAYOUT, 3)
    before = replace(start, steps_done=4, rows=(5, 6, 7), files_touched=(2, 0, 9))
    counter = DeliveryCounter(before, 3, shared=False, steps_per_batch=3)
    (progress,) = counter.add_round([vote([1], [1]), vote([0], [1]), vote([2], [1])], 1)
    position = progress.to_position(before, shared=False)
    assert (5, (6, 6, 9), (2, 1, 9)) == (
        position.steps_done,
        position.rows,
        position.files_touched,
    )


def test_a_shared_stream_has_one_count_of_rows():
    """The rows of all workers, after those before; no files are counted."""
    before = replace(begin_epoch(0, LAYOUT, 1), rows=(10,))
    counter = DeliveryCounter(before, 3, shared=True, steps_per_batch=1)
    (progress,) = counter.add_round([vote([2], [0])] * 3, 1)
    position = progress.to_position(before, shared=True)
    assert ((16,), ()) == (position.rows, position.files_touched)


def test_a_worker_that_has_ended_brings_nothing():
    """Its vote is shorter than the steps agreed on, or longer than them."""
    before = begin_epoch(0, LAYOUT, 3)
    counter = DeliveryCounter(before, 3, shared=False, steps_per_batch=3)
    votes = [vote([2, 2], [1, 1]), vote([], []), vote([1, 1, 1], [1, 1, 5])]
    after_steps = counter.add_round(votes, 2)
    position = after_steps[-1].to_position(before, shared=False)
    assert ((4, 0, 2), (1, 0, 1)) == (position.rows, position.files_touched)


def test_a_place_is_used_once_its_batch_is_reached():
    """The last one that is not after the batch of the next step."""
    before = begin_epoch(0, LAYOUT, 3)
    counter = DeliveryCounter(before, 3, shared=False, steps_per_batch=2)
    own = [1] * 6
    told = vote(own, own, [point(1), point(2)])
    after_steps = counter.add_round([told, vote(own, own), vote(own, own)], 6)
    batches = [p.to_position(before, shared=False).streams[0].batch for p in after_steps]
    assert [0, 1, 1, 2, 2, 2] == batches
    assert (2,) == after_steps[-1].to_position(before, shared=False).streams[0].segments[0].start


def test_places_told_in_a_round_without_steps_are_kept():
    before = begin_epoch(0, LAYOUT, 3)
    counter = DeliveryCounter(before, 3, shared=False, steps_per_batch=1)
    assert [] == counter.add_round([vote([], [], [point(1)]), *[vote([], [])] * 2], 0)
    (progress,) = counter.add_round([vote([1], [1])] * 3, 1)
    assert 1 == progress.to_position(before, shared=False).streams[0].batch


def test_places_that_are_passed_are_dropped():
    """What is kept does not grow with the epoch."""
    layout = replace(LAYOUT, num_workers=1)
    before = begin_epoch(0, layout, 1)
    counter = DeliveryCounter(before, 1, shared=False, steps_per_batch=1)
    for batch in range(50):
        progress = counter.add_step(1, 1, point(batch + 1))
    assert 2 == len(progress.resume_points[0])
    assert 50 == progress.to_position(before, shared=False).streams[0].batch


@pytest.mark.parametrize("shared", [False, True])
def test_a_single_worker_counts_as_among_others(shared):
    """Step by step, without votes: the same positions."""
    layout = replace(LAYOUT, num_workers=1)
    before = replace(begin_epoch(0, layout, 1), rows=(3,), steps_done=1)
    alone, among = (
        DeliveryCounter(before, 1, shared=shared, steps_per_batch=1) for _ in range(2)
    )
    rounds = count_steps(among, COUNTS[:1], TOUCHED[:1], POINTS[:1], 1)
    steps = zip(COUNTS[0], TOUCHED[0], POINTS[0], strict=True)
    for (count, num_touched, told), expected in zip(steps, rounds, strict=True):
        progress = alone.add_step(count, num_touched, told)
        assert expected.to_position(before, shared=shared) == progress.to_position(
            before, shared=shared
        )
