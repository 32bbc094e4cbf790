"""Examples that are passed over are counted as those that are read."""

from __future__ import annotations

import pytest

from torch_distinput.data.sources.examples import ExampleReader
from torch_distinput.data.user_sources.single_process import iterate_as_single_process
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.route import Shard


class Numbers:
    """An iterable whose iterator is no generator."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def numbers(count, broken=None):
    for number in range(count):
        if number == broken:
            raise ValueError("no number")
        yield number


@pytest.mark.parametrize("source", [lambda: numbers(7), Numbers(7)], ids=["generator", "iterator"])
@pytest.mark.parametrize("watched", [False, True])
def test_reading_goes_on_behind_them(source, watched):
    reader = ExampleReader(source, Shard(watched=watched))
    assert 3 == reader.skip(3)
    chunk = reader.take(2)

    assert ([3, 4], [3, 4]) == (list(chunk.data), chunk.ids.tolist())
    assert (2, 0) == (reader.skip(9), reader.skip(9))
    assert reader.take(1) is None


def test_none_are_passed_over():
    reader = ExampleReader(lambda: numbers(3), Shard())

    assert 0 == reader.skip(0)
    assert [0] == reader.take(1).ids.tolist()


def test_the_one_at_which_the_source_raises_is_named():
    reader = ExampleReader(lambda: numbers(9, broken=5), Shard())
    reader.take(2)

    with pytest.raises(SourceError, match=r"example 5.*no number"):
        reader.skip(6)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("make", [numbers, lambda count: iter(range(count))])
def test_the_end_is_told_once(make, count):
    told = []
    items = iterate_as_single_process(make(count), lambda **how: told.append(how))

    assert list(range(count)) == list(items)
    assert [{"is_empty": count == 0}] == told


def test_a_generator_that_was_left_can_be_asked_again():
    source = numbers(3)
    items = iterate_as_single_process(source)
    assert 0 == next(items)
    items.close()

    assert 1 == next(source)
