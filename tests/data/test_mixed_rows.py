"""Rows of several sources as one leaf: cut, chosen, joined and sent like any other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.mixed import MixedRows
from torch_distinput.data.batch.tree import Examples, flatten


def make_rows(sources):
    """Numbers in the order of the mixture: source 0 has dicts of tensors, source 1 examples."""
    sources = np.array(sources, dtype=np.int64)
    places = [np.flatnonzero(sources == source) for source in range(3)]
    parts = (
        {"x": torch.from_numpy(places[0])} if len(places[0]) else None,
        Examples(places[1].tolist()) if len(places[1]) else None,
        MixedRows(np.zeros(len(places[2]), dtype=np.int64), (torch.from_numpy(places[2]),))
        if len(places[2])
        else None,
    )
    return MixedRows(sources, parts)


def list_rows(mixed):
    """The numbers in order, with their sources."""
    first, second, third = mixed.parts
    own = [
        [] if first is None else first["x"].tolist(),
        [] if second is None else list(second),
        [] if third is None else third.parts[0].tolist(),
    ]
    left = list(map(iter, own))
    listed = [(source, next(left[source])) for source in mixed.sources.tolist()]
    assert all(next(rest, None) is None for rest in left)
    return listed


sources_of_rows = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@pytest.mark.slow
@given(sources_of_rows, st.data())
def test_rows_stay_with_their_source(sources, data):
    """Slices, choices and what is joined again are those of the plain list."""
    mixed, expected = make_rows(sources), list(zip(sources, range(len(sources)), strict=True))
    assert (len(sources), expected) == (rows.num_rows(mixed), list_rows(mixed))
    start = data.draw(st.integers(0, len(sources) - 1))
    stop = data.draw(st.integers(start + 1, len(sources)))
    middle = rows.slice_rows(mixed, start, stop)
    assert expected[start:stop] == list_rows(middle)
    pieces = [
        rows.slice_rows(mixed, *cut)
        for cut in ((0, start), (start, stop), (stop, len(sources)))
        if cut[0] < cut[1]
    ]
    assert expected == list_rows(rows.concat_rows(pieces))
    chosen = data.draw(st.lists(st.integers(0, len(sources) - 1), min_size=1, max_size=9))
    taken = rows.take_rows(mixed, np.array(chosen))
    assert [expected[row] for row in chosen] == list_rows(taken)
    assert list_rows(middle) == list_rows(rows.compact(middle))
    assert list_rows(middle) == list_rows(pickle.loads(pickle.dumps(middle)))


def test_it_is_a_leaf_of_no_batch():
    """Rows are finished before anybody sees them."""
    mixed = make_rows([0, 1, 0])
    assert [mixed] == flatten(mixed)[0]
    assert [] == list_rows(rows.drop_rows(mixed))
    assert rows.num_bytes(mixed) > 3 * 8
    with pytest.raises(TypeError, match="rows that are finished"):
        list(rows.iterate_rows(mixed))
