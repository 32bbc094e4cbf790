"""Layers in a folder: what is read is what was written, or it is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from torch import nn

import torch_distinput as tdi
from tests.preprocessing.table import make_features, make_table
from torch_distinput import preprocessing as pp

TABLE = make_table(23)


@pytest.fixture
def features():
    adapted = make_features()
    adapted.adapt(TABLE)
    return adapted


@pytest.fixture
def folder(features, tmp_path):
    pp.save(features, str(tmp_path / "out"))
    return tmp_path / "out"


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


class TestRoundTrip:
    def test_the_same_results_bit_for_bit(self, features, folder):
        loaded = pp.load(str(folder), expect=features.fingerprint())
        assert same(features(TABLE), loaded(TABLE))
        assert repr(features) == repr(loaded)

    @pytest.mark.parametrize("url", ["memory://bucket/out", "local"])
    def test_through_any_storage(self, features, url, tmp_path):
        path = str(tmp_path / "a" / "b") if url == "local" else url
        for _ in range(2):  # the second replaces the first
            pp.save(features, path)
        assert features.fingerprint() == pp.load(path).fingerprint()

    def test_nothing_is_left_beside(self, features, tmp_path):
        for _ in range(2):
            pp.save(features, str(tmp_path / "out"))
        assert ["out"] == [path.name for path in tmp_path.iterdir()]

    def test_given_states_stay_given(self, tmp_path):
        layers = pp.Features(
            a=pp.Normalization(mean=1, variance=4),
            b=pp.Discretization([0.1, 0.2]),
            c=pp.StringLookup(vocabulary=["x", "y"]),
            d=pp.IntegerLookup(vocabulary=[5, 6], output_mode="tf_idf", idf_weights=[0.5, 1]),
            e=torch.nn.Identity(),
        )
        pp.save(layers, str(tmp_path / "out"))
        loaded = pp.load(str(tmp_path / "out"))
        assert layers.fingerprint() == loaded.fingerprint()
        assert not dict(loaded.adaptive())

    def test_one_layer_alone(self, tmp_path):
        layer = pp.StringLookup(vocabulary=["b", "a"])
        pp.save(layer, str(tmp_path / "out"))
        assert ["[UNK]", "b", "a"] == pp.load(str(tmp_path / "out")).get_vocabulary()

    @pytest.mark.parametrize("token", ["line\nbreak", "", "carriage\r", "\udcff", " ", "\0", "é"])
    def test_any_token(self, token, tmp_path):
        layer = pp.StringLookup()
        layer.adapt([token, "other", token])
        pp.save(layer, str(tmp_path / "out"))
        assert [0, 1, 2] == pp.load(str(tmp_path / "out"))(["no", token, "other"]).tolist()

    def test_a_vocabulary_is_text_that_anyone_can_read(self, tmp_path):
        layers = pp.Features(city=pp.StringLookup(vocabulary=["b", "é"]))
        pp.save(layers, str(tmp_path / "out"))
        (path,) = (tmp_path / "out" / "vocabulary").iterdir()
        assert "b\né\n" == path.read_text("utf-8")

    def test_a_feature_may_have_any_name(self, tmp_path):
        lookup = pp.StringLookup(vocabulary=["x"])
        layers = pp.Features(**{"a/b.c": lookup, "keys": pp.Rescaling(2)})
        pp.save(layers, str(tmp_path / "out"))
        assert layers.fingerprint() == pp.load(str(tmp_path / "out")).fingerprint()

    def test_an_unadapted_layer_stays_so(self, tmp_path):
        pp.save(pp.Normalization(), str(tmp_path / "out"))
        with pytest.raises(tdi.UsageError, match="has no mean yet"):
            pp.load(str(tmp_path / "out"))([1.0])

    def test_nothing_is_pickled(self, folder):
        for path in folder.rglob("*"):
            if path.suffix == ".npz":
                with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                    assert all(arrays[name].dtype != object for name in arrays.files)


class TestRefusals:
    def test_another_fingerprint(self, folder):
        with pytest.raises(tdi.ConfigurationError, match=r"fingerprint abc, got [0-9a-f]{64}"):
            pp.load(str(folder), expect="abc")

    def test_no_folder(self, tmp_path):
        with pytest.raises(ValueError, match=r"it has no preprocessing.json"):
            pp.load(str(tmp_path / "none"))

    def test_any_byte_cut_off_any_file(self, folder):
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            content = path.read_bytes()
            path.write_bytes(content[:-1])
            with pytest.raises(tdi.ConfigurationError, match=path.name):
                pp.load(str(folder))
            path.write_bytes(content)

    def test_any_file_missing(self, folder):
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            content = path.read_bytes()
            path.unlink()
            with pytest.raises(tdi.ConfigurationError, match=path.name):
                pp.load(str(folder))
            path.write_bytes(content)

    def test_a_changed_value(self, folder):
        path = folder / "preprocessing.json"
        path.write_text(path.read_text().replace('"max_tokens": 4', '"max_tokens": 5'))
        with pytest.raises(tdi.ConfigurationError, match="is not as it was written"):
            pp.load(str(folder))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda main: main.update(format=2), "it has format 2, this version reads 1"),
            (lambda main: main["layers"].update(layer="Unknown"), "got Unknown with"),
            (lambda main: main["layers"]["config"].update(new=1), "got Rescaling with"),
            (lambda main: main["layers"]["config"].update(scale=3), "another version"),
        ],
    )
    def test_another_version(self, tmp_path, change, message):
        pp.save(pp.Rescaling(2), str(tmp_path / "out"))
        path = tmp_path / "out" / "preprocessing.json"
        main = json.loads(path.read_text())["content"]
        change(main)
        path.write_bytes(pp.artifact.artifact._seal(main))
        with pytest.raises(tdi.ConfigurationError, match=message):
            pp.load(str(tmp_path / "out"))

    def test_half_written_in_an_object_store(self, features, monkeypatch):
        """What was there before is gone first, so that no mixture of two is taken for one."""
        pp.save(features, "memory://half/out")
        system = fsspec.filesystem("memory")
        written = type(system).pipe_file

        def fails_at_the_end(self, path, value, **kwargs):
            if path.endswith("preprocessing.json"):
                raise OSError("disk full")
            written(self, path, value, **kwargs)

        monkeypatch.setattr(type(system), "pipe_file", fails_at_the_end)
        with pytest.raises(OSError, match="disk full"):
            pp.save(features, "memory://half/out")
        monkeypatch.undo()
        with pytest.raises(tdi.ConfigurationError, match=r"it has no preprocessing.json"):
            pp.load("memory://half/out")

    def test_half_written_in_a_folder(self, features, folder, monkeypatch):
        """The one that was there stays, whole."""
        before = pp.load(str(folder)).fingerprint()
        monkeypatch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            pp.save(pp.Rescaling(3), str(folder))
        monkeypatch.undo()
        assert before == pp.load(str(folder)).fingerprint()

    @pytest.mark.parametrize("module", [nn.Linear(1, 1), nn.Sequential()])
    def test_a_module_that_is_not_ours(self, module, tmp_path):
        with pytest.raises(ValueError, match="to save; got"):
            pp.save(pp.Features(a=module), str(tmp_path / "out"))
        assert not list(Path(tmp_path).iterdir())


class TestStateDict:
    def test_it_holds_the_whole_state(self, features):
        other = make_features()
        other.load_state_dict(features.state_dict())
        assert same(features(TABLE), other(TABLE))
        assert features.fingerprint() == other.fingerprint()

    def test_another_size_is_taken_over(self):
        first, second = pp.StringLookup(vocabulary=["a"]), pp.StringLookup(vocabulary=["b", "c"])
        first.load_state_dict(second.state_dict())
        assert [0, 1, 2] == first(["a", "b", "c"]).tolist()

    def test_torch_saves_it(self, features, tmp_path):
        torch.save(features.state_dict(), tmp_path / "state.pt")
        other = make_features()
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert features.fingerprint() == other.fingerprint()
