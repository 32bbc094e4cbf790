"""States of parts that stay whole, for who deals out shard by shard."""

from __future__ import annotations

import numpy as np

from tests.plan.saved_states import saved_state
from torch_distinput.plan.progress.parts import keep_parts_whole
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import ALL
from torch_distinput.plan.progress.route import Shard
from torch_distinput.plan.progress.state import from_state


def test_each_part_goes_on_as_a_part():
    """From where it was; all is touched, so that nothing is assigned again."""
    position = from_state(keep_parts_whole(saved_state()))
    assert (ALL, ALL) == position.files_touched
    segments = [segment for stream in position.streams for segment in stream.segments]
    assert [Place("part", inner=(None,))] * 2 == [segment.start for segment in segments]
    assert [0, 3] == [segment.skip for segment in segments]


def test_later_assignments_stay_as_they_are():
    """They had nothing left to assign."""
    segments = [[0, 0, None, 3, None], [1, 0, None, 0, None]]
    state = keep_parts_whole(
        saved_state(streams=[[0, 0, *segments]], deals=[[None, None]], rows=[6])
    )
    (stream,) = from_state(state).streams
    assert [Place("part", inner=(None,)), None] == [segment.start for segment in stream.segments]
    shard = Shard(reassignments=((ALL, ALL),))
    assert [] == shard.select(np.arange(7)).tolist()
