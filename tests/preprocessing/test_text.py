"""The rules of text, one by one, on the host and on packed bytes."""

from __future__ import annotations

import itertools
import string

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.preprocessing.texts import LONGEST, texts
from torch_distinput.preprocessing.strings import text_graph
from torch_distinput.preprocessing.strings.byte_rows import to_bytes, to_str
from torch_distinput.preprocessing.strings.packed import pack_strings, unpack_strings
from torch_distinput.preprocessing.strings.text import TextRules, parse_ngrams, tokenize
from torch_distinput.preprocessing.strings.text_graph import (
    bound_tokens,
    find_spans,
    split,
)

STANDARDIZE = (None, "lower", "strip_punctuation", "lower_and_strip_punctuation")


def rules(standardize=None, split="whitespace", ngrams=None):
    return TextRules(standardize=standardize, split=split, widths=parse_ngrams(ngrams))


@pytest.mark.parametrize(
    ("standardize", "expected"),
    [
        (None, ["DÉJÀ", "Vu!"]),
        ("lower", ["dÉjÀ", "vu!"]),
        ("strip_punctuation", ["DÉJÀ", "Vu"]),
        ("lower_and_strip_punctuation", ["dÉjÀ", "vu"]),
        (str.casefold, ["déjà", "vu!"]),
    ],
)
def test_a_text_is_standardized(standardize, expected):
    assert tokenize(["DÉJÀ Vu!"], rules(standardize)) == [expected]


def test_all_punctuation_of_ascii_is_taken_out_and_no_other():
    text = string.punctuation + "\u2019…¿"
    assert tokenize([text], rules("strip_punctuation")) == [["\u2019…¿"]]


def test_whitespace_of_ascii_separates_and_no_other():
    assert tokenize([" a b\tc\nd\ve\ff\rg "], rules()) == [list("abcdefg")]
    other = "a\x1cb\x1fc\x85d\xa0e\u2003f\u3000g\0h"
    assert tokenize([other, "", " \n"], rules()) == [[other], [], []]


def test_a_text_is_split_into_characters():
    assert tokenize(["a é\n日🙂", ""], rules(None, "character")) == [list("a é\n日🙂"), []]


def test_a_byte_that_is_no_utf8_is_a_character():
    content = b"\xed\xa0\x80a\xe6\x97"  # a surrogate, which UTF-8 does not have, and a cut one
    assert tokenize([to_str(content)], rules(None, "character")) == [
        [to_str(bytes([byte])) for byte in content]
    ]


def test_taking_out_punctuation_can_make_a_character():
    text = to_str(b"\xc3!\xa9")
    assert tokenize([text], rules("strip_punctuation", "character")) == [["é"]]


def test_a_text_can_be_one_token():
    assert tokenize(["a B.", "", " "], rules("lower", None)) == [["a b."], [""], [" "]]


def test_a_function_can_split():
    assert tokenize(["a,b c"], rules(None, lambda text: text.split(","))) == [["a", "b c"]]


@pytest.mark.parametrize(
    ("ngrams", "expected"),
    [
        (2, ["a", "b", "c", "a b", "b c"]),
        (5, ["a", "b", "c", "a b", "b c", "a b c"]),
        ((2,), ["a b", "b c"]),
        ((3, 1), ["a b c", "a", "b", "c"]),
        ((4,), []),
    ],
)
def test_ngrams_of_a_width_come_together(ngrams, expected):
    assert tokenize(["a b  c"], rules(ngrams=ngrams)) == [expected]


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"standardize": "upper"}, ValueError, "Expected standardize to be one of 'lower_and"),
        ({"split": ","}, ValueError, "Expected split to be one of 'whitespace', 'character', a"),
        ({"split": None, "ngrams": 2}, ValueError, "with split=None a text is one token"),
        ({"ngrams": 0}, ValueError, "ngrams must be at least 1, got 0"),
        ({"ngrams": ()}, ValueError, "of one at least; got none"),
        ({"ngrams": (1, "2")}, TypeError, "ngrams must be a whole number, got '2'"),
    ],
)
def test_rules_that_cannot_be_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        rules(**keywords)


def test_functions_that_return_no_text_are_refused():
    with pytest.raises(TypeError, match="Expected standardize to return a str, got b'a'"):
        tokenize(["a"], rules(str.encode))
    for wrong in ("a b", [b"a"], 3):
        with pytest.raises(TypeError, match="Expected split to return a list of str, got"):
            tokenize(["a"], rules(None, lambda _, wrong=wrong: wrong))


def test_texts_of_numpy_that_a_function_returns_are_taken():
    """Whoever counts tokens takes ``str`` alone."""
    (tokens,) = tokenize(["b a"], rules(None, lambda text: [*np.array(text.split())]))
    assert [("b", str), ("a", str)] == [(token, type(token)) for token in tokens]


@pytest.mark.parametrize("standardize", STANDARDIZE)
@pytest.mark.parametrize("how", ["whitespace", "character"])
def test_each_byte_means_the_same_packed_as_on_the_host(standardize, how):
    chosen = rules(standardize, how)
    batch = [to_str(b"a%cb" % byte) for byte in range(256)]
    packed = pack_strings(batch)
    rows = split(*text_graph.standardize(packed.data, packed.lengths, chosen), chosen)
    assert rows.count_tokens().tolist() == list(map(len, tokenize(batch, chosen)))


def test_packed_characters_begin_where_those_of_the_host_do():
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xFF]
    followed = itertools.product(range(0x7F, 0x100), edges, (0x41, 0x80, 0xBF), (0x41, 0x80))
    batch = [to_str(bytes(row)) for row in followed]
    packed, chosen = pack_strings(batch), rules(None, "character")
    found = split(packed.data, packed.lengths, chosen).begins.tolist()
    for row, characters in zip(found, tokenize(batch, chosen), strict=True):
        lengths = (len(to_bytes(character)) for character in characters)
        assert row == [place == 0 for length in lengths for place in range(length)]


@given(texts(), st.sampled_from(STANDARDIZE))
def test_packed_texts_are_standardized_as_on_the_host(batch, standardize):
    packed = pack_strings(batch)
    found = text_graph.standardize(packed.data, packed.lengths, rules(standardize))
    wanted = [row[0] for row in tokenize(batch, rules(standardize, None))]
    assert unpack_strings(type(packed)(*found)) == wanted
    behind = torch.arange(found[0].shape[1]) >= found[1][:, None]
    assert not found[0][behind].any()


@given(
    texts(),
    st.sampled_from(["whitespace", "character"]),
    st.one_of(st.none(), st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
)
@example(["a b a"], "whitespace", None)  # has as many tokens as there can be
def test_tokens_of_packed_texts_are_those_of_the_host(batch, how, ngrams):
    packed, chosen = pack_strings(batch), rules(None, how, ngrams)
    rows = split(packed.data, packed.lengths, chosen)
    most = bound_tokens(packed.data.shape[1], chosen)
    assert most <= LONGEST
    found = find_spans(rows, chosen, most)
    wanted = tokenize(batch, chosen)
    for row, tokens in enumerate(wanted):
        content, places = bytes(found.data[row].tolist()), found.places[row].tolist()
        parts = zip(found.starts[row].tolist(), found.ends[row].tolist(), places, strict=True)
        cut = [(content[start:end], place) for start, end, place in parts if place >= 0]
        assert cut == [(to_bytes(token), place) for place, token in enumerate(tokens)]
