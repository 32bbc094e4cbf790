"""Features at the two borders: lists of examples in the pipeline, packed batches in a model."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from torch_distinput import preprocessing as pp

TABLE = {
    "size": [1.5, 2.0, -3.0, 0.5],
    "city": ["Graz", "Wien", "Graz", "Linz"],
    "rooms": [2, 3, 2, 5],
    "label": [0, 1, 1, 0],
}
ROWS = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]


@pytest.mark.parametrize("cities", [[float("nan")], [float("nan")] * 2, ["Graz", float("nan")]])
def test_strings_that_are_all_missing_are_no_numbers(cities) -> None:
    """NaN is what pandas has in the place of a missing string."""
    features = pp.Features(city=pp.StringLookup(vocabulary=["Graz"], missing="oov"))
    found = features.collate([{"city": city} for city in cities])
    assert [int(city == "Graz") for city in cities] == found["city"].tolist()


def made() -> pp.Features:
    features = pp.Features(
        size=pp.Normalization(),
        city=pp.StringLookup(),
        place=(("city", "rooms"), pp.HashedCrossing(7)),
        label=torch.nn.Identity(),
    )
    features.adapt(TABLE)
    return features


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_collate_gives_what_the_columns_of_a_batch_give():
    features = made()
    assert same(features(features.pack(TABLE)), features.collate(ROWS))


def test_a_column_that_is_kept_is_cut_for_the_replicas():
    features = made()
    strategy = tdi.MirroredStrategy(["cpu"] * 3)
    dataset = strategy.distribute_dataset(ROWS, global_batch_size=4, collate_fn=features.collate)
    (step,) = dataset
    replicas = strategy.local_results(step)
    assert [[0, 1], [1, 0], []] == [replica["label"].tolist() for replica in replicas]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([1, 2.5], torch.tensor([1, 2.5], dtype=torch.float64)),
        ([True, False], torch.tensor([True, False])),
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([np.zeros(3, np.int32)] * 2, torch.zeros(2, 3, dtype=torch.int32)),
        ([torch.ones(2)] * 2, torch.ones(2, 2)),
        ([1, None], [1, None]),
        (["a", b"b"], ["a", b"b"]),
        ([["a", "b"], ["c", "d"]], [["a", "b"], ["c", "d"]]),
        ([], []),
    ],
)
def test_numbers_are_put_together_and_others_left_to_the_layers(values, expected):
    features = pp.Features(x=torch.nn.Identity())
    found = features.collate([{"x": value} for value in values])["x"]
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == found.dtype
        assert torch.equal(expected, found)
    else:
        assert expected == found


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_exported_model_takes_any_number_of_rows(size):
    features = made()
    packed = features.pack(TABLE, max_bytes=8)
    shapes = (features.dynamic_shapes(packed),)
    graph = torch.export.export(features, (packed,), dynamic_shapes=shapes).module()
    part = {name: column[:size] for name, column in TABLE.items()}
    for name in ("rooms", "label"):  # a list of nothing could be one of strings
        part[name] = np.array(part[name], np.int64)
    part["size"] = np.array(part["size"])
    taken = features.pack(part, max_bytes=8)
    assert same(graph(taken), features(taken))


@pytest.mark.parametrize("size", [[1, 2], [1.0, 2.0], np.array([1, 2], np.int16), [True, None]])
def test_packed_numbers_have_one_type_however_they_come(size):
    features = pp.Features(size=pp.Rescaling(2), again=("size", pp.Discretization([1.5])))
    packed = features.pack({"size": size})["size"]
    assert torch.float32 == packed.dtype
    assert torch.equal(features({"size": packed})["size"][:1], torch.tensor([2.0]))


def test_packed_integers_stay_integers():
    features = pp.Features(size=pp.Rescaling(2), id=("size", pp.IntegerLookup(vocabulary=[3])))
    large = 2**24 + 1
    assert features.pack({"size": [large]})["size"].tolist() == [large]


def test_packed_strings_are_loaded_without_trusting_a_file():
    """An exported program has some among its example inputs."""
    kept = io.BytesIO()
    torch.save(pp.pack_strings(["a", None]), kept)
    kept.seek(0)
    assert ["a", None] == pp.unpack_strings(torch.load(kept, weights_only=True))


class TestNone:
    """What a layer without a place for it says, and what one with a place does."""

    @pytest.mark.parametrize(
        ("column", "mask"),
        [(["a", None], ""), (["a", None], 0), ([5, None], 0), ([None] * 2, ""), ([None] * 2, 0)],
    )
    def test_goes_to_the_bin_of_the_mask(self, column, mask):
        layer = pp.Hashing(5, mask_value=mask, missing="mask")
        assert layer(column)[1] == 0
        assert (layer([column[0]]) == layer(column)[:1]).all()

    def test_packed_as_in_the_pipeline(self):
        layer = pp.Hashing(5, mask_value=0, missing="mask")
        column = ["a", None, ""]
        assert layer(column).tolist() == layer(pp.pack_strings(column)).tolist()

    def test_hashing_names_its_own_cure(self):
        with pytest.raises(ValueError, match="missing='mask'"):
            pp.Hashing(5)([5, None])

    def test_is_not_crossed(self):
        with pytest.raises(ValueError, match="HashedCrossing got None"):
            pp.HashedCrossing(5)((["a", None], [1, 2]))


def test_a_layer_by_the_name_of_its_feature():
    features = made()
    assert dict(features.items()) == {name: features[name] for name in features.names}
    assert ["[UNK]", "Graz", "Wien", "Linz"] == features["city"].get_vocabulary()
    with pytest.raises(KeyError, match="Expected one of the features"):
        features["rooms"]


def test_messages_call_the_state_of_a_lookup_a_vocabulary():
    with pytest.raises(tdi.UsageError, match="StringLookup has no vocabulary yet"):
        pp.StringLookup()(["a"])
    with pytest.raises(ValueError, match="IntegerLookup was given its vocabulary"):
        pp.IntegerLookup(vocabulary=[1]).adapt([1])
    with pytest.raises(ValueError, match="StringLookup was given its vocabulary"):
        pp.StringLookup(vocabulary=["a"]).adapt(["a"])


def test_a_map_of_one_record_gives_its_row_of_a_batch(tmp_path):
    """In each mode of each layer: also where a single value becomes a vector."""
    modes = ("int", "one_hot", "multi_hot", "count")
    features = pp.Features(
        **{f"city {mode}": ("city", pp.StringLookup(output_mode=mode)) for mode in modes},
        **{f"rooms {mode}": ("rooms", pp.IntegerLookup(output_mode=mode)) for mode in modes},
        **{f"coded {mode}": ("rooms", pp.CategoryEncoding(6, mode)) for mode in modes[1:]},
        bins=("size", pp.Discretization([0.0, 1.0], output_mode="one_hot")),
        hashed=("city", pp.Hashing(5, output_mode="one_hot")),
        place=(("city", "rooms"), pp.HashedCrossing(7, output_mode="one_hot")),
    )
    features.adapt(TABLE)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files = tdi.FileDataset(str(path), reader="jsonl").map(features)
    (mapped,) = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=4)
    for name, column in features(TABLE).items():
        assert torch.equal(column, mapped[name]), name
