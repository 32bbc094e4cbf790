"""Counts of tokens: the law, Counter's numbers, and the order of bytes."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocessing.states.laws import frozen, merged, through_a_file
from torch_distinput.preprocessing.states.token_counts import TokenCounts

# Bytes of every kind: UTF-8 of each length, NUL, line ends, and bytes that are none.
RAW = st.one_of(
    st.sampled_from([b"", b"\0", b"a", b"a\0", b"\n", b"\x80", b"\xff", "é".encode(), b"\xc3"]),
    st.sampled_from(["\uffff".encode(), "\U00010000".encode(), b"\xed\xa0\x80", b"\xf5"]),
    st.binary(max_size=3),
    st.text(max_size=3).map(str.encode),
)
STRINGS = RAW.map(lambda raw: raw.decode("utf-8", "surrogateescape"))
INTS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
TOKENS = st.sampled_from([STRINGS, INTS]).flatmap(lambda kind: st.lists(kind, max_size=30))
DOCUMENTS = st.sampled_from([STRINGS, INTS]).flatmap(
    lambda kind: st.lists(st.lists(kind, max_size=5), max_size=15)
)


def tokens_of(tokens):
    state = TokenCounts(documents=False)
    state.update(tokens)
    return state


def documents_of(documents):
    state = TokenCounts(documents=True)
    state.update(documents)
    return state


def rank(token):
    return token if isinstance(token, int) else token.encode("utf-8", "surrogateescape")


def best(counts):
    """Keras's order: by count, then by bytes, both descending."""
    return sorted(counts, key=lambda token: (counts[token], rank(token)), reverse=True)


@given(st.data(), TOKENS)
def test_the_multiset_of_tokens_alone_decides(data, tokens):
    expected = tokens_of(tokens)
    state = merged(lambda: TokenCounts(documents=False), tokens, data, st)
    assert frozen(expected) == frozen(state)
    assert best(Counter(tokens)) == state.finalize()[0]
    assert (len(set(tokens)), len(tokens)) == (len(state), state.num_tokens)


@pytest.mark.slow
@given(st.data(), DOCUMENTS)
def test_the_multiset_of_documents_alone_decides(data, documents):
    expected = documents_of(documents)
    state = merged(lambda: TokenCounts(documents=True), documents, data, st)
    assert frozen(expected) == frozen(state)
    counts = Counter(chain.from_iterable(documents))
    document_counts = Counter(chain.from_iterable(map(set, documents)))
    max_tokens = data.draw(st.none() | st.integers(0, 20))
    tokens, numbers = state.finalize(max_tokens)
    assert best(counts)[:max_tokens] == tokens
    assert [document_counts[token] for token in tokens] == numbers.tolist()
    assert len(documents) == state.num_documents


@given(st.data(), DOCUMENTS, st.integers(1, 5))
def test_parts_have_each_token_once_and_merge_to_the_whole(data, documents, num_parts):
    state = documents_of(documents)
    parts = state.partition(num_parts)
    assert len(state) == sum(map(len, parts))
    others = documents_of(data.draw(st.permutations(documents))).partition(num_parts)
    assert list(map(frozen, parts)) == list(map(frozen, others))
    max_tokens = data.draw(st.integers(0, 10))
    whole, of_the_best = TokenCounts(documents=True), TokenCounts(documents=True)
    for part in parts[::-1]:
        whole.merge(part)
        of_the_best.merge(part.top(max_tokens))
    assert frozen(state) == frozen(whole)
    assert frozen(state.top(max_tokens)) == frozen(of_the_best.top(max_tokens))
    assert state.finalize(max_tokens)[0] == of_the_best.finalize(max_tokens)[0]


@given(st.data(), DOCUMENTS)
def test_tokens_can_be_left_out(data, documents):
    state = documents_of(documents)
    before = frozen(state)
    left_out = data.draw(st.lists(st.sampled_from([x for row in documents for x in row] or [""])))
    rest = documents_of([[x for x in row if x not in left_out] for row in documents])
    assert frozen(rest) == frozen(state.without(left_out))
    assert frozen(state.top(None)) == frozen(state) == before


