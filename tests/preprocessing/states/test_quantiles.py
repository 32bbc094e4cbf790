"""Quantiles: the law, numpy's quantiles where they are exact, and the error where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.preprocessing.states.laws import frozen, merged
from torch_distinput.preprocessing.states import quantiles
from torch_distinput.preprocessing.states.quantiles import MOST_BUCKETS, Quantiles

LARGEST = float(np.finfo(np.float32).max)
NAN, INF = np.nan, np.inf
EDGES = st.sampled_from([0.0, -0.0, 1.0, 1e-45, -1e-45, LARGEST, -LARGEST, INF, -INF, NAN, 0.1])
ANY = st.one_of(st.floats(width=32), EDGES, st.integers(-3, 3))


def arrays(elements, max_size=60):
    return hnp.arrays(np.float32, st.integers(1, max_size), elements=elements.map(np.float32))


def quantiles_of(values):
    state = Quantiles()
    state.update(np.asarray(values, np.float32))
    return state


def sorted_values(values):
    values = np.asarray(values, np.float32)
    return np.sort(values[~np.isnan(values)] + np.float32(0))


def fewest_dropped_bits(values, most_buckets):
    """The definition: keys in order, and the first L that leaves few enough."""
    bits = sorted_values(values).view(np.uint32).astype(np.int64)
    keys = np.where(bits >> 31, 0xFFFFFFFF - bits, bits + (1 << 31))
    return next(n for n in range(33) if len(np.unique(keys >> n)) <= most_buckets)


@given(st.data(), arrays(ANY), st.sampled_from([1, 2, 5, 30, MOST_BUCKETS]), st.integers(1, 70))
def test_the_multiset_alone_decides(data, values, most_buckets, most_waiting):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "MOST_BUCKETS", most_buckets)
        patch.setattr(quantiles, "_MOST_WAITING", most_waiting)
        expected = quantiles_of(values)
        state = merged(Quantiles, values, data, st)
        assert frozen(expected) == frozen(state)
        assert fewest_dropped_bits(values, most_buckets) == state.to_arrays()["dropped_bits"]
        if state.count:
            num_bins = data.draw(st.integers(1, 2 * len(values)))
            assert expected.finalize(num_bins).tobytes() == state.finalize(num_bins).tobytes()


@given(arrays(st.one_of(st.floats(-1e6, 1e6, width=32), st.integers(-3, 3))), st.integers(1, 60))
def test_few_values_have_the_quantiles_of_numpy(values, num_bins):
    boundaries = quantiles_of(values).finalize(num_bins)
    assert np.float32 == boundaries.dtype
    if len(values) < num_bins:
        assert sorted_values(values)[:-1].tolist() == boundaries.tolist()
        return
    exact = np.quantile(
        values.astype(np.float64),
        np.arange(1, num_bins) / num_bins,
        method="interpolated_inverted_cdf",
    )
    # numpy's positions are rounded: an error of the size of the gap, where the result is near 0.
    np.testing.assert_allclose(boundaries, exact, rtol=2.0**-23, atol=1e-9 * np.ptp(values))


@given(arrays(ANY), st.integers(1, 60))
@example(np.array([-1e-45, 0, 0, 0, 0, 0, 0, 0], np.float32), 5)  # a half of it rounds to -0
def test_boundaries_ascend_and_lie_among_the_values(values, num_bins):
    state = quantiles_of(values)
    if not state.count:
        return
    boundaries = state.finalize(num_bins)
    assert min(num_bins, max(state.count, 1)) - 1 == len(boundaries)
    assert np.all(boundaries[1:] >= boundaries[:-1])
    among = sorted_values(values)
    assert np.all((boundaries >= among[0]) & (boundaries <= among[-1]))
    assert not np.any(np.signbit(boundaries) & (boundaries == 0))


TWELVE = [9, 1, 11, 3, 8, 0, 2, 7, 6, 5, 10, 4]


@pytest.mark.parametrize(
    ("values", "num_bins", "expected"),
    [
        # The exact boundaries of the golden cases discretization/adapt_*.
        (TWELVE, 2, [5]),
        (TWELVE, 3, [3, 7]),
        (TWELVE, 4, [2, 5, 8]),
        (TWELVE, 5, [1.399999976158142, 3.799999952316284, 6.199999809265137, 8.600000381469727]),
        ([1, 1, 1, 1, 2, 0], 3, [1, 1]),
        ([3, 1, 2], 8, [1, 2]),
        (TWELVE, 1, []),
        ([5] * 20, 3, [5, 5]),
        # Where numpy has NaN, or overflows.
        ([-LARGEST, LARGEST, LARGEST], 2, [0]),
        ([-LARGEST, -LARGEST, LARGEST], 2, [-LARGEST]),
        ([-LARGEST, LARGEST, LARGEST, LARGEST, LARGEST], 4, [-LARGEST / 2, LARGEST, LARGEST]),
        ([-INF, INF], 2, [-INF]),
        ([-INF, 1, INF], 2, [-INF]),
        ([1, 2, INF], 2, [1.5]),
        ([1, INF, INF], 2, [1]),
        ([INF, INF, INF], 2, [INF]),
        ([-INF, -INF, -INF], 3, [-INF, -INF]),
        ([1, NAN, 3, NAN], 2, [1]),
        ([7], 5, []),
    ],
)
def test_edges(values, num_bins, expected):
    boundaries = quantiles_of(values).finalize(num_bins)
    np.testing.assert_allclose(boundaries, np.array(expected, np.float32), rtol=3e-7)


def sample(kind, num_values=1_000_000):
    rng = np.random.default_rng(3)
    values = rng.normal(size=num_values)
    if kind == "lognormal":
        values = np.exp(4 * values)
    elif kind == "zero-inflated":
        values = np.where(rng.random(num_values) < 0.7, 0, np.exp(values))
    elif kind == "bytes":
        values = np.floor(rng.random(num_values) * 256)
    return values.astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "most_error"),
    [("normal", 1e-4), ("lognormal", 1e-4), ("zero-inflated", 1e-4), ("bytes", 0)],
)
def test_rank_error_of_many_distinct_values(kind, most_error):
    """The distance from i / 1000 to the nearest rank of boundary i, of all 999."""
    values = sample(kind)
    whole = quantiles_of(values)
    boundaries = whole.finalize(1000)
    ordered, ranks = np.sort(values), np.arange(1, 1000) / 1000
    too_high = np.searchsorted(ordered, boundaries, "left") / len(values) - ranks
    too_low = ranks - np.searchsorted(ordered, boundaries, "right") / len(values)
    assert max(too_high.max(), too_low.max(), 0) <= most_error
    assert sum(array.nbytes for array in whole.to_arrays().values()) <= 1536 * 1024 + 16
    parts = Quantiles()
    for part in np.array_split(np.flip(values), 7):
        parts.merge(quantiles_of(part))
    assert frozen(whole) == frozen(parts)


def test_values_stand_for_their_bucket_nearest_to_zero():
    """Numbers of few bits, which data like to repeat, stay what they are."""
    rng = np.random.default_rng(0)
    atoms = np.array([-2.5, -1, 0, 0.5, 1, 3, 255, INF, -INF], np.float32)
    values = np.concatenate([rng.normal(size=300_000).astype(np.float32), np.repeat(atoms, 50_000)])
    state = quantiles_of(values)
    assert state.to_arrays()["dropped_bits"] > 8
    representatives = state._find_values()
    assert set(atoms.tolist()) <= set(representatives.tolist())
    ordered = np.sort(values)
    standing_in = np.repeat(representatives, state.to_arrays()["counts"])
    assert np.all(np.abs(standing_in) <= np.abs(ordered))
    assert np.all(np.sign(standing_in) * np.sign(ordered) >= 0)
    boundaries = state.finalize(30)
    assert 4 < sum(boundary in atoms for boundary in boundaries.tolist())


def test_a_bucket_next_to_zero_stands_for_zero_without_a_sign(monkeypatch):
    monkeypatch.setattr(quantiles, "MOST_BUCKETS", 2)
    boundaries = quantiles_of([-1e-45, -1e-45, -3e-45, 1]).finalize(4)
    assert [0, 0, 0] == boundaries.tolist()
    assert not np.any(np.signbit(boundaries))


def test_shapes_and_memory_do_not_matter():
    values = np.random.default_rng(0).normal(size=(6, 8, 4)).astype(np.float32)
    expected = frozen(quantiles_of(values))
    assert expected == frozen(quantiles_of(np.asfortranarray(values)))
    assert expected == frozen(quantiles_of(values.repeat(2, axis=1)[:, ::2]))
    state = Quantiles()
    for value in values.ravel():
        batch = np.array(value)
        state.update(batch)
        batch[...] = NAN  # its memory is used again
    assert expected == frozen(state)
    assert frozen(Quantiles()) == frozen(quantiles_of(np.zeros((3, 0))))


def test_counts():
    state = quantiles_of([1, NAN, INF, -NAN, -0.0])
    assert (3, 2) == (state.count, state.num_nan)
    assert [1] * 3 == state.to_arrays()["counts"].tolist()
    state.merge(state)
    assert (6, 4) == (state.count, state.num_nan)
    assert 0 == quantiles_of([NAN]).count


def test_misuse_is_refused():
    with pytest.raises(ValueError, match=r"float32 arrays; got float64 of shape \(2,\)"):
        Quantiles().update(np.zeros(2))
    with pytest.raises(ValueError, match="num_bins=0"):
        quantiles_of([1]).finalize(0)
