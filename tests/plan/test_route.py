"""Who reads what from a position on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.bounds import FixedBounds
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.position import (
    ALL,
    Segment,
    StreamPosition,
    begin_epoch,
    make_layout,
)
from torch_distinput.plan.progress.route import ReadPlan, ReadSegment, Route, Shard

FILE, DATA, OFF = AutoShardPolicy.FILE, AutoShardPolicy.DATA, AutoShardPolicy.OFF


def route_of(policy, num_workers=1, worker=0, **settings):
    """The route of one worker with one replica."""
    splitter = Splitter(
        topology=Topology(num_workers=num_workers, worker_index=worker),
        rebatch=Rebatch.SPLIT,
        global_batch_size=4,
        shared=policy is DATA,
    )
    return Route(splitter=splitter, policy=policy, **settings)


def start_of(route):
    """The beginning of an epoch."""
    topology = route.splitter.topology
    num_streams = 1 if route.splitter.shared else topology.num_workers
    return begin_epoch(3, make_layout(route.splitter), num_streams)


def test_shards_hold_every_file_once():
    """Whatever was touched: the files begun, and the next shards, of three clusters in a row."""
    order = np.array([4, 2, 0, 6, 1, 5, 3])
    for first, second, third in itertools.product((1, 2, 3), repeat=3):
        for touched in itertools.product(range(3), repeat=first):
            for again in itertools.product(range(2), repeat=second):
                begun = [
                    Shard(num_shards=first, index=worker, num_files=touched[worker])
                    for worker in range(first)
                ]
                begun += [
                    Shard(num_shards=second, index=worker, num_files=again[worker],
                          reassignments=(touched,))
                    for worker in range(second)
                ]  # fmt: skip
                left = [
                    Shard(num_shards=third, index=worker, reassignments=(touched, again))
                    for worker in range(third)
                ]
                found = np.concatenate([shard.select(order) for shard in begun + left])
                assert sorted(order) == sorted(found.tolist())


def test_a_shard_is_every_nth_file_in_order():
    order = np.array([4, 2, 0, 1, 3])
    assert [2, 1] == Shard(num_shards=2, index=1).select(order).tolist()
    assert [4, 0] == Shard(num_shards=2, index=0, num_files=2).select(order).tolist()
    again = Shard(num_shards=1, index=0, reassignments=((2, 1),))
    assert [1, 3] == again.select(order).tolist()  # worker 0 had 4, 0, 3 and worker 1 had 2, 1
    assert [] == Shard(num_shards=1, reassignments=((ALL, ALL),)).select(order).tolist()


@pytest.mark.parametrize("audited", [False, True])
@pytest.mark.parametrize(
    ("policy", "num_workers", "sparse"),
    [(DATA, 1, False), (DATA, 2, True), (OFF, 1, False), (OFF, 2, False)],
)
def test_all_of_the_source_is_read_without_files_to_assign(policy, num_workers, sparse, audited):
    """Where workers share a stream most rows are skipped; an audit watches it."""
    route = route_of(policy, num_workers, seed=9, audited=audited)
    expected = Shard(seed=9, epoch=3, sparse=sparse, watched=sparse and audited)
    assert expected == route.make_shard(start_of(route), Segment(worker=1))


def test_a_segment_is_a_shard_of_its_assignment():
    """The cluster of that assignment counts, and what was touched before it."""
    route = route_of(FILE, 4, seed=9, audited=True)
    position = replace(start_of(route), reassignments=((1, 2), (3, 4, 5)))
    found = [
        route.make_shard(position, Segment(assignment=number, worker=1, num_files=number + 5))
        for number in range(3)
    ]
    expected = [
        Shard(seed=9, epoch=3, num_shards=2, index=1, num_files=5),
        Shard(seed=9, epoch=3, num_shards=3, index=1, num_files=6, reassignments=((1, 2),)),
        Shard(seed=9, epoch=3, num_shards=4, index=1, num_files=7,
              reassignments=((1, 2), (3, 4, 5))),
    ]  # fmt: skip
    assert expected == found


def test_a_worker_reads_its_own_stream():
    """The segments keep their numbers; batch and step are those of the steps that are over."""
    route = route_of(FILE, 2, worker=1, has_parts=True)
    segments = (Segment(worker=0, num_files=1, skip=3, start=(7,)), Segment(assignment=1, worker=1))
    streams = (StreamPosition(), StreamPosition(batch=2, row=5, segments=segments))
    position = replace(
        start_of(route), steps_done=7, streams=streams, reassignments=((1,),), rows=(0, 0)
    )
    expected = ReadPlan(
        segments=tuple(
            ReadSegment(
                shard=route.make_shard(position, segment),
                start=segment.start,
                skip=segment.skip,
                number=number,
            )
            for number, segment in enumerate(segments)
        ),
        row=5,
        num_batches=2,
        batch=3,
        step=1,
    )
    assert expected == route.plan_reads(position, 2)
    assert (7, 0) == (route.plan_reads(position, 1).batch, route.plan_reads(position, 1).step)


def test_workers_that_share_a_stream_read_the_same():
    routes = [route_of(DATA, 3, worker) for worker in range(3)]
    assert 1 == len({route.plan_reads(start_of(routes[0]), 1) for route in routes})


def test_what_cannot_be_parted_is_assigned_once():
    """Later assignments hold nothing, and the other segments keep their numbers."""
    route = route_of(FILE, 1)
    segments = tuple(Segment(assignment=number) for number in (1, 0, 2))
    position = replace(start_of(route), streams=(StreamPosition(segments=segments),))
    position = replace(position, reassignments=((ALL,), (ALL,)))
    assert [1] == [segment.number for segment in route.plan_reads(position, 1).segments]
    with_parts = replace(route, has_parts=True)
    assert [0, 1, 2] == [s.number for s in with_parts.plan_reads(position, 1).segments]


def test_a_plan_begins_with_its_batch_where_lengths_are_known():
    """Against rows in a list: those that are left of each segment, from its own beginning."""
    for lengths in itertools.product(range(4), repeat=3):
        for skips in itertools.product(range(3), (0, 1), (0, 1)):
            for row, batch in itertools.product((0, -1), range(4)):
                check_skip(lengths, skips, row, batch)


def check_skip(lengths, skips, row, batch):
    segments = tuple(
        ReadSegment(shard=Shard(), skip=skip, number=number) for number, skip in enumerate(skips)
    )
    plan = ReadPlan(segments=segments, row=row, batch=batch)
    rows, owed = [], 0
    for number, (length, skip) in enumerate(zip(lengths, skips, strict=True)):
        owed += skip
        rows += [(number, place) for place in range(length)][owed:]
        owed = max(0, owed - length)
    if len(rows) < 2 * batch - row:
        return  # a position behind the end of the data
    expected = rows[2 * batch - row :]
    found = plan.skip_to_batch(FixedBounds(size=2), lengths)
    assert 2 * batch == found.row
    left = [
        (segment.number, place)
        for segment in found.segments
        for place in range(segment.skip, lengths[segment.number])
    ]
    assert expected == left
    assert all(segment.skip < lengths[segment.number] for segment in found.segments)


@pytest.mark.parametrize(
    ("policy", "num_workers", "files_touched", "lacks"),
    [
        (DATA, 2, (), False),
        (DATA, 3, (), False),
        (FILE, 2, (1, 1), False),
        (FILE, 2, (), True),  # lengths were known, and perhaps are no more
        (FILE, 3, (1, 1), True),  # what cannot be parted was touched as a whole
        (FILE, 3, (), True),
        (OFF, 2, (), True),
        (OFF, 3, (), False),  # refused in any case
    ],
)
def test_files_touched_are_asked_for_where_they_are_needed(
    policy, num_workers, files_touched, lacks
):
    position = replace(start_of(route_of(policy, 2)), files_touched=files_touched)
    assert lacks is route_of(policy, num_workers).lacks_files_touched(position)


@pytest.mark.parametrize("policy", [FILE, DATA, OFF])
def test_the_same_cluster_goes_on(policy):
    route = route_of(policy, 2)
    assert start_of(route) == route.resume(start_of(route))


def test_another_number_of_workers_shares_or_reassigns():
    """Under DATA the stream goes on; under FILE files are assigned again; under OFF neither."""
    before = {policy: start_of(route_of(policy, 2)) for policy in (FILE, DATA, OFF)}
    after = {policy: route_of(policy, 3) for policy in (FILE, DATA, OFF)}
    shared = after[DATA].resume(before[DATA])
    assert (make_layout(after[DATA].splitter), 1) == (shared.layout, len(shared.streams))
    again = after[FILE].resume(replace(before[FILE], files_touched=(1, 0)))
    assert (((1, 0),), 3) == (again.reassignments, len(again.streams))
    with pytest.raises(ConfigurationError, match="AutoShardPolicy.OFF"):
        after[OFF].resume(before[OFF])