def test_equal_counts_stand_in_the_order_of_bytes():
    r"""By code points "\udcff" (byte ff) is below "\uffff" (ef bf bf) and "\U00010000" (f0 ..)."""
    tokens = ["a", "\udcff", "\U00010000", "\uffff", "é", "\udc80", "a\0", ""]
    expected = ["\udcff", "\U00010000", "\uffff", "é", "\udc80", "a\0", "a", ""]
    assert expected == tokens_of(tokens).finalize()[0]
    assert b"".join(map(rank, expected[::-1])) == tokens_of(tokens).to_arrays()["bytes"].tobytes()
    assert [10, 2, 1, -5] == tokens_of([2, 10, -5, 1]).finalize()[0]


def test_the_part_of_a_token_is_the_same_in_all_processes():
    """Not Python's hash(), which is salted: frozen values."""
    parts = tokens_of([f"token {i}" for i in range(100)]).partition(4)
    owners = {token: i for i, part in enumerate(parts) for token in part.finalize()[0]}
    assert [0, 2, 0, 2, 1, 3, 1, 3, 2, 0] == [owners[f"token {i}"] for i in range(10)]
    integers = tokens_of(range(0, 4000, 4)).partition(4)
    assert min(map(len, integers)) > 200  # also where all have the same remainder


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint32])
def test_arrays_of_integers(dtype):
    array = np.random.default_rng(0).integers(0, 9, (20, 7)).astype(dtype)
    assert frozen(tokens_of(array.ravel().tolist())) == frozen(tokens_of(array))
    assert frozen(documents_of(array.tolist())) == frozen(documents_of(array))
    assert {int} == set(map(type, tokens_of(array).finalize()[0]))


def test_documents_without_tokens_are_documents():
    state = documents_of([[], ["a", "a", "b"], []])
    assert (2, 3, 3) == (len(state), state.num_tokens, state.num_documents)
    assert (["a", "b"], [1, 1]) == (state.finalize()[0], state.finalize()[1].tolist())
    assert 3 == through_a_file(state).num_documents
    assert (["a", "b"], 0) == (
        tokens_of(["a", "a", "b"]).finalize()[0],
        len(tokens_of(["a"]).finalize()[1]),
    )


def test_nothing_changes_nothing():
    state = tokens_of(["a"])
    before = frozen(state)
    state.update([])
    state.update(np.zeros(0, np.int64))
    state.merge(TokenCounts(documents=False))
    assert before == frozen(state)
    assert frozen(TokenCounts(documents=True)) == frozen(documents_of([]))
    assert ([], 0) == (tokens_of([]).finalize(5)[0], len(tokens_of([]).partition(3)[2]))


def test_merging_a_state_with_itself_doubles_it():
    state = documents_of([["a", "b"], ["a"]])
    state.merge(state)
    assert frozen(documents_of([["a", "b"], ["a"]] * 2)) == frozen(state)


@pytest.mark.parametrize(
    ("documents", "examples", "error", "words"),
    [
        (False, "word", TypeError, "one string of 4 characters"),
        (True, ["word"], TypeError, "the document 'word'"),
        (True, [["a"], 3], TypeError, "the document 3"),
        (False, ["a", 1], TypeError, "got both"),
        (False, [b"a"], TypeError, "got bytes"),
        (False, [1.0], TypeError, "got float"),
        (False, [True], TypeError, "got bool"),
        (False, np.array(["a"]), TypeError, "got <U1"),
        (False, list(np.arange(2)), TypeError, "got int64"),
        (False, ["a", "x\ud800"], ValueError, r"got 'x\\ud800'"),
        (False, ["é", "\udcc3\udca9"], ValueError, r"got '\\udcc3\\udca9'"),  # the bytes of é
        (False, [1, 2**63], ValueError, "got 9223372036854775808"),
        (False, [-(2**63) - 1], ValueError, "got -9223372036854775809"),
        (False, np.array([2**63], np.uint64), ValueError, "got 9223372036854775808"),
    ],
)
def test_what_cannot_be_counted_is_refused(documents, examples, error, words):
    with pytest.raises(error, match=words):
        TokenCounts(documents=documents).update(examples)


def test_states_of_other_kinds_are_refused():
    with pytest.raises(TypeError, match="got both"):
        tokens_of(["a"]).merge(tokens_of([1]))
    with pytest.raises(TypeError, match="got both"):
        tokens_of(["a"]).update([1])
    with pytest.raises(ValueError, match="documents=False cannot take those with documents=True"):
        tokens_of(["a"]).merge(documents_of([["a"]]))
    with pytest.raises(ValueError, match="num_parts=0"):
        tokens_of(["a"]).partition(0)
