"""Texts that are counted many at once: the counts are those of one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocessing.states.laws import frozen, through_a_file
from tests.preprocessing.states.test_token_counts import INTS, STRINGS, best, tokens_of
from torch_distinput import PackedStrings
from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.states import pending_texts
from torch_distinput.preprocessing.states.token_counts import TokenCounts

BATCHES = st.lists(st.tuples(st.sampled_from(["list", "packed", "slow"]), st.lists(STRINGS)))


def add(state, how, tokens):
    """Add a batch in one of the ways."""
    if how == "packed":
        packed = PackedStrings.from_list(["b", *tokens, "a"])[1:-1]
        assert state.update_texts(packed) == bool(tokens)
    elif how == "slow" or not state.update_texts(tokens):
        state.update(tokens)


@pytest.mark.parametrize("most", [1, 1 << 24])
@given(batches=BATCHES)
def test_the_counts_are_those_of_one_by_one(most, batches):
    state = TokenCounts(documents=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pending_texts, "_MOST_BYTES", most)
        for how, tokens in batches:
            add(state, how, tokens)
    expected = tokens_of([token for _, tokens in batches for token in tokens])

    assert frozen(expected) == frozen(through_a_file(state)) == frozen(state)


@given(st.lists(STRINGS, min_size=1), st.lists(STRINGS, min_size=1))
def test_what_waits_is_in_all_that_can_be_asked(first, second):
    def wait(tokens):
        state = TokenCounts(documents=False)
        add(state, "packed", tokens)
        return state

    expected = tokens_of(first + second)
    merged = wait(first)
    merged.merge(wait(second))

    assert frozen(expected) == frozen(merged)
    assert (len(set(first)), len(first)) == (len(wait(first)), wait(first).num_tokens)
    assert tokens_of(first).finalize()[0] == wait(first).finalize()[0]
    assert frozen(tokens_of(first).without(second)) == frozen(wait(first).without(second))
    assert list(map(frozen, tokens_of(first).partition(3))) == list(
        map(frozen, wait(first).partition(3))
    )


def test_a_batch_may_be_written_over_once_it_was_added():
    strings = PackedStrings.from_list(["a", "b", "a"])
    state = TokenCounts(documents=False)
    assert state.update_texts(strings)
    strings.data.fill_(ord("x"))
    strings.offsets.fill_(0)

    assert ["a", "b"] == state.finalize()[0]


@pytest.mark.parametrize(
    "tokens",
    [[], ["a\0"], ["\udcff"], [None], ["a", b"a"], [1], PackedStrings.from_list(["a", None])],
)
def test_what_cannot_be_added_leaves_no_trace(tokens):
    state = TokenCounts(documents=False)

    assert not state.update_texts(tokens)
    assert frozen(tokens_of([])) == frozen(state)


@given(INTS)
def test_texts_do_not_go_to_integers(number):
    state = tokens_of([number])
    assert not state.update_texts(["a"])
    with pytest.raises(TypeError, match="got both"):
        tokens_of(["a"]).update([number])
    waiting = TokenCounts(documents=False)
    assert waiting.update_texts(["a"])
    with pytest.raises(TypeError, match="got both"):
        waiting.update([number])


def test_plain_texts_are_not_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr(TokenCounts, "update", None)
    layer = pp.StringLookup()
    layer.adapt(iter([["a", "é"], np.array(["a"], dtype=object), PackedStrings.from_list(["é"])]))

    assert ["é", "a"] == layer.get_vocabulary(include_special_tokens=False)


def test_what_waits_has_a_bound(monkeypatch):
    monkeypatch.setattr(pending_texts, "_MOST_BYTES", 100)
    state, most = TokenCounts(documents=False), 0
    for number in range(100):
        assert state.update_texts([f"token {number}"])
        most = max(most, state._pending._num_bytes)

    assert 100 == len(state)
    assert most < 200


def test_documents_are_counted_one_by_one():
    assert not TokenCounts(documents=True).update_texts(["a"])


@pytest.mark.parametrize("has_arrow", [True, False])
def test_layers_adapt_to_lists_and_packed_strings_alike(monkeypatch, has_arrow):
    monkeypatch.setattr(pending_texts, "_has_arrow", lambda: has_arrow)
    batches = [["b", "a", "é", "a"], ["", "\udcff", "c\0"], ["a", "b"], [b"b", "a"]]
    counts = tokens_of(["b", "a", "é", "a", "", "\udcff", "c\0", "a", "b", "b", "a"])
    forms = {
        "lists": batches,
        "arrays": [np.array(batch, dtype=object) for batch in batches],
        "packed": [PackedStrings.from_list(b) for b in batches[:3]] + batches[3:],
    }
    for form in forms.values():
        layer = pp.StringLookup()
        layer.adapt(iter(form))

        assert best(counts._counts) == layer.get_vocabulary(include_special_tokens=False)


def test_tokens_of_texts_are_counted_together():
    layer = pp.TextVectorization()
    layer.adapt(iter([["a b", "b"], ["c b a"]]))

    assert ["b", "a", "c"] == layer.get_vocabulary(include_special_tokens=False)
