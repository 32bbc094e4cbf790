"""Head and tail: every place once, and as much work for each rank."""

from __future__ import annotations

import pytest

from torch_distinput.plan.assignment.context_parallel import cut_head_and_tail, smallest_length


def places(length, index, num_slices):
    runs = cut_head_and_tail(length, index=index, num_slices=num_slices)
    return [place for start, stop in runs for place in range(start, stop)]


def test_a_chunk_of_the_head_and_one_of_the_tail():
    assert [[0, 1, 6, 7], [2, 3, 4, 5]] == [places(8, index, 2) for index in range(2)]
    assert [[0, 7], [1, 6], [2, 5], [3, 4]] == [places(8, index, 4) for index in range(4)]


@pytest.mark.parametrize("num_slices", range(1, 9))
def test_every_place_once_in_order_and_causal_work_alike(num_slices):
    for length in range(0, 5 * smallest_length(num_slices), smallest_length(num_slices)):
        slices = [places(length, index, num_slices) for index in range(num_slices)]
        assert list(range(length)) == sorted(place for own in slices for place in own)
        assert all(own == sorted(own) for own in slices)
        # A token attends to those before it and to itself.
        assert len({sum(place + 1 for place in own) for own in slices}) == 1


def test_a_single_slice_is_the_whole_sequence_of_any_length():
    assert [0, 1, 2] == places(3, 0, 1)
    assert 1 == smallest_length(1)
