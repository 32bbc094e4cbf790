"""TextVectorization: what it gives, the same on the host, packed and in an exported graph."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.conftest import LONG
from tests.preprocessing.texts import LONGEST, text
from torch_distinput.errors import ConfigurationError, UsageError
from torch_distinput.preprocessing.layers.text_vectorization import TextVectorization
from torch_distinput.preprocessing.strings.packed import pack_strings
from torch_distinput.preprocessing.strings.text import tokenize

TOKENS = ["the", "fox", "é", "a", "the fox", "t h", "\udcc3", "日", "\udcff", " ", "日本", "a\0"]
WEIGHTS = [0.1 * place + 0.3 for place in range(len(TOKENS))]


def made(**config):
    weights = WEIGHTS if config.get("output_mode") == "tf_idf" else None
    return TextVectorization(vocabulary=TOKENS, idf_weights=weights, **config)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def rows_of(layer, batch):
    return layer(batch).tolist()


def test_indices_fill_rows_up_with_zeros():
    assert rows_of(made(), ["The fox, the!", "", "new"]) == [[2, 3, 2], [0, 0, 0], [1, 0, 0]]


def test_rows_are_cut_and_filled_up_to_a_length():
    layer = made(output_sequence_length=2)
    assert rows_of(layer, ["the fox the", "é"]) == [[2, 3], [4, 0]]
    assert layer([]).shape == (0, 2)
    assert layer(pack_strings(["a"], 4)).shape == (1, 2)


def test_vectors_have_a_place_for_each_token_and_none_for_padding():
    assert rows_of(made(output_mode="count"), ["the the x", ""])[0][:3] == [1, 2, 0]
    assert rows_of(made(output_mode="multi_hot"), ["the the x"])[0][:3] == [1, 1, 0]
    assert rows_of(made(output_mode="count"), ["the the x", ""])[1] == [0] * 13
    weighted = made(output_mode="tf_idf")(["the the fox"])
    assert weighted.dtype == torch.float32
    assert torch.equal(weighted[0, 1:3], torch.tensor([2 * 0.3, 0.4]))
    padded = TextVectorization(20, output_mode="count", pad_to_max_tokens=True, vocabulary=TOKENS)
    assert padded(["the"]).shape == (1, 20)


def test_a_text_that_is_one_token_keeps_its_shape():
    layer = made(split=None)
    batch = ["The fox", "", "x"]
    assert rows_of(layer, batch) == rows_of(layer, pack_strings(batch)) == [6, 0, 1]
    column = [[value] for value in batch]
    assert rows_of(layer, column) == rows_of(layer, pack_strings(column)) == [[6], [0], [1]]
    assert layer("the").shape == layer(pack_strings("the")).shape == ()
    counts = made(split=None, output_mode="count")
    assert counts(batch).sum(1).tolist() == counts(pack_strings(batch)).sum(1).tolist() == [1, 0, 1]
    assert rows_of(made(split=None, output_sequence_length=2), batch) == [[6, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("pack", [list, pack_strings])
def test_shapes_of_texts(pack):
    layer = made()
    assert same(layer(pack([["the fox"], ["a"]])), layer(pack(["the fox", "a"])))
    with pytest.raises(ValueError, match=r"takes texts of shape \(rows,\) or \(rows, 1\), got"):
        layer(pack([["a", "b"]]))
    with pytest.raises(ValueError, match=r"got \(1, 1, 1\)"):
        layer(pack([[["a"]]]))
    assert layer(pack([])).shape == (0, 0)


def test_one_text_gives_one_row():
    for mode, wanted in (("int", [2, 3]), ("count", [0, 1, 1, *[0] * 10])):
        layer = made(output_mode=mode)
        assert rows_of(layer, "the fox") == wanted
        assert rows_of(layer, pack_strings("the fox")) == wanted
        assert rows_of(layer, b"the fox") == wanted


def test_none_is_refused_or_the_empty_text():
    batch = np.array(["the", None], object)
    for pack in (lambda values: values, pack_strings):
        with pytest.raises(ValueError, match="expected texts, got None. Fill it in, or pass"):
            made()(pack(batch))
        for split in ("whitespace", "character", None):
            layer = made(missing="mask", split=split, output_sequence_length=3)
            assert same(layer(pack(batch)), layer(["the", ""]))
    with pytest.raises(ValueError, match="Expected missing to be one of 'error', 'mask'"):
        made(missing="oov")


@st.composite
def configs(draw):
    config = {
        "standardize": draw(st.sampled_from([None, "lower", "strip_punctuation"])),
        "split": draw(st.sampled_from(["whitespace", "character", None])),
        "output_mode": draw(st.sampled_from(["int", "multi_hot", "count", "tf_idf"])),
        "missing": "mask",
    }
    if draw(st.booleans()):
        config["standardize"] = "lower_and_strip_punctuation"
    if config["split"] is not None:
        config["ngrams"] = draw(st.sampled_from([None, 1, 2, 3, (2,), (3, 1)]))
    if config["output_mode"] == "int":
        config["output_sequence_length"] = draw(st.sampled_from([None, 1, 2, 5, 200]))
    return config


@pytest.mark.slow
@given(configs(), st.lists(st.one_of(text(), st.none()), max_size=6), st.data())
def test_packed_texts_give_what_host_texts_do(config, batch, data):
    seen = tokenize([value or "" for value in batch], made(**config).rules)
    kinds = sorted({token for row in seen for token in row} - {"", "[UNK]"})
    tokens = data.draw(st.lists(st.sampled_from(kinds), unique=True)) if kinds else []
    tokens = tokens or ["a"]
    weights = WEIGHTS * len(tokens)
    given_weights = weights[: len(tokens)] if config["output_mode"] == "tf_idf" else None
    layer = TextVectorization(vocabulary=tokens, idf_weights=given_weights, **config)
    on_host = layer(batch)
    assert same(on_host, layer(pack_strings(batch)))
    assert same(on_host, layer(pack_strings(batch, LONGEST)))
    if config["output_mode"] == "int" and batch:
        flat = [token for row in seen for token in row[: config["output_sequence_length"]]]
        assert (on_host > 1).sum() == sum(token in tokens for token in flat)


def model():
    characters = {"split": "character", "missing": "mask"}
    return nn.ModuleDict(
        {
            "int": made(ngrams=2, output_sequence_length=9, missing="mask"),
            "characters": made(output_sequence_length=30, **characters),
            "one": made(split=None, missing="mask"),
            "multi_hot": made(output_mode="multi_hot", missing="mask"),
            "count": made(output_mode="count", ngrams=(2, 1), standardize=None, **characters),
            "tf_idf": made(output_mode="tf_idf", standardize="lower", missing="mask"),
        }
    )


class Applied(nn.Module):
    """All layers on one column."""

    def __init__(self):
        super().__init__()
        self.layers = model()

    def forward(self, packed):
        return {name: layer(packed) for name, layer in self.layers.items()}


@pytest.fixture(scope="module")
def exported():
    rows = torch.export.Dim("rows")
    shapes = {"packed": [{0: rows}, {0: rows}]}
    example = pack_strings(["the fox", "a"], LONGEST)
    program = torch.export.export(Applied(), (example,), dynamic_shapes=shapes)
    return program.module()


@pytest.mark.slow
@settings(max_examples=1000 if LONG else 12)
@given(st.lists(st.one_of(text(), st.none()), max_size=8))
@example([])
def test_an_exported_model_gives_what_host_texts_do(exported, batch):
    found = exported(pack_strings(batch, LONGEST))
    for name, layer in model().items():
        assert same(found[name], layer(batch)), name


@pytest.mark.slow
def test_a_graph_refuses_none_where_it_runs():
    layer = made(output_sequence_length=3)
    rows = torch.export.Dim("rows")
    example = pack_strings(["the fox", "a"], 8)
    shapes = {"inputs": [{0: rows}, {0: rows}]}
    graph = torch.export.export(layer, (example,), dynamic_shapes=shapes).module()
    assert same(graph(pack_strings(["fox"], 8)), layer(["fox"]))
    with pytest.raises(RuntimeError, match="expected texts, got None"):
        graph(pack_strings(["fox", None], 8))


def test_a_graph_needs_a_length():
    with pytest.raises(UsageError, match="needs output_sequence_length to be part of a graph"):
        torch.export.export(made(), (pack_strings(["the fox", "a"]),))


def upper_words(value):
    return value.split("-")


def test_functions_of_strings_stay_on_the_host():
    layer = made(standardize=str.lower, split=upper_words)
    assert rows_of(layer, ["The-fox"]) == [[2, 3]]
    again = TextVectorization(vocabulary=TOKENS, **layer.get_config())
    assert again.fingerprint() == layer.fingerprint() != made(split=upper_words).fingerprint()
    with pytest.raises(UsageError, match="has standardize=.*, a function of strings, which cannot"):
        layer(pack_strings(["The-fox"]))
    with pytest.raises(UsageError, match="has split=.*upper_words, a function of strings"):
        made(split=upper_words)(pack_strings(["The-fox"]))


def test_a_layer_is_made_again_from_its_configuration_and_state():
    layer = made(ngrams=(1, 2), output_sequence_length=4, missing="mask")
    config = json.loads(json.dumps(layer.get_config()))
    again = TextVectorization(**config)
    assert again.get_vocabulary() == ["", "[UNK]"]
    with pytest.raises(UsageError, match="TextVectorization has no vocabulary yet. Call adapt"):
        again(["the"])
    again.load_state_dict(layer.state_dict())
    assert again.fingerprint() == layer.fingerprint()
    batch = ["the fox é", None]
    assert same(again(batch), layer(batch))
    assert same(pickle.loads(pickle.dumps(layer))(batch), layer(batch))
    assert made().fingerprint() != made(split="character").fingerprint()


def test_a_vocabulary_can_be_a_file(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text("the\nfox\n", encoding="utf-8")
    layer = TextVectorization(vocabulary=str(path))
    assert layer.get_vocabulary() == ["", "[UNK]", "the", "fox"]
    assert layer.vocabulary_size() == 4
    assert rows_of(layer, ["fox the dog"]) == [[3, 2, 1]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"output_mode": "one_hot"}, "Expected output_mode to be one of 'int', 'multi_hot'"),
        (
            {"output_mode": "count", "output_sequence_length": 3},
            "output_sequence_length needs output_mode='int', got 'count'",
        ),
        ({"output_sequence_length": 0}, "output_sequence_length must be at least 1, got 0"),
        ({"pad_to_max_tokens": True}, "pad_to_max_tokens=True needs max_tokens"),
    ],
)
def test_what_does_not_fit_together_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        TextVectorization(**config)


def adapted(batches, **config):
    layer = TextVectorization(**config)
    state = layer.analyzer.new_state()
    for batch in batches:
        layer.count(state, batch)
    layer.adopt(layer.analyzer.finish(state))
    return layer


def test_adapt_counts_tokens_of_texts():
    batches = [["The fox!", "the dog"], [["fox the"]], []]
    assert adapted(batches, max_tokens=4).get_vocabulary() == ["", "[UNK]", "the", "fox"]
    layer = TextVectorization(max_tokens=4)
    layer.adapt(["The fox!", "the dog", "fox the"])
    assert layer.get_vocabulary() == ["", "[UNK]", "the", "fox"]
    assert adapted(batches, ngrams=2).get_vocabulary()[2:5] == ["the", "fox", "the fox"]
    assert adapted(batches, split="character", max_tokens=3).get_vocabulary()[2] == "t"


def test_adapt_takes_each_row_for_a_document():
    layer = adapted([["the the", "", "the fox"], ["é"]], output_mode="tf_idf")
    assert layer.get_vocabulary() == ["[UNK]", "the", "é", "fox"]
    shares = np.array([4 / (1 + 2), 4 / (1 + 1), 4 / (1 + 1)])
    wanted = torch.from_numpy(np.log(1 + shares).astype(np.float32))
    assert torch.equal(layer(["the é fox"])[0, 1:], wanted)


def test_adapt_treats_none_as_the_policy_says():
    assert adapted([["a", None]], missing="mask").get_vocabulary()[2:] == ["a"]
    with pytest.raises(ValueError, match="expected texts, got None"):
        adapted([["a", None]])


def test_a_given_vocabulary_does_not_adapt():
    with pytest.raises(ValueError, match="was given its vocabulary, so it cannot adapt"):
        made().adapt(["a"])


def test_texts_without_a_token_are_no_data():
    with pytest.raises(ConfigurationError, match="TextVectorization got no values"):
        TextVectorization().adapt(["", " . "])
