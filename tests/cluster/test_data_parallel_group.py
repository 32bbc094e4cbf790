"""Groups of ranks that know only their data-parallel rank."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch.distributed as dist

import torch_distinput as tdi
from tests.distribute.street import shown
from tests.gloo.jobs import numbers
from torch_distinput.cluster.data_parallel_group import _divide
from torch_distinput.testing import run_ranks


@pytest.mark.parametrize("shape", list(itertools.product((1, 2), (1, 2, 3), (1, 2))))
def test_a_group_has_every_place_once(shape):
    """In the order of the data-parallel ranks, whatever dimensions lie around that of the data."""
    outer, size, inner = shape
    told = [(at, size) for _ in range(outer) for at in range(size) for _ in range(inner)]
    groups = _divide(told, size)
    assert list(range(len(told))) == sorted(itertools.chain(*groups))
    for group in groups:
        assert list(range(size)) == [told[rank][0] for rank in group]


@pytest.mark.parametrize(
    "told",
    [
        [(0, 2), (0, 2)],  # a data-parallel rank that nobody has
        [(0, 2), (1, 2), (1, 2)],  # not as many ranks in each
        [(0, 2), (2, 2)],  # no such one
        [(0, 1), (0, 2)],  # another number of them
        [(1, 2), (0, 2)],  # not in the order of the ranks
        [(0, 2), (1, 2), (1, 2), (0, 2)],
    ],
)
def test_numbers_that_make_no_groups_are_refused_on_every_rank(told):
    for _, size in told:
        with pytest.raises(tdi.ConfigurationError, match="every data-parallel rank from 0"):
            _divide(told, size)


def play(inner, _):
    """What a rank gets of a stream where ``inner`` ranks have each data-parallel rank."""
    place, size = dist.get_rank() // inner, dist.get_world_size() // inner
    groups = [tdi.form_data_parallel_group(place, size) for _ in range(2)]
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=groups[0])
    dataset = strategy.distribute_dataset(partial(numbers, 9), global_batch_size=4)
    mine = [x for step in dataset for batch in shown(strategy, step) for x in batch]
    return groups[0] is groups[1], strategy.worker_index, strategy.num_workers, mine


@pytest.mark.slow
def test_ranks_of_one_place_read_alike():
    """Two groups of two, each of which gets everything; asked again, the group is the same."""
    ranks = run_ranks(partial(play, 2), 4)
    first, second = [0, 1, 4, 5, 8], [2, 3, 6, 7]
    assert [(True, 0, 2, first)] * 2 + [(True, 1, 2, second)] * 2 == ranks


def play_another(_):
    """What the ranks of two groups hear, each of which reads other rows."""
    place, beside = divmod(dist.get_rank(), 2)
    group = tdi.form_data_parallel_group(place, 2, compares=True)
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=group)
    source = [float(beside + at) for at in range(9)]
    try:
        list(strategy.distribute_dataset(source, global_batch_size=4))
    except tdi.DistinputError as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.slow
def test_ranks_of_one_place_that_read_other_rows_hear_of_it():
    ranks = run_ranks(play_another, 4)
    assert {"MismatchError", "PeerFailedError"} >= {kind for kind, _ in ranks}
    words = [words for kind, words in ranks if kind == "MismatchError"]
    pairs = ("rank 0 and rank 1", "rank 1 and rank 0", "rank 2 and rank 3", "rank 3 and rank 2")
    assert any(pair in said for pair in pairs for said in words)


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
