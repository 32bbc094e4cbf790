"""Layers take packed strings as they lie in batches, and give what they give for lists."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocessing.every_layer import TOKENS, WIDTH, WORDS, a_text, batches, one_batch, texts
from torch_distinput import PackedStrings
from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.layers import string_lookup
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings import packed as tp

LAYERS = texts()
VECTORS = {
    "int": {},
    "int cut": {"output_sequence_length": 2, "ngrams": 2},
    "count": {"output_mode": "count", "split": "character"},
    "whole": {"split": None},
    "own": {"standardize": str.upper, "split": lambda text: text.split("A")},
}


def packed_of(column):
    """A column of objects, packed, and as a part of something larger."""
    flat = column.reshape(-1).tolist()
    strings = PackedStrings.from_list(["xyz", *flat, "é"], str)[1:-1]
    return strings if column.ndim == 1 else tp.PackedColumn(strings, column.shape)


def packed_batch(batch):
    return {
        name: packed_of(column) if column.dtype == object else column
        for name, column in batch.items()
    }


def columns_for(layer, batch):
    names = LAYERS[layer][0]
    return batch[names] if isinstance(names, str) else tuple(batch[name] for name in names)


def outcome(call, *args):
    """What a layer gives, or what it says."""
    try:
        return call(*args)
    except ValueError as error:
        return str(error)


@pytest.mark.slow
@given(batches())
def test_every_layer_gives_what_it_gives_for_lists(batch):
    packed = packed_batch(batch)
    for name, (_, layer) in LAYERS.items():
        assert torch.equal(layer(columns_for(name, batch)), layer(columns_for(name, packed))), name


@pytest.mark.parametrize("name", LAYERS)
def test_strings_of_all_lengths(name):
    """So that there are several blocks."""
    batch = one_batch(200)
    for column in ("s", "ss", "t"):
        flat = batch[column].reshape(-1)
        for place in range(0, len(flat), 3):
            flat[place] = (flat[place] or "") * (place % 40)
    layer = LAYERS[name][1]
    packed = packed_batch(batch)
    assert torch.equal(layer(columns_for(name, batch)), layer(columns_for(name, packed)))


@pytest.mark.parametrize("how", VECTORS)
@given(words=st.lists(st.one_of(a_text, st.none()), max_size=5))
def test_texts(how, words):
    layer = pp.TextVectorization(vocabulary=["a", "b", "é", "a b"], missing="mask", **VECTORS[how])
    column = np.array(words, dtype=object)
    assert torch.equal(layer(words), layer(packed_of(column)))
    assert torch.equal(layer(column[:, None]), layer(packed_of(column[:, None])))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (pp.StringLookup(vocabulary=TOKENS, num_oov_indices=0), ["a", "no" * 50, "neither", "a"]),
        (pp.StringLookup(vocabulary=TOKENS), ["a", None, "x" * 100, None]),
        (pp.Hashing(5), ["a" * 90, None]),
        (pp.TextVectorization(vocabulary=["a"]), ["a", None]),
    ],
    ids=["unknown", "missing", "hashed", "text"],
)
def test_what_is_refused_is_refused_in_the_same_words(layer, words):
    said = outcome(layer, words)
    assert isinstance(said, str)
    assert said == outcome(layer, PackedStrings.from_list(words))


def test_large_vocabularies(monkeypatch):
    monkeypatch.setattr("torch_distinput.preprocessing.layers.string_lookup.LARGE_VOCABULARY", 1)
    layer = pp.StringLookup(vocabulary=TOKENS)
    assert layer(WORDS).tolist() == layer(PackedStrings.from_list(WORDS)).tolist()


LOOKUPS = [
    {},
    {"num_oov_indices": 3, "mask_token": "", "missing": "mask"},
    {"num_oov_indices": 2, "missing": "oov", "salt": 7},
    {"num_oov_indices": 0},
]


@pytest.mark.slow
@pytest.mark.parametrize("config", LOOKUPS)
@given(words=st.lists(st.one_of(a_text, st.sampled_from([*TOKENS, None, "\0", "\udcff"]))))
def test_many_strings_are_found_by_hash_as_they_are_in_a_dict(config, words):
    layer = pp.StringLookup(vocabulary=[token for token in TOKENS if token], **config)
    expected = outcome(lambda: layer(words).tolist())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(string_lookup, "MANY_TOKENS", 0)
        patched.setattr(string_lookup, "MANY_STRINGS", 0)
        assert expected == outcome(lambda: layer(words).tolist())


def test_many_strings_need_no_dict(monkeypatch):
    layer = pp.StringLookup(vocabulary=TOKENS)
    expected = layer(WORDS).tolist()
    monkeypatch.setattr(string_lookup, "MANY_TOKENS", len(TOKENS))
    monkeypatch.setattr(string_lookup, "MANY_STRINGS", len(WORDS))
    monkeypatch.setattr(pp.StringLookup, "_find_host", None)
    assert expected == layer(WORDS).tolist()


def test_bytes_are_text_too():
    layer = pp.StringLookup(vocabulary=TOKENS)
    encoded = [word.encode("utf-8", "surrogateescape") for word in WORDS]
    assert layer(WORDS).tolist() == layer(PackedStrings.from_list(encoded)).tolist()


def test_no_python_string_is_made(monkeypatch):
    """Of the layers that hash or look up."""
    strings = PackedStrings.from_list(["a", "no", "b", ""])
    layers = [pp.StringLookup(vocabulary=TOKENS, num_oov_indices=3), pp.Hashing(7)]
    expected = [layer(strings.to_list()).tolist() for layer in layers]
    monkeypatch.setattr(PackedStrings, "to_list", None)
    monkeypatch.setattr(PackedStrings, "to_bytes", None)
    assert expected == [layer(strings).tolist() for layer in layers]


@pytest.mark.slow
@given(st.lists(a_text, min_size=1, max_size=6))
def test_columns_of_a_dict(words):
    """Also of layers that make one vector of each row."""
    features = pp.Features(
        place=pp.StringLookup(vocabulary=TOKENS),
        many=("place", pp.StringLookup(vocabulary=TOKENS, output_mode="multi_hot")),
        bins=("place", pp.Hashing(4, output_mode="count")),
        both=(("place", "text"), pp.HashedCrossing(9)),
        text=pp.TextVectorization(vocabulary=TOKENS[:2], output_mode="count"),
    )
    lists = features({"place": words, "text": words})
    strings = PackedStrings.from_list(words)
    packed = features({"place": strings, "text": strings})
    assert lists.keys() == packed.keys()
    for name, expected in lists.items():
        assert torch.equal(expected, packed[name]), name
    for column in features.pack({"place": strings, "text": strings}).values():
        assert words == tp.unpack_strings(column)


@given(st.lists(st.one_of(a_text, st.none()), max_size=6))
def test_padded_for_a_model(words):
    packed = PackedStrings.from_list(words)
    for width in (None, WIDTH * 2):
        expected, got = pp.pack_strings(words, width), pp.pack_strings(packed, width)
        assert torch.equal(expected.data, got.data)
        assert torch.equal(expected.lengths, got.lengths)


def test_padded_too_narrow():
    words = ["ab", "abc"]
    said = outcome(pp.pack_strings, words, 2)
    assert said == outcome(pp.pack_strings, PackedStrings.from_list(words), 2)
    assert "max_bytes=2" in said


@pytest.mark.parametrize(
    "layer",
    [pp.StringLookup(missing="oov"), pp.StringLookup(output_mode="tf_idf", missing="oov"),
     pp.TextVectorization(missing="mask")],
    ids=["tokens", "documents", "texts"],
)  # fmt: skip
def test_a_state_is_found_as_in_lists(layer):
    words = ["a b", "a", None, "é", "b", "é", "\udcff"]
    states = []
    for column in (words, PackedStrings.from_list(words)):
        state = TokenCounts(documents=layer.analyzer.new_state()._documents)
        layer.count(state, column)
        states.append(state.to_arrays())
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_what_was_saved_under_the_first_name_is_loaded():
    """Exported programs keep their inputs, and an older one says PackedStrings."""
    kept = io.BytesIO()
    torch.save(pp.pack_strings(["a", None]), kept)
    older = kept.getvalue().replace(b"PaddedStrings", b"PackedStrings")
    assert older != kept.getvalue()
    again = torch.load(io.BytesIO(older), weights_only=True)
    assert ["a", None] == pp.unpack_strings(again)
