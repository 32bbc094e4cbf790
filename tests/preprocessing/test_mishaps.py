"""What happens to hurried users and unlucky ranks: nothing silent, nobody left waiting."""

from __future__ import annotations

import json
import logging

import fsspec
import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.preprocessing.table import as_json_lines, make_features, make_table
from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.artifact import artifact
from torch_distinput.preprocessing.vocabulary import vocabulary
from torch_distinput.testing import simulate

ANALYZE = "torch_distinput.preprocessing.analysis.analyze"


class TestFolders:
    @pytest.mark.parametrize("storage", ["local", "memory://mishaps/out"])
    def test_what_is_not_ours_is_not_replaced(self, storage, tmp_path):
        path = str(tmp_path / "out") if storage == "local" else storage
        layer = pp.StringLookup(vocabulary=["a"])
        for _ in range(2):
            pp.save(layer, path)
        artifact.filesystem.store_file(f"{path}/thesis.txt", b"x", {})
        with pytest.raises(FileExistsError, match=r"1 other files, such as 'thesis.txt'"):
            pp.save(layer, path)
        assert b"x" == artifact.filesystem.load_file(f"{path}/thesis.txt", {})

    @pytest.mark.parametrize("storage", ["local", "memory://mishaps/hidden"])
    def test_what_cannot_be_listed_is_not_taken_for_nothing(self, storage, tmp_path, monkeypatch):
        path = str(tmp_path / "out") if storage == "local" else storage
        artifact.filesystem.store_file(f"{path}/below/thesis.txt", b"x", {})
        system, inner = fsspec.core.url_to_fs(path)
        listed = type(system).ls

        def ls(self, path, *args, **options):
            if path.rstrip("/").endswith("below"):
                raise PermissionError(path)
            return listed(self, path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(type(system), "ls", ls)
            with pytest.raises(PermissionError, match="below"):
                pp.save(pp.Rescaling(2), path)
        assert [f"{inner}/below/thesis.txt"] == system.find(inner)

    def test_a_folder_of_something_else(self, tmp_path, monkeypatch):
        (tmp_path / "train.py").write_text("")
        monkeypatch.chdir(tmp_path)
        for path in (".", str(tmp_path)):
            with pytest.raises(FileExistsError, match=r"train.py"):
                pp.save(pp.Rescaling(2), path)
        with pytest.raises(FileExistsError, match="got a file"):
            pp.save(pp.Rescaling(2), "train.py")

    def test_what_is_no_longer_written_is_gone(self, tmp_path):
        layer = pp.StringLookup(vocabulary=["a"])
        for path in (str(tmp_path / "out"), "memory://mishaps/two"):
            pp.save(layer, path)
            pp.save(pp.Rescaling(2), path)
            assert {"preprocessing.json", "state.npz"} == artifact.filesystem.names_below(path, {})

    def test_a_link_stays_one(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "real")
        for _ in range(2):
            pp.save(pp.Rescaling(2), tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert ["link", "real"] == sorted(path.name for path in tmp_path.iterdir())
        assert 4.0 == pp.load(tmp_path / "link")(2).item()

    @pytest.mark.parametrize(
        "change",
        [
            lambda main: main["layers"]["config"].update(vocabulary="/etc/hostname"),
            lambda main: main["layers"]["config"].update(storage_options={}),
            lambda main: main["vocabularies"][""].update(file="../secret.txt"),
            lambda main: main["vocabularies"][""].update(file="vocabulary/../../secret.txt"),
        ],
    )
    def test_a_folder_made_by_somebody_else_reads_nothing_outside(self, tmp_path, change):
        pp.save(pp.StringLookup(vocabulary=["a"]), str(tmp_path / "out"))
        (tmp_path / "secret.txt").write_text("secret\n")
        path = tmp_path / "out" / "preprocessing.json"
        main = json.loads(path.read_text())["content"]
        change(main)
        path.write_bytes(artifact._seal(main))
        with pytest.raises(tdi.ConfigurationError, match=r"no configuration|outside of it"):
            pp.load(str(tmp_path / "out"))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        text = as_json_lines(make_table(20), number * 5, number * 5 + 5)
        (folder / f"{number}.jsonl").write_text(text)
    return tdi.FileDataset(f"{folder}/*", reader="jsonl")


class TestAnalyze:
    def test_a_cache_inside_the_folder(self, data, tmp_path):
        with pytest.raises(tdi.ConfigurationError, match="Expected the cache beside the folder"):
            pp.analyze(make_features(), data, f"{tmp_path}/out", cache=f"{tmp_path}/out/cache")

    def test_which_layers_adapt_is_part_of_the_cache(self, data, tmp_path):
        """The states of two layers made alike would be taken for each other."""
        cache = str(tmp_path / "cache")
        given = pp.StringLookup(vocabulary=["a"])
        first = pp.Features(city=pp.StringLookup(), size=("code", pp.IntegerLookup()))
        pp.analyze(first, data, f"{tmp_path}/1", cache=cache)
        lookups = [
            pp.Features(city=pp.StringLookup(), tags=given),
            pp.Features(city=pp.StringLookup(vocabulary=["a"]), tags=pp.StringLookup()),
        ]
        for features in lookups:
            pp.analyze(features, data, f"{tmp_path}/2", cache=cache)
        alone = pp.Features(tags=pp.StringLookup())
        alone.adapt(data)
        assert alone["tags"].get_vocabulary() == lookups[1]["tags"].get_vocabulary()

    @pytest.mark.parametrize(
        ("features", "folders", "error"),
        [
            (lambda: pp.Features(a=pp.TextVectorization(split=str.split)), {}, "cannot be saved"),
            (make_features, {"cache": "nowhere://cache"}, "nowhere"),
            (make_features, {"out": "nowhere://out"}, "nowhere"),
        ],
    )
    def test_what_cannot_end_well_is_refused_first_on_all(
        self, data, tmp_path, features, folders, error, monkeypatch
    ):
        monkeypatch.setattr(f"{ANALYZE}._read", lambda *_: 1 / 0)

        def run(strategy):
            arguments = {"out": f"{tmp_path}/out", **folders}
            with pytest.raises((ValueError, tdi.PeerFailedError), match=error):
                pp.analyze(features(), data, strategy=strategy, **arguments)
            return True

        assert [True] * 3 == simulate(run, num_workers=3)

    def test_a_function_that_nobody_can_tell_keeps_nothing(self, data, tmp_path, caplog):
        generator = (number for number in range(1))  # cannot be pickled
        recipe = data.map(lambda row: {**row, "kept": bool(generator)})
        cache = tmp_path / "cache"
        pp.analyze(make_features(), recipe, f"{tmp_path}/out", cache=str(cache))
        assert "Nothing is kept in the cache" in caplog.text
        assert not cache.exists()

    def test_large_arrays_in_a_closure_are_told_apart(self, data, tmp_path):
        def scaled(by):
            return lambda row: {**row, "size": float(by[1000])}

        found = set()
        for value in (0.0, 7.0):
            table = np.zeros(2000)
            table[1000] = value
            features = pp.Features(size=pp.Normalization())
            pp.analyze(features, data.map(scaled(table)), f"{tmp_path}/out", cache=f"{tmp_path}/c")
            found.add(features["size"].mean.item())
        assert {0.0, 7.0} == found


class TestRanks:
    def test_functions_are_the_same_on_all(self):
        def run(strategy):
            layer = pp.TextVectorization(standardize=None, split=lambda text: text.split("-"))
            layer.adapt(["a-b", "b"], strategy=strategy)
            return layer.get_vocabulary()

        assert [["", "[UNK]", "b", "a"]] * 2 == simulate(run, num_workers=2)

    def test_a_state_that_is_given_on_one_rank_only(self):
        def run(strategy):
            given = ["a"] if strategy.worker_index else None
            with pytest.raises(tdi.MismatchError, match="worker 1 differs.*with a given state"):
                pp.StringLookup(vocabulary=given).adapt(["a"], strategy=strategy)
            return True

        assert [True, True] == simulate(run, num_workers=2)

    def test_columns_that_differ(self):
        def run(strategy):
            features = pp.Features(a=("xy"[strategy.worker_index], pp.StringLookup()))
            with pytest.raises(tdi.MismatchError, match="all layers together"):
                features.adapt({"x": ["a"], "y": ["b"]}, strategy=strategy)
            return True

        assert [True, True] == simulate(run, num_workers=2)

    def test_a_part_of_its_own_for_each_rank(self):
        """strategy= means that all have the same data: as long, and other rows, is found out."""

        def run(strategy):
            mine = [["a", "a", "b"], ["c", "c", "d"]][strategy.worker_index]
            with pytest.raises(tdi.MismatchError):
                pp.StringLookup().adapt(mine, strategy=strategy)
            return True

        assert [True, True] == simulate(run, num_workers=2)

    def test_the_epoch_after_a_failure(self):
        def run(strategy):
            dataset = strategy.distribute_dataset([1.0, 2.0], global_batch_size=2)
            with pytest.raises((TypeError, tdi.PeerFailedError)):
                pp.StringLookup().adapt(dataset)
            return dataset.epoch

        assert [0, 0] == simulate(run, num_workers=2)

    def test_a_layer_that_cannot_take_its_state_leaves_all_as_they_were(self, monkeypatch):
        def refuse(tokens, seed):
            return torch.zeros(len(tokens.ends), dtype=torch.int64)

        monkeypatch.setattr(vocabulary, "hash_tokens", refuse)
        features = pp.Features(a=pp.Normalization(), b=pp.StringLookup())
        with pytest.raises(ValueError, match="with different hashes"):
            features.adapt({"a": [1.0, 2.0], "b": ["x", "y"]})
        assert not features.state_dict()


class TestExamples:
    ROWS = ({"a": 1.0, "b": "x", "c": [1, 2]}, {"a": None, "b": None, "c": None}, {"b": "y"})

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_none_is_a_value_that_layers_decide_about(self, workers):
        def run(strategy):
            features = pp.Features(
                a=pp.Normalization(missing="ignore"), b=pp.StringLookup(missing="oov")
            )
            features.adapt(list(self.ROWS), strategy=strategy)
            return features["b"].get_vocabulary(), features["a"].mean.item()

        found = simulate(run, num_workers=workers) if workers else [run(None)]
        assert all(one == (["[UNK]", "y", "x"], 1.0) for one in found)

    def test_alone(self):
        layer = pp.StringLookup(missing="oov")
        layer.adapt(["a", None, "a", float("nan")])
        assert ["[UNK]", "a"] == layer.get_vocabulary()

    def test_from_files_that_are_parsed_by_a_map(self, tmp_path):
        (tmp_path / "a.txt").write_text('{"b": "x"}\n{"b": null}\n{}\n')
        dataset = tdi.FileDataset(str(tmp_path / "a.txt")).map(json.loads)
        for how in ("adapt", "analyze"):
            features = pp.Features(b=pp.StringLookup(missing="oov"))
            if how == "adapt":
                features.adapt(dataset)
            else:
                pp.analyze(features, dataset, str(tmp_path / "out"))
            assert ["[UNK]", "x"] == features["b"].get_vocabulary()

    @pytest.mark.parametrize("data", ["data/part.csv", b"x"])
    def test_a_path_is_no_data(self, data):
        with pytest.raises(TypeError, match="Wrap paths in a FileDataset"):
            pp.StringLookup().adapt(data)

    def test_several_columns_are_none_for_one_layer(self):
        for data in (torch.utils.data.TensorDataset(torch.ones(3), torch.ones(3)), {"a": [1.0]}):
            with pytest.raises(TypeError, match="Use Features"):
                pp.Normalization().adapt(data)


class TestShapes:
    def test_an_axis_that_is_the_rows(self):
        layer = pp.Normalization(axis=-2)
        with pytest.raises(ValueError, match="is that of the rows"):
            layer.adapt(np.ones((8, 3), np.float32))

    @pytest.mark.parametrize("mode", ["multi_hot", "count", "one_hot"])
    def test_a_column_of_single_values_has_a_vector_for_each_row(self, mode):
        lookup = pp.StringLookup(vocabulary=["x", "y"], output_mode=mode)
        features = pp.Features(b=lookup, c=pp.IntegerLookup(vocabulary=[5], output_mode=mode))
        batch = {"b": ["x", "y", "?"], "c": [5, 6, 5]}
        expected = {"b": [[0, 1, 0], [0, 0, 1], [1, 0, 0]], "c": [[0, 1], [1, 0], [0, 1]]}
        for given in (batch, features.pack(batch)):
            assert expected == {k: v.tolist() for k, v in features(given).items()}
        none = features({"b": [], "c": np.zeros(0, np.int64)})
        assert {"b": (0, 3), "c": (0, 2)} == {k: tuple(v.shape) for k, v in none.items()}
        one = features({"b": "x", "c": 5})
        assert [0, 1, 0] == one["b"].flatten().tolist()

    def test_a_state_goes_by_names(self):
        first = pp.Features(x=pp.Normalization(), y=pp.Normalization())
        first.adapt({"x": [0.0, 2.0], "y": [100.0, 200.0]})
        second = pp.Features(y=pp.Normalization(), x=pp.Normalization())
        second.load_state_dict(first.state_dict())
        assert 1.0 == second["x"].mean
        with pytest.raises(RuntimeError, match="Unexpected key"):
            pp.Features(z=pp.Normalization()).load_state_dict(first.state_dict())

    def test_a_packed_column_has_one_type(self):
        features = pp.Features(
            a=pp.IntegerLookup(vocabulary=[1], missing="oov"),
            b=pp.Rescaling(2),
            c=pp.StringLookup(vocabulary=["x"], missing="oov"),
        )
        kinds = set()
        for row in ({"a": [1], "b": [1], "c": ["x"]}, {"a": [None], "b": [None], "c": [None]},
                    {"a": [], "b": [], "c": []}, {"a": [1.0], "b": [1.5], "c": ["a"]}):  # fmt: skip
            packed = features.pack(row, 8)
            kinds.add((packed["a"].dtype, packed["b"].dtype, type(packed["c"])))
        assert {(torch.float64, torch.float32, pp.PaddedStrings)} == kinds


def test_weights_depend_on_no_number_of_threads():
    weights = np.random.default_rng(0).random(100_001).astype(np.float32)
    tokens = [str(number) for number in range(len(weights))]
    layer = pp.StringLookup(vocabulary=tokens, idf_weights=weights, output_mode="tf_idf")
    exact = np.float32(np.mean(weights.astype(np.longdouble)))
    assert exact == layer(["?"])[0].item()


def test_an_infinite_variance_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        pp.Normalization().adapt(np.array([10.0, 1e30]))
    assert "the variance is infinite or NaN in 1 of 1 places" in caplog.text


class TestValues:
    def test_a_file_that_begins_with_special_tokens(self, tmp_path):
        layer = pp.StringLookup(vocabulary=["a", "b"])
        path = tmp_path / "words.txt"
        path.write_text("\n".join(layer.get_vocabulary()) + "\n")
        with pytest.raises(ValueError, match=r"special token '\[UNK\]' in its first line"):
            pp.StringLookup(vocabulary=path)
        path.write_text("\n".join(layer.get_vocabulary(include_special_tokens=False)) + "\n")
        assert [1, 2] == pp.StringLookup(vocabulary=path)(["a", "b"]).tolist()

    def test_integers_that_numpy_makes_floats_of(self):
        with pytest.raises(ValueError, match="takes integers below"):
            pp.IntegerLookup(vocabulary=[1])([2**62 + 1, 2**63])

    def test_a_bit_of_a_kept_state(self, data, tmp_path, caplog):
        cache = tmp_path / "cache"
        first = pp.analyze(make_features(), data, f"{tmp_path}/out", cache=str(cache))
        for kept in cache.iterdir():
            content = bytearray(kept.read_bytes())
            content[len(content) // 2] ^= 4
            kept.write_bytes(content)
        again = pp.analyze(make_features(), data, f"{tmp_path}/out", cache=str(cache))
        assert first.fingerprint() == again.fingerprint()
        assert 4 == caplog.text.count("is not as it was written")
