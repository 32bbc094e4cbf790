"""Where an epoch stands, and how it is cut and assigned anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import (
    ALL,
    BatchLayout,
    ResumePoint,
    Segment,
    StreamPosition,
    begin_epoch,
    make_cluster_error,
    make_layout,
)


def layout_of(num_workers, num_replicas=1, size=4):
    """The layout of a cluster."""
    return BatchLayout(
        num_workers=num_workers,
        replicas_per_worker=num_replicas,
        global_batch_size=size,
        rebatch="split",
    )


def test_a_layout_is_what_a_splitter_cuts():
    """The same on all workers."""
    for worker in range(3):
        splitter = Splitter(
            topology=Topology(num_workers=3, replicas_per_worker=2, worker_index=worker),
            rebatch=Rebatch.SPLIT,
            global_batch_size=4,
            shared=False,
        )
        assert layout_of(3, 2) == make_layout(splitter)


@pytest.mark.parametrize("num_streams", [0, 1, 3])
def test_an_epoch_begins_with_nothing_delivered(num_streams):
    position = begin_epoch(7, layout_of(3), num_streams)
    nothing = (0,) * num_streams
    assert (7, 0, 0, 0, nothing, nothing, ()) == (
        position.epoch,
        position.steps,
        position.examples,
        position.steps_done,
        position.rows,
        position.files_touched,
        position.reassignments,
    )
    expected = tuple(
        StreamPosition(segments=(Segment(worker=worker, num_files=ALL),))
        for worker in range(num_streams)
    )
    assert expected == position.streams


def test_the_same_layout_goes_on_as_it_is():
    """Also within a batch."""
    position = replace(begin_epoch(0, layout_of(2), 2), steps_done=3, rows=(5, 6))
    assert position is position.with_layout(layout_of(2))


def test_another_layout_begins_where_delivery_stopped():
    """What was delivered becomes rows to skip, after those that were to be skipped."""
    stream = StreamPosition(segments=(Segment(skip=2), Segment(assignment=1)))
    position = begin_epoch(0, layout_of(1), 1)
    position = replace(
        position, steps=3, examples=5, steps_done=3, rows=(5,), streams=(stream,)
    )
    found = position.with_layout(layout_of(1, 2))
    assert (layout_of(1, 2), 0, (0,)) == (found.layout, found.steps_done, found.rows)
    assert (3, 5) == (found.steps, found.examples)
    expected = StreamPosition(segments=(Segment(skip=7), Segment(assignment=1)))
    assert (expected,) == found.streams


def test_a_stream_that_is_read_from_a_row_on_skips_from_there():
    """Rows are counted from where the layout began, and the segments begin with ``row``."""
    stream = StreamPosition(batch=2, row=7, segments=(Segment(start=(3,)),))
    assert StreamPosition(segments=(Segment(start=(3,), skip=4),)) == stream.restart(11)
    before = StreamPosition(row=-2, segments=(Segment(start=(3,)),))
    assert StreamPosition(segments=(Segment(start=(3,), skip=7),)) == before.restart(5)
    nothing = StreamPosition(segments=())
    assert nothing == nothing.restart(4)


def test_a_stream_is_resumed_in_the_segment_of_the_point():
    """Segments before it are over, and those after it stay."""
    segments = (Segment(skip=3), Segment(assignment=1, skip=2, num_files=4), Segment(assignment=2))
    point = ResumePoint(batch=5, row=18, segment=1, start=(1, 9))
    expected = StreamPosition(
        batch=5,
        row=18,
        segments=(Segment(assignment=1, num_files=4, start=(1, 9)), Segment(assignment=2)),
    )
    assert expected == point.resume(StreamPosition(segments=segments))


def test_rows_before_a_point_are_passed_over():
    """Where its batch does not begin with a place to start from."""
    point = ResumePoint(batch=5, row=18, segment=0, start=(1, 9), skip=3)
    found = point.resume(StreamPosition(segments=(Segment(skip=7),)))
    assert StreamPosition(batch=5, row=18, segments=(Segment(skip=3, start=(1, 9)),)) == found


def test_reassignment_keeps_what_was_begun_and_assigns_the_rest():
    """Worker 0 has touched two files, worker 1 none, worker 2 one: two chains for two workers."""
    position = replace(begin_epoch(0, layout_of(3), 3), rows=(4, 0, 1), steps=2, examples=5)
    found = position.reassign(layout_of(2), (2, 0, 1))
    assert ((2, 0, 1),) == found.reassignments
    assert 1 == found.assignment
    assert ((0, 0), (0, 0), 0) == (found.rows, found.files_touched, found.steps_done)
    assert (2, 5) == (found.steps, found.examples)
    expected = (
        (Segment(worker=0, num_files=2, skip=4), Segment(assignment=1, worker=0)),
        (Segment(worker=2, num_files=1, skip=1), Segment(assignment=1, worker=1)),
    )
    assert expected == tuple(stream.segments for stream in found.streams)


def test_what_a_place_has_opened_is_kept_too():
    """It may be ahead of what was delivered, and names files that a filter left nothing of."""
    turn = Place("turn", (("next", 3), ("visited", ((2, 1),))))
    for start in (turn, Place("filter", inner=(turn,)), Place("mix", inner=(None, turn))):
        position = replace(begin_epoch(0, layout_of(2), 2), rows=(4, 1))
        first, second = position.streams
        begun = replace(first, segments=(Segment(start=start),))
        found = replace(position, streams=(begun, second)).reassign(layout_of(1), (2, 1))
        assert ((3, 1),) == found.reassignments
        assert [3, 1, ALL] == [segment.num_files for segment in found.streams[0].segments]


def test_chains_go_to_the_workers_in_turn():
    """With fewer workers one gets several, one after another; with more, some get none."""
    position = replace(begin_epoch(0, layout_of(3), 3), rows=(1, 2, 3))
    alone = position.reassign(layout_of(1), (1, 1, 1)).streams
    assert [[0, 1, 2, 0]] == [[segment.worker for segment in s.segments] for s in alone]
    many = position.reassign(layout_of(4), (1, 1, 1)).streams
    assert [[0, 0], [1, 1], [2, 2], [3]] == [[x.worker for x in s.segments] for s in many]


def test_what_was_begun_twice_stays_one_chain():
    """The segments of earlier assignments come first, whole, also if nothing new was touched."""
    position = replace(begin_epoch(0, layout_of(1), 1), rows=(3,)).reassign(layout_of(2), (1,))
    position = replace(position, rows=(1, 0))
    found = position.reassign(layout_of(1), (2, 0))
    expected = (
        Segment(worker=0, num_files=1, skip=4),
        Segment(assignment=1, worker=0, num_files=2),
        Segment(assignment=2, worker=0),
    )
    assert ((1,), (2, 0)) == found.reassignments
    assert expected == found.streams[0].segments
    found = position.reassign(layout_of(1), (0, 0))
    assert (expected[0], Segment(assignment=2, worker=0)) == found.streams[0].segments


def test_the_error_names_both_clusters():
    error = make_cluster_error(begin_epoch(0, layout_of(2, 3), 2), layout_of(4), "OFF")
    assert "from (2 x 3), because with OFF" in str(error)
    assert "got 4 x 1" in str(error)


def test_the_error_names_the_cut_where_the_cluster_is_the_same():
    error = make_cluster_error(begin_epoch(0, layout_of(2), 0), layout_of(2, size=6), "OFF")
    assert "Expected global_batch_size=4 and rebatch='split'" in str(error)
    assert "got 6 and 'split'" in str(error)
