"""Packed rows: each token once, documents whole where they fit, the same rows as by definition."""

from __future__ import annotations

import itertools
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.document_packing import (
    BEST_FIT,
    CONCATENATE,
    WAYS_TO_PACK,
    count_up,
    pack_documents,
)

ways = st.sampled_from(WAYS_TO_PACK)
documents = st.lists(st.integers(0, 25), max_size=30)
row_lengths = st.integers(1, 12)
windows = st.integers(1, 40)


def plan(lengths, row_length, how=BEST_FIT, window=1000):
    return pack_documents(np.array(lengths, dtype=np.int64), row_length, how=how, window=window)


def rows_of(rows):
    """For each row its pieces: document, first token, number of tokens."""
    pieces = np.stack([rows.documents, rows.starts, rows.lengths], axis=1).tolist()
    bounds = rows.first_pieces.tolist()
    return [
        [tuple(piece) for piece in pieces[first:stop]]
        for first, stop in itertools.pairwise(bounds)
    ]


def tokens_of(row):
    return [(number, start + place) for number, start, size in row for place in range(size)]


def fit_best(lengths, row_length, window):
    """The same by definition, document by document."""
    done = []
    for first in range(0, len(lengths), window):
        pieces = [
            (number, start, min(lengths[number] - start, row_length))
            for number in range(first, min(first + window, len(lengths)))
            for start in range(0, lengths[number], row_length)
        ]
        rows = []
        for piece in sorted(pieces, key=lambda piece: -piece[2]):
            left = [row_length - sum(size for _, _, size in row) for row in rows]
            fitting = [at for at, space in enumerate(left) if space >= piece[2]]
            if fitting:
                rows[min(fitting, key=lambda at: left[at])].append(piece)
            else:
                rows.append([piece])
        done += sorted(map(sorted, rows))
    return done


LENGTHS = [5, 6, 3, 10, 2]


def test_best_fit_as_drawn():
    """Rows of 8 tokens: documents that fit are whole, and in order."""
    expected = [[(0, 0, 5), (2, 0, 3)], [(1, 0, 6), (3, 8, 2)], [(3, 0, 8)], [(4, 0, 2)]]
    assert expected == rows_of(plan(LENGTHS, 8))


def test_concatenation_as_drawn():
    """Documents are cut where a row is full."""
    expected = [
        [(0, 0, 5), (1, 0, 3)],
        [(1, 3, 3), (2, 0, 3), (3, 0, 2)],
        [(3, 2, 8)],
        [(4, 0, 2)],
    ]
    assert expected == rows_of(plan(LENGTHS, 8, CONCATENATE))


@given(documents, row_lengths, ways, windows)
def test_each_token_comes_once(lengths, row_length, how, window):
    """In pieces of at least one token, and rows that none exceeds."""
    rows = rows_of(plan(lengths, row_length, how, window))
    expected = [(number, place) for number, size in enumerate(lengths) for place in range(size)]
    assert expected == sorted(token for row in rows for token in tokens_of(row))
    assert all(size > 0 for row in rows for _, _, size in row)
    assert all(0 < len(tokens_of(row)) <= row_length for row in rows)


@given(documents, row_lengths, windows)
@example([9, 5, 5, 2], 12, 10)
@example([3, 1, 2, 3], 4, 10)
def test_best_fit_is_what_it_is_called(lengths, row_length, window):
    """The longest first, each into the row with the least space that is enough."""
    assert fit_best(lengths, row_length, window) == rows_of(
        plan(lengths, row_length, BEST_FIT, window)
    )


@given(st.lists(st.sampled_from([0, 1, 2, 3, 8, 9]), max_size=60), st.integers(10, 16), windows)
def test_runs_of_documents_of_one_length_are_no_other_case(lengths, row_length, window):
    """They are packed together, into the rows in which they would be one by one."""
    assert fit_best(lengths, row_length, window) == rows_of(
        plan(lengths, row_length, BEST_FIT, window)
    )


@given(documents, row_lengths, ways, windows)
def test_contents_are_counted(lengths, row_length, how, window):
    """Of each row its pieces, their tokens, and its places."""
    found = plan(lengths, row_length, how, window)
    expected = [[len(row), len(tokens_of(row)), row_length] for row in rows_of(found)]
    assert expected == found.count_contents().tolist()


