"""Groups of ranks that know only their place in data parallelism."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch.distributed as dist

import torch_distinput as tdi
from tests.distribute.street import shown
from tests.gloo.jobs import numbers
from torch_distinput.cluster.data_parallel_group import _members
from torch_distinput.testing import run_ranks


@pytest.mark.parametrize("shape", list(itertools.product((1, 2), (1, 2, 3), (1, 2))))
def test_a_group_has_every_place_once(shape):
    """In the order of the places, whatever dimensions lie around that of the data."""
    outer, size, inner = shape
    places = [(at, size) for _ in range(outer) for at in range(size) for _ in range(inner)]
    groups = [_members(places, rank) for rank in range(len(places))]
    for rank, group in enumerate(groups):
        assert rank in group
        assert list(range(size)) == [places[other][0] for other in group]
        assert [group] * size == [groups[other] for other in group]


@pytest.mark.parametrize(
    "places",
    [
        [(0, 2), (0, 2)],  # a place that nobody has
        [(0, 2), (1, 2), (1, 2)],  # not as many ranks in each
        [(0, 2), (2, 2)],  # no such place
        [(0, 1), (0, 2)],  # another number of places
        [(1, 2), (0, 2)],  # not in the order of the ranks
        [(0, 2), (1, 2), (1, 2), (0, 2)],
    ],
)
def test_places_that_make_no_groups_are_refused_on_every_rank(places):
    for rank in range(len(places)):
        with pytest.raises(tdi.ConfigurationError, match="Expected each of the . places"):
            _members(places, rank)


def play(inner, _):
    """What a rank gets of a stream where ``inner`` ranks have each place."""
    place, size = dist.get_rank() // inner, dist.get_world_size() // inner
    groups = [tdi.form_data_parallel_group(place, size) for _ in range(2)]
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=groups[0])
    dataset = strategy.distribute_dataset(partial(numbers, 9), global_batch_size=4)
    mine = [x for step in dataset for batch in shown(strategy, step) for x in batch]
    return groups[0] is groups[1], strategy.worker_index, strategy.num_workers, mine


def test_ranks_of_one_place_read_alike():
    """Two groups of two, each of which gets everything; asked again, the group is the same."""
    ranks = run_ranks(partial(play, 2), 4)
    first, second = [0, 1, 4, 5, 8], [2, 3, 6, 7]
    assert [(True, 0, 2, first)] * 2 + [(True, 1, 2, second)] * 2 == ranks


def test_all_ranks_have_places_of_their_own():
    first, second = [0, 1, 4, 5, 8], [2, 3, 6, 7]
    assert [(True, 0, 2, first), (True, 1, 2, second)] == run_ranks(partial(play, 1), 2)


def test_one_place_for_all_ranks():
    """As under tensor parallelism alone: each rank reads everything."""
    assert [(True, 0, 1, list(range(9)))] * 2 == run_ranks(partial(play, 2), 2)


def test_without_a_process_group():
    assert tdi.form_data_parallel_group(0, 1) is None
    with pytest.raises(tdi.UsageError, match="over 2 ranks, but torch.distributed is not"):
        tdi.form_data_parallel_group(0, 2)
