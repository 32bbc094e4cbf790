"""What a worker saw of a stream: equal for equal streams, and it tells where two of them part."""

from __future__ import annotations

import pytest

from torch_distinput.data.stream.witness import Witness
from torch_distinput.plan.progress.checksum import MOST_WINDOWS, find_others

COUNTS = [0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 200]


def reading(examples, first=0):
    """Of all of a stream."""
    witness = Witness("example", first, first)
    assert list(witness.watch(examples)) == list(examples)
    notes = witness.notes()
    assert notes is not None
    assert witness.notes() is None
    return notes.reading


@pytest.mark.parametrize("count", COUNTS)
def test_equal_streams(count):
    """However long they are, little is kept."""
    one, other = reading(range(count)), reading(range(count))
    assert one == other
    assert one.digest == other.digest
    assert (count, count) == (one.count, one.stop)
    assert len(one.windows) < MOST_WINDOWS


@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("more", [0, 1, -1, 70])
def test_where_streams_part(count, more):
    """The example is among those that are told, which are at most a thirty-second."""
    longer = max(count, count + more)
    for at in {*range(min(count, count + more)), min(count, count + more)}:
        one, other = list(range(count)), list(range(count + more))
        if at < min(count, count + more):
            one[at] = -1
        elif not more:
            continue
        here, there = reading(one, 100), reading(other, 100)
        assert here.digest != there.digest
        assert here.find_difference(there) == there.find_difference(here)
        assert 100 + at in here.find_difference(there)
        assert len(here.find_difference(there)) <= max(1, longer / (MOST_WINDOWS // 4))


def test_order_counts():
    """Each example at its place."""
    assert reading([1, 2, 3]).digest != reading([1, 3, 2]).digest
    assert reading([*range(200)]).digest != reading([*range(198), 199, 198]).digest


def test_a_stream_that_was_left():
    """Nothing is told of it."""
    witness = Witness("example", 0, 0)
    next(witness.watch(range(3)))
    assert witness.notes() is None


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ([5], (0, [])), ([5, 5, 5], (0, [])), ([5, 6], (0, [1])), ([6, 5, 5], (1, [0])),
        ([5, 6, 7], (0, [1, 2])), ([5, 6, 5, 6], (0, [1, 3])), ([5, 6, 6, 6, 7], (1, [0, 4])),
    ],
)  # fmt: skip
def test_who_read_something_else(digests, expected):
    """Most are right; where there is no majority, worker 0 is."""
    assert expected == find_others(digests)