@given(documents, row_lengths, windows)
def test_documents_that_fit_are_whole(lengths, row_length, window):
    """And others are cut into whole rows and a rest."""
    found = plan(lengths, row_length, BEST_FIT, window)
    counts = np.bincount(found.documents, minlength=len(lengths)).tolist()
    assert [-(-size // row_length) for size in lengths] == counts


@given(documents, row_lengths, windows, st.lists(st.integers(0, 25), max_size=5))
def test_a_window_is_packed_by_itself(lengths, row_length, window, more):
    """What comes after changes nothing of the windows before."""
    whole = len(lengths) // window * window
    head = rows_of(plan(lengths[:whole], row_length, BEST_FIT, window))
    both = rows_of(plan(lengths[:whole] + more, row_length, BEST_FIT, window))
    assert head == both[: len(head)]


@given(documents, row_lengths, windows)
def test_concatenation_wastes_the_last_row_only(lengths, row_length, window):
    """Rows one behind the other are the documents one behind the other."""
    found = plan(lengths, row_length, CONCATENATE, window)
    rows = rows_of(found)
    expected = [(number, place) for number, size in enumerate(lengths) for place in range(size)]
    assert expected == [token for row in rows for token in tokens_of(row)]
    assert all(len(tokens_of(row)) == row_length for row in rows[:-1])
    assert found.num_rows == -(-sum(lengths) // row_length)


@given(documents, row_lengths, ways, st.data())
def test_any_rows_are_laid_out(lengths, row_length, how, data):
    """In any order, also the same one twice."""
    found = plan(lengths, row_length, how)
    all_rows = rows_of(found)
    chosen = data.draw(st.lists(st.integers(0, max(0, len(all_rows) - 1)), max_size=6))
    chosen = chosen if all_rows else []
    layout = found.lay_out(np.array(chosen, dtype=np.int64))
    pieces = [piece for row in chosen for piece in all_rows[row]]
    got = np.stack([layout.documents, layout.starts, layout.lengths], axis=1)
    assert pieces == list(map(tuple, got.tolist()))
    assert [len(tokens_of(all_rows[row])) for row in chosen] == layout.filled.tolist()
    numbers = [number + 1 for row in chosen for number in range(len(all_rows[row]))]
    assert numbers == layout.numbers.tolist()


@pytest.mark.parametrize(("how", "waste"), [(BEST_FIT, 6 / 32), (CONCATENATE, 6 / 32)])
def test_waste_is_the_share_of_padding(how, waste):
    found = plan(LENGTHS, 8, how)
    assert (26, waste) == (found.num_tokens, found.waste)


@pytest.mark.parametrize("how", WAYS_TO_PACK)
@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_token_is_no_row(how, lengths):
    found = plan(lengths, 4, how)
    assert (0, 0, 0.0) == (found.num_rows, found.num_tokens, found.waste)


def test_windows_of_uneven_documents_waste_little():
    """What packing is for: less than a hundredth, where one document a row wastes four fifths."""
    lengths = np.random.default_rng(0).lognormal(5.5, 1.0, 5000).astype(np.int64)
    assert plan(lengths, 2048).waste < 0.01
    assert 1 - lengths.clip(max=2048).mean() / 2048 > 0.8


@given(st.lists(st.integers(0, 4), max_size=8))
def test_count_up(counts):
    expected = [number for count in counts for number in range(count)]
    assert expected == count_up(np.array(counts, dtype=np.int64)).tolist()


@pytest.mark.parametrize(
    ("how", "expected"), [(BEST_FIT, "2b55c43a351505d1"), (CONCATENATE, "a189ce08406d00b7")]
)
def test_plans_are_frozen(how, expected):
    """States count rows: a plan that changed would lose tokens of those that are resumed."""
    rows = plan([number * 7919 % 97 for number in range(500)], 64, how, window=100)
    digest = blake2b(digest_size=8)
    for array in (rows.first_pieces, rows.documents, rows.starts, rows.lengths):
        digest.update(array.astype("<i8").tobytes())
    assert expected == digest.hexdigest()
