"""Who gets which rows of a global batch: tables, then every small case."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.batching import Cut, Idle, Splitter, count_idle, count_in_sync
from torch_distinput.plan.assignment.sharding import SHARES_STREAM
from torch_distinput.plan.assignment.topology import Topology

RULES = list(Rebatch)


def splitters(rule, size, num_workers, num_replicas, *, shared):
    """One splitter per worker."""
    return [
        Splitter(
            topology=Topology(
                num_workers=num_workers, replicas_per_worker=num_replicas, worker_index=worker
            ),
            rebatch=rule,
            global_batch_size=size,
            shared=shared,
        )
        for worker in range(num_workers)
    ]


def shared_sizes(rule, count, size, num_replicas):
    """Sizes over all replicas in sync of a batch that all workers see."""
    (splitter,) = splitters(rule, size, 1, num_replicas, shared=True)
    (cut,) = splitter.cut(count)
    return cut.sizes


@pytest.mark.parametrize(
    ("rule", "count", "size", "num_replicas", "expected"),
    [
        (Rebatch.SPLIT, 4, 4, 2, (2, 2)),
        (Rebatch.SPLIT, 2, 4, 2, (1, 1)),
        (Rebatch.SPLIT, 4, 4, 3, (2, 2, 0)),  # the tutorial's idle third replica
        (Rebatch.SPLIT, 4, 4, 5, (1, 1, 1, 1, 0)),
        (Rebatch.EVEN, 4, 4, 3, (2, 1, 1)),
        (Rebatch.EVEN, 2, 4, 2, (1, 1)),
        (Rebatch.EVEN, 2, 4, 3, (1, 1, 0)),  # fewer examples than replicas
        (Rebatch.CYCLE, 4, 4, 3, (2, 1, 1)),
        (Rebatch.CYCLE, 2, 4, 2, (2, 0)),  # filled in order, not balanced again
        (Rebatch.CYCLE, 3, 4, 3, (2, 1, 0)),
    ],
)
def test_table(rule, count, size, num_replicas, expected):
    """The rows of docs/semantics.md, Splitting."""
    assert expected == shared_sizes(rule, count, size, num_replicas)


CASES = list(itertools.product(range(1, 10), range(1, 8), range(1, 4), range(1, 4)))


@pytest.mark.parametrize("rule", RULES)
def test_shared_batches_are_covered_exactly_once(rule):
    """Under DATA the pieces of all workers are consecutive and hold every row."""
    for num, size, num_workers, num_replicas in CASES:
        count = min(num, size)
        position = 0
        for splitter in splitters(rule, size, num_workers, num_replicas, shared=True):
            (cut,) = splitter.cut(count)
            if cut.num_rows:
                assert position == cut.start
            position += cut.num_rows
        assert count == position


@pytest.mark.parametrize("rule", RULES)
def test_own_batches_are_played_in_order(rule):
    """Under FILE and OFF a worker plays all rows of its own batch, R pieces a step."""
    for num, size, num_workers, num_replicas in CASES:
        count = min(num, size)
        for splitter in splitters(rule, size, num_workers, num_replicas, shared=False):
            cuts = splitter.cut(count)
            assert num_workers == len(cuts)
            starts = list(itertools.accumulate((c.num_rows for c in cuts), initial=0))
            assert starts[:-1] == [cut.start for cut in cuts]
            assert count == starts[-1]


@pytest.mark.parametrize("rule", RULES)
def test_rotation_fills_each_step_with_one_global_batch(rule):
    """Where all workers have full batches, each step holds exactly G, whatever N."""
    for size, num_workers, num_replicas in itertools.product(range(1, 12), range(1, 5), (1, 2, 3)):
        first = splitters(rule, size, num_workers, num_replicas, shared=False)[0]
        assert count_in_sync(first, (size,)) == (size,) * num_workers


def test_split_pieces_are_equal_but_for_the_last_ones():
    """``split`` is ceil(n / N), then short, then empty."""
    for count, num_replicas in itertools.product(range(1, 20), range(1, 8)):
        sizes = shared_sizes(Rebatch.SPLIT, count, 20, num_replicas)
        full = -(-count // num_replicas)
        assert tuple(min(full, max(0, count - i * full)) for i in range(num_replicas)) == sizes


def test_even_idles_nobody_while_there_is_enough():
    """``even`` sizes differ by at most one."""
    for count, num_replicas in itertools.product(range(1, 20), range(1, 8)):
        sizes = shared_sizes(Rebatch.EVEN, count, 20, num_replicas)
        assert max(sizes) - min(sizes) <= 1


def test_filled_stops_where_the_rows_end():
    """A cut filled with fewer rows keeps the front."""
    assert (2, 1, 0) == Cut(start=5, sizes=(2, 2, 1)).fill(3)


@pytest.mark.parametrize("rule", RULES)
def test_most_rows_are_those_of_the_largest_piece(rule):
    """No batch of any worker has a larger piece, and a full one has one as large."""
    for count, size, num_workers, num_replicas in CASES:
        for shared in (True, False):
            found = splitters(rule, size, num_workers, num_replicas, shared=shared)
            cuts = [cut for splitter in found for cut in splitter.cut(min(count, size))]
            largest = max(rows for cut in cuts for rows in cut.sizes)
            assert largest <= found[0].most_rows
            assert count < size or largest == found[0].most_rows


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_steps_of_all_workers_add_up(rule, shared):
    """Their examples in sync, and the replicas that have none while others have."""
    for sizes in itertools.product((0, 1, 5, 6), repeat=3):
        workers = splitters(rule, 6, 3, 2, shared=shared)
        sizes = sizes[:1] * 3 if shared else sizes  # noqa: PLW2901 - all see the same batch
        cuts = [worker.cut(size) for worker, size in zip(workers, sizes, strict=True)]
        steps = [[rows for cut in step for rows in cut.sizes] for step in zip(*cuts, strict=True)]
        round_of_batches = sizes[:1] if len(set(sizes)) == 1 else sizes
        assert tuple(map(sum, steps)) == count_in_sync(workers[0], round_of_batches)
        uneven = [rows.count(0) for rows in steps if any(rows) and not all(rows)]
        assert Idle(len(uneven), sum(uneven)) == count_idle(workers[0], round_of_batches)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_counted_of_a_batch_of_its_own_is_what_is_cut(rule):
    """By arithmetic, where a cut of each worker by each other one would take too long."""
    for count, size, num_workers, num_replicas in CASES:
        count = min(count, size)  # noqa: PLW2901 - no batch is larger
        for splitter in splitters(rule, size, num_workers, num_replicas, shared=False):
            cuts = splitter.cut(count)
            assert [list(cut.sizes) for cut in cuts] == splitter.list_sizes(count).tolist()
            rows = [sum(cut.num_rows for cut in cuts[:steps]) for steps in range(num_workers + 1)]
            assert rows == [splitter.count_rows(count, steps) for steps in range(num_workers + 1)]


def test_idle_replicas_of_several_rounds_add_up():
    assert Idle(7, 9) == Idle(1, 3) + Idle(3, 3) * 2


def test_a_rule_that_nobody_has_written_is_no_other_rule():
    splitter = Splitter(topology=Topology(), rebatch="front", global_batch_size=4, shared=True)
    with pytest.raises(AssertionError, match="no rule front"):
        splitter.cut(4)


def test_every_policy_says_whether_workers_share_a_stream():
    assert set(AutoShardPolicy) - {AutoShardPolicy.AUTO} == set(SHARES_STREAM)
