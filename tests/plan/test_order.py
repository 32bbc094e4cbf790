"""The order of an epoch: frozen vectors, bijection, windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import LONG
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.order import (
    EpochOrder,
    GivenBatches,
    GivenOrder,
    Run,
    UniformBatches,
)
from torch_distinput.plan.assignment.permutation import LARGEST_EXACT


def shuffled(num_examples, seed=0, epoch=0):
    """All indices of a shuffled epoch."""
    order = EpochOrder(num_examples=num_examples, shuffle=True, seed=seed, epoch=epoch)
    return order.take_range(0, num_examples)


@pytest.mark.parametrize(
    ("num_examples", "seed", "epoch", "expected"),
    [
        (10, 0, 0, [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]),
        (10, 0, 1, [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]),
        (100_000, 7, 3, [19828, 1864, 94528, 75863, 41644, 95507, 73833, 93394, 7573, 91257]),
    ],
)
def test_golden_vectors(num_examples, seed, epoch, expected):
    """An order that changes between releases would break every resume."""
    assert expected == shuffled(num_examples, seed, epoch)[:10].tolist()


@pytest.mark.parametrize(
    "num_examples", [0, 1, 2, 3, 5, 17, LARGEST_EXACT, LARGEST_EXACT + 1, 99_991]
)
def test_every_index_occurs_once(num_examples):
    """A shuffled epoch is a permutation, on both sides of the switch."""
    assert np.array_equal(np.arange(num_examples), np.sort(shuffled(num_examples, 3, 1)))


@given(st.integers(1, 200_000), st.integers(0, 2**64 - 1), st.integers(0, 5), st.data())
def test_windows_agree_with_the_whole(num_examples, seed, epoch, data):
    """Any window can be asked for by itself."""
    order = EpochOrder(num_examples=num_examples, shuffle=True, seed=seed, epoch=epoch)
    start = data.draw(st.integers(0, num_examples - 1))
    stop = data.draw(st.integers(start, min(num_examples, start + 50)))
    wide = order.take_range(max(0, start - 20), stop)
    assert np.array_equal(wide[len(wide) - (stop - start) :], order.take_range(start, stop))


def test_a_huge_epoch_needs_no_table():
    """A billion examples answer at once, at the end as at the start."""
    order = EpochOrder(num_examples=10**9, shuffle=True, seed=1)
    last = order.take_range(10**9 - 5, 10**9 + 5)
    assert 5 == len(set(last.tolist()))
    assert last.max() < 10**9


@given(
    num_examples=st.integers(0, 300_000),
    size=st.integers(1, 90_000),
    first=st.integers(0, 1000),
    part=st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)),
    shuffle=st.booleans(),
)
def test_parts_of_many_batches_are_parts_of_each(num_examples, size, first, part, shuffle):
    """In blocks, whatever their length, come the indices that each batch has by itself."""
    size = size if LONG else max(size, num_examples // 64)  # each batch is worked out by itself
    order = EpochOrder(num_examples=num_examples, shuffle=shuffle, seed=3)
    batches = UniformBatches(order=order, global_batch_size=size, first=min(first, num_examples))
    for run in batches.runs:
        start, stop = sorted(min(bound, run.size) for bound in part)
        for number, rows in enumerate(batches.iterate_rows(run, start, stop), run.first):
            assert np.array_equal(batches.take(number)[start:stop], rows)
        assert number == run.first + run.count - 1


def test_epochs_and_seeds_differ():
    """The key is seed and epoch."""
    orders = {tuple(shuffled(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert 9 == len(orders)


@pytest.mark.parametrize("num_examples", [4, 5])
def test_small_permutations_are_uniform(num_examples):
    """Chi-squared over all permutations; a biased shuffle of few examples is off by hundreds."""
    rounds = 6000
    orders = [shuffled(num_examples, seed) for seed in range(rounds)]
    seen = np.unique(orders, axis=0, return_counts=True)[1]
    cells = int(np.prod(np.arange(1, num_examples + 1)))
    chi = ((seen - rounds / cells) ** 2 / (rounds / cells)).sum()
    assert cells == len(seen)
    assert abs(chi - (cells - 1)) / np.sqrt(2 * (cells - 1)) < 5


def test_large_permutations_have_no_serial_correlation():
    """Neighbours in a Feistel order are as good as independent."""
    size = LARGEST_EXACT + 34_467
    scores = []
    for seed in range(10):
        order = shuffled(size, seed).astype(np.float64)
        scores.append(np.corrcoef(order[:-1], order[1:])[0, 1] * np.sqrt(size))
    assert np.sqrt(np.mean(np.square(scores))) < 2.5


@pytest.mark.parametrize("num_examples", [LARGEST_EXACT, 3 << 18, 1_000_003])
def test_permutations_are_as_uniform_as_numpys(num_examples):
    """How many examples move from which 32nd of the epoch to which: chi-square, for 8 keys each."""
    ours = [EpochOrder(num_examples=num_examples, shuffle=True, seed=k) for k in range(8)]
    random = np.random.default_rng(0)
    scores = {
        "ours": [_unevenness(order.take_range(0, num_examples)) for order in ours],
        "numpy": [_unevenness(random.permutation(num_examples)) for _ in range(8)],
    }
    for name, found in scores.items():
        assert abs(np.mean(found)) < 1.5, (name, found)
        assert max(map(abs, found)) < 4.5, (name, found)


def _unevenness(order):
    """Chi-square of 32 x 32 cells as a standard normal score."""
    bins = 32
    cells = np.arange(len(order)) * bins // len(order) * bins + order * bins // len(order)
    counts = np.bincount(cells, minlength=bins * bins)
    sizes = np.bincount(np.arange(len(order)) * bins // len(order))
    expected = np.outer(sizes, sizes).ravel() / len(order)
    freedom = (bins - 1) ** 2
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return (chi_square - freedom) / np.sqrt(2 * freedom)


def test_uniform_batches():
    """Full windows, and the partial one unless it is dropped."""
    order = EpochOrder(num_examples=10)
    kept = UniformBatches(order=order, global_batch_size=4)
    dropped = UniformBatches(order=order, global_batch_size=4, drop_last=True)
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == [kept.take(k).tolist() for k in range(3)]
    full, partial = Run(0, 2, 4), Run(2, 1, 2)
    assert (3, 0, (full, partial)) == (kept.num_batches, kept.num_dropped, kept.runs)
    assert (2, 2, (full,)) == (dropped.num_batches, dropped.num_dropped, dropped.runs)


def test_given_batches():
    """Batches of a user's batch sampler keep their sizes."""
    batches = GivenBatches((np.array([3, 1]), np.array([2])))
    assert (2, (Run(0, 1, 2), Run(1, 1, 1))) == (batches.num_batches, batches.runs)


@pytest.mark.parametrize("batches", [
    UniformBatches(order=EpochOrder(num_examples=5), global_batch_size=2),
    UniformBatches(order=GivenOrder(np.arange(5)), global_batch_size=2, drop_last=True),
    GivenBatches(tuple(np.arange(5).reshape(5, 1))),
])  # fmt: skip
def test_what_is_left_of_an_epoch(batches):
    """What has not been delivered; nothing at its end; behind it there is no position."""
    rest = batches.skip(steps=2, examples=2)
    assert [2, 3, 4][: 3 - rest.num_dropped] == [
        index for number in range(rest.num_batches) for index in rest.take(number).tolist()
    ]
    assert 0 == batches.skip(steps=5, examples=5).num_batches
    with pytest.raises(ConfigurationError, match="which has 5 .*, got one after 6"):
        batches.skip(steps=6, examples=6)
