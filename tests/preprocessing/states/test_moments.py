"""Moments: the law, and the exact sums of every kind of float32."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.preprocessing.states.laws import frozen, merged
from torch_distinput.preprocessing.states import exact_sums
from torch_distinput.preprocessing.states.moments import Moments

DENORMAL, LARGEST = np.float32(1e-45), np.finfo(np.float32).max
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
EDGES = st.sampled_from([0.0, -0.0, 1.0, float(DENORMAL), -float(LARGEST), float(LARGEST), 0.1])
ANY = st.one_of(st.floats(width=32), EDGES)


def tables(elements, max_rows=40):
    shapes = st.tuples(st.integers(1, max_rows), st.integers(1, 3))
    return hnp.arrays(np.float32, shapes, elements=elements.map(np.float32))


def moments_of(values):
    moments = Moments(values.shape[1])
    moments.update(values)
    return moments


def exact(values):
    """Mean and variance of finite columns, by rational arithmetic."""
    columns = [[Fraction(float(x)) for x in column] for column in values.T]
    means = [sum(column) / len(column) for column in columns]
    variances = [
        sum((x - mean) ** 2 for x in column) / len(column)
        for column, mean in zip(columns, means, strict=True)
    ]
    return [list(map(float, means)), list(map(float, variances))]


def exact_sums_of(values):
    """Sums and sums of squares in units of 2^-149 and 2^-298, where fractions would be slow."""
    mantissas, exponents = np.frexp(values.T.astype(np.float64))
    columns = [
        [int(m * 2.0**24) * 2 ** (e + 125) if e > -125 else int(m * 2.0 ** (e + 149)) for m, e in x]
        for x in (zip(*x, strict=True) for x in zip(mantissas, exponents.tolist(), strict=True))
    ]
    return [sum(column) for column in columns], [sum(x * x for x in column) for column in columns]


@pytest.mark.slow
@given(st.data(), tables(ANY))
def test_the_multiset_alone_decides(data, values):
    expected = moments_of(values)
    state = merged(lambda: Moments(values.shape[1]), values, data, st)
    assert frozen(expected) == frozen(state)
    for left, right in zip(expected.finalize(), state.finalize(), strict=True):
        assert left.tobytes() == right.tobytes()


@given(tables(st.one_of(FINITE, EDGES)))
def test_moments_are_the_exact_ones_rounded_once(values):
    mean, variance = moments_of(values).finalize()
    assert exact(values) == [mean.tolist(), variance.tolist()]


def test_a_mean_beside_the_middle_of_two_floats():
    """Rounded to float64 it would be the middle, and float32 of that the wrong one of the two."""
    values = np.array([[2], [2 + 2.0**-22], [2.0**-100], [0]], np.float32)
    mean, _ = moments_of(values).finalize(for_float32=True)
    assert np.float32(1 + 2.0**-23) == mean.astype(np.float32)


@pytest.mark.parametrize("shape", [(70_000, 1), (5000, 8), (300, 7), (130, 1025), (64, 2048)])
@pytest.mark.parametrize("kind", ["normal", "scales", "every bit", "largest", "integers"])
def test_large_arrays_add_up_exactly(shape, kind):
    """Whole blocks, ends of blocks, blocks of columns, and levels of all depths."""
    rng = np.random.default_rng(shape[0])
    values = rng.normal(size=shape).astype(np.float32)
    if kind == "scales":
        values *= np.float32(10.0) ** rng.integers(-36, 36, shape[1])
    elif kind == "every bit":
        values = rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
        values = np.where(np.isfinite(values), values, np.float32(0))
    elif kind == "largest":
        values = np.full(shape, LARGEST)
        values[rng.random(shape) < 0.1] = DENORMAL
    elif kind == "integers":
        values = np.round(values * 100)
    state = moments_of(values)
    totals, squares = exact_sums_of(values)
    assert [len(values)] * shape[1] == state.count.tolist()
    assert totals == state._sums.to_integers()
    assert squares == state._squares.to_integers()
    pieces = Moments(shape[1])
    rows = 0
    while rows < len(values):  # small batches, and then the rest
        size = int(rng.integers(0, 100)) if rows < 1000 else len(values)
        pieces.update(values[rows : rows + size])
        rows += size
    assert frozen(state) == frozen(pieces)


def test_how_an_array_lies_in_memory_does_not_matter():
    values = np.random.default_rng(0).normal(size=(9000, 6)).astype(np.float32)
    expected = frozen(moments_of(values))
    assert expected == frozen(moments_of(np.asfortranarray(values)))
    assert expected == frozen(moments_of(np.repeat(values, 2, axis=0)[::2]))
    assert expected == frozen(moments_of(values[::-1]))
    wide = np.zeros((9000, 12), np.float32)
    wide[:, ::2] = values
    assert expected == frozen(moments_of(wide[:, ::2]))


def test_what_is_given_is_not_changed_and_not_kept():
    values = np.random.default_rng(0).normal(size=(9000, 6)).astype(np.float32)
    values[5, 2] = np.nan
    values[7, 1] = np.inf
    before, rows = values.copy(), values[:10].copy()
    state = moments_of(rows)
    expected = frozen(moments_of(before[:10]))
    rows[:] = 1  # a batch whose memory is used again
    assert expected == frozen(state)
    moments_of(values)
    assert before.tobytes() == values.tobytes()


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("column", "mean", "variance", "counts"),
    [
        ([1, 2, 3], 2, 2 / 3, (3, 0, 0)),
        ([5], 5, 0, (1, 0, 0)),
        ([-0.0, -0.0], 0, 0, (2, 0, 0)),
        ([LARGEST, LARGEST], LARGEST, 0, (2, 0, 0)),
        ([LARGEST, -LARGEST], 0, float(LARGEST) ** 2, (2, 0, 0)),
        ([DENORMAL, DENORMAL], DENORMAL, 0, (2, 0, 0)),
        ([DENORMAL, 0], 2.0**-150, 2.0**-300, (2, 0, 0)),
        ([LARGEST, DENORMAL, -LARGEST], 2.0**-149 / 3, 2 * float(LARGEST) ** 2 / 3, (3, 0, 0)),
        ([1, NAN], NAN, NAN, (1, 1, 0)),
        ([NAN], NAN, NAN, (0, 1, 0)),
        ([1, INF], INF, NAN, (1, 0, 1)),
        ([-INF, 1], -INF, NAN, (1, 0, 1)),
        ([-INF], -INF, NAN, (0, 0, 1)),
        ([INF, -INF], NAN, NAN, (0, 0, 2)),
        ([INF, NAN], NAN, NAN, (0, 1, 1)),
    ],
)
def test_edges(column, mean, variance, counts):
    state = moments_of(np.array([column, [1] * len(column)], np.float32).T)
    means, variances = state.finalize()
    np.testing.assert_equal([means[0], variances[0]], [float(mean), float(variance)])
    assert [1.0, 0.0] == [means[1], variances[1]]  # the other column knows nothing of it
    assert counts == (state.count[0], state.num_nan[0], state.num_infinite[0])


def test_nan_can_be_ignored():
    state = moments_of(np.array([[1, NAN], [NAN, INF], [3, 1]], np.float32))
    mean, variance = state.finalize(ignore_nan=True)
    np.testing.assert_equal(mean, [2, INF])
    np.testing.assert_equal(variance, [1, NAN])


def test_rows_of_nothing_change_nothing():
    state = moments_of(np.array([[1, 2]], np.float32))
    before = frozen(state)
    state.update(np.zeros((0, 2), np.float32))
    state.merge(Moments(2))
    assert before == frozen(state)
    assert frozen(Moments(2)) == frozen(moments_of(np.zeros((0, 2), np.float32)))


def test_a_variance_that_floats_lose():
    """1e8 + {0, 8}: the difference of float sums of squares has no digit left."""
    values = np.array([[1e8], [1e8 + 8]] * 5000, np.float32)
    mean, variance = moments_of(values).finalize()
    assert ([1e8 + 4], [16]) == (mean.tolist(), variance.tolist())


def test_carries_come_before_a_word_is_full(monkeypatch):
    values = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    expected = frozen(moments_of(values))
    monkeypatch.setattr(exact_sums, "_MOST_ADDITIONS", 2)
    state = Moments(2)
    for row in values:
        state.update(row[None])
        assert [2] * 2 >= [state._sums._num_additions, len(state.count)]
    assert expected == frozen(state)


def test_merging_a_state_with_itself_doubles_it():
    values = np.array([[1, NAN], [3, 4]], np.float32)
    state = moments_of(values)
    state.merge(state)
    assert frozen(moments_of(np.concatenate([values, values]))) == frozen(state)


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_arrays_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(rows, 3\); got float32 of shape"):
        Moments(3).update(np.zeros(shape, np.float32))


def test_other_misuse_is_refused():
    with pytest.raises(ValueError, match="got float64"):
        Moments(3).update(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="num_features=0"):
        Moments(0)
    with pytest.raises(ValueError, match="of 2 features cannot take those of 3"):
        Moments(2).merge(Moments(3))
