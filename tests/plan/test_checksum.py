"""Sums over ids, and where two readings of one stream part."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from torch_distinput.plan.progress.checksum import (
    IdSum,
    Reading,
    find_others,
    join_windows,
    sum_ids,
    sum_range,
)


def reading(items, width=1, first=0):
    """What a worker has read whose windows of one item have these digests."""
    windows = tuple(items)
    for _ in range(width.bit_length() - 1):
        windows = join_windows(windows)
    count = len(items)
    return Reading(
        unit="example", first=first, count=count, stop=first + count, width=width, windows=windows
    )


def test_a_sum_does_not_depend_on_the_order_or_on_who_adds():
    ids = np.array([5, 1, 9, 2, 7])
    expected = sum_ids(ids)
    for order in itertools.permutations(range(5)):
        for cut in range(6):
            parts = ids[list(order)][:cut], ids[list(order)][cut:]
            assert expected == sum(map(sum_ids, parts), IdSum())


def test_a_sum_tells_repeated_missing_and_other_ids():
    """Also where their plain sum is the same."""
    digests = [
        sum_ids(np.array(ids)) for ids in ([1, 2, 3], [1, 2], [1, 2, 2, 3], [1, 1, 4], [2, 2, 2])
    ]
    assert len(set(digests)) == len(digests)


def test_columns_of_an_id_do_not_change_places():
    assert sum_ids(np.array([[1, 2]])) != sum_ids(np.array([[2, 1]]))


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 4), (0, 8192), (5, 20_000)])
def test_the_sum_of_a_range(start, stop):
    """Also of more ids than are summed at a time."""
    assert sum_ids(np.arange(start, stop)) == sum_range(start, stop)


def test_a_digest_depends_on_order_and_length():
    digests = [reading(items).digest for items in ([1, 2], [2, 1], [1], [1, 2, 3], [])]
    assert len(set(digests)) == len(digests)


def test_joined_windows_depend_on_their_order():
    assert join_windows((1, 2)) != join_windows((2, 1))
    assert join_windows((1, 2)) == join_windows((1, 2, 3))


def test_the_first_difference_is_found():
    """In the window of the wider reading in which it lies."""
    for count, other, width in itertools.product(range(1, 9), range(8), (1, 2, 4)):
        items = list(range(10, 10 + count))
        changed = [99 if place == other else item for place, item in enumerate(items)]
        found = reading(items, width, first=100).find_difference(reading(changed, 1, first=100))
        if other >= count:  # the same: what follows is empty
            assert not set(found) & set(range(100, 100 + count // width * width))
        else:
            assert 100 + other in found
            assert len(found) <= width


def test_a_reading_that_ends_earlier_differs_after_its_end():
    assert range(3, 4) == reading([1, 2, 3, 4]).find_difference(reading([1, 2, 3]))


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ([7, 7, 7], (0, [])),
        ([7, 8, 8], (1, [0])),
        ([7, 8, 7, 9], (0, [1, 3])),
        ([8, 7], (0, [1])),  # no majority: worker 0 is the measure
        ([9, 7, 7, 8], (0, [1, 2, 3])),
    ],
)
def test_most_workers_are_right(digests, expected):
    assert expected == find_others(digests)
