"""analyze: files by files, kept states, and the same folder as one full pass."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.preprocessing.table import as_json_lines, make_features, make_table
from tests.storages import Memory
from torch_distinput import preprocessing as pp
from torch_distinput.data.storage import filesystem
from torch_distinput.preprocessing.analysis import analyze, function_identity
from torch_distinput.testing import simulate

ROWS = 40
TABLE = make_table(ROWS)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(5):
        write(folder, number)
    return folder


def write(folder, number, start=None):
    start = number * 8 if start is None else start
    path = folder / f"{number}.jsonl"
    path.write_text(as_json_lines(TABLE, start, start + 8))


def files(folder, **kwargs):
    return tdi.FileDataset(f"{folder}/*.jsonl", reader="jsonl", **kwargs)


def full_pass(folder):
    features = make_features()
    features.adapt(files(folder))
    return features.fingerprint()


def closed_over(size):
    return lambda row: {**row, "size": size}


def with_default(size):
    def fn(row, size=size):
        return {**row, "size": size}

    return fn


def with_inner(size):
    if size == 2.0:
        return lambda row: {**row, "size": max(map(lambda _: 2.0, [0]))}  # noqa: C417
    return lambda row: {**row, "size": max(map(lambda _: 3.0, [0]))}  # noqa: C417


def as_partial(size):
    return functools.partial(with_size, size=size)


def with_size(row, size):
    return {**row, "size": size}


def with_layer(size):
    layer = pp.Normalization(mean=size, variance=1)
    return lambda row: {**row, "size": layer(row["size"])}


def as_layer(size):
    columns = {name: (name, torch.nn.Identity()) for name in TABLE}
    return pp.Features(**{**columns, "size": pp.Normalization(mean=size, variance=1)})


MAKERS = [closed_over, with_default, with_inner, as_partial, with_layer, as_layer]


def in_a_set(row):
    return row["code"] in {0, 8}


@pytest.fixture
def reads(monkeypatch):
    """The files that were read, by number."""
    found = []
    read = analyze._read

    def noted(features, stream, number, read_counter):
        found.append(Path(stream.listing[number].path).name)
        return read(features, stream, number, read_counter)

    monkeypatch.setattr(analyze, "_read", noted)
    return found


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("cached", [False, True])
def test_it_equals_a_full_pass(data, tmp_path, workers, cached):
    def run(strategy):
        cache = str(tmp_path / "cache") if cached else None
        features = pp.analyze(
            make_features(), files(data), str(tmp_path / "out"), cache=cache, strategy=strategy
        )
        return features.fingerprint()

    found = simulate(run, num_workers=workers) if workers else [run(None)]
    assert {full_pass(data)} == {*found, pp.load(str(tmp_path / "out")).fingerprint()}


def analyzed(data, tmp_path, features=None, dataset=None):
    features = features or make_features()
    dataset = dataset or files(data)
    cache, out = str(tmp_path / "cache"), str(tmp_path / "out")
    return pp.analyze(features, dataset, out, cache=cache).fingerprint()


class TestCache:
    def test_what_is_kept_is_not_read_again(self, data, tmp_path, reads):
        first = analyzed(data, tmp_path)
        assert 5 == len(reads)
        reads.clear()
        assert first == analyzed(data, tmp_path)
        assert not reads

    def test_new_and_changed_files_are_read(self, data, tmp_path, reads):
        analyzed(data, tmp_path)
        reads.clear()
        write(data, 5, start=3)
        write(data, 1, start=30)
        os.utime(data / "1.jsonl", ns=(1, 1))
        found = analyzed(data, tmp_path)
        assert {"1.jsonl", "5.jsonl"} == set(reads)
        assert full_pass(data) == found

    def test_states_belong_to_files_in_the_order_of_the_listing(self, data, tmp_path, reads):
        """Also where training shuffles them: states were kept under the names of others."""
        shuffled = files(data, shuffle_files=True)
        analyzed(data, tmp_path, dataset=shuffled)
        reads.clear()
        write(data, 9, start=3)
        write(data, 0, start=30)
        os.utime(data / "0.jsonl", ns=(1, 1))
        found = analyzed(data, tmp_path, dataset=shuffled)
        assert {"0.jsonl", "9.jsonl"} == set(reads)
        assert full_pass(data) == found

    def test_what_draws_depends_on_the_number_of_the_file(self, data, tmp_path, reads):
        """A new file gives those behind it other draws, so they are read again."""
        drawn = files(data).filter(lambda row, rng: rng.random() < 0.5)
        analyzed(data, tmp_path, dataset=drawn)
        (data / "00.jsonl").write_text(as_json_lines(TABLE, 0, 8))
        reads.clear()
        found = analyzed(data, tmp_path, dataset=drawn)
        assert {"00.jsonl", "1.jsonl", "2.jsonl", "3.jsonl", "4.jsonl"} == set(reads)
        full = make_features()
        full.adapt(drawn)
        assert full.fingerprint() == found

    def test_a_file_that_is_gone_no_longer_counts(self, data, tmp_path, reads):
        analyzed(data, tmp_path)
        (data / "2.jsonl").unlink()
        reads.clear()
        assert full_pass(data) == analyzed(data, tmp_path)
        assert not reads

    def test_it_goes_on_after_a_crash(self, data, tmp_path, reads):
        good = (data / "0.jsonl").read_text()
        (data / "0.jsonl").write_text(good + "{")
        with pytest.raises(tdi.SourceError):
            analyzed(data, tmp_path)
        num_kept = len(reads) - 1
        reads.clear()
        (data / "0.jsonl").write_text(good)
        assert full_pass(data) == analyzed(data, tmp_path)
        assert 5 - num_kept == len(reads)

    def test_a_folder_that_cannot_be_written_is_a_warning_once(
        self, data, tmp_path, reads, caplog
    ):
        (tmp_path / "cache").write_bytes(b"a file")
        assert full_pass(data) == analyzed(data, tmp_path)
        (message,) = [said for said in caplog.messages if "cache" in said]
        assert "cannot be written" in message
        caplog.clear()
        cache, out = str(tmp_path / "cache" / "inner"), str(tmp_path / "out")
        pp.analyze(make_features(), files(data), out, cache=cache)
        (message,) = [said for said in caplog.messages if "cache" in said]
        assert "cannot be listed" in message

    def test_a_torn_state_is_made_again(self, data, tmp_path, reads, caplog):
        first = analyzed(data, tmp_path)
        for kept in sorted((tmp_path / "cache").iterdir())[:2]:
            kept.write_bytes(kept.read_bytes()[:-100])
        reads.clear()
        assert first == analyzed(data, tmp_path)
        assert 2 == len(reads)
        assert "its file is read again" in caplog.text

    @pytest.mark.parametrize(
        "fn",
        [
            lambda row: {**row, "size": 3.0},
            lambda row: {**row, "code": 2},
            lambda row: {**row, "size": 2.0, "code": 1},
        ],
    )
    def test_another_function_reads_all(self, data, tmp_path, reads, fn):
        first = lambda row: {**row, "size": 2.0}
        analyzed(data, tmp_path, dataset=files(data).map(first))
        reads.clear()
        analyzed(data, tmp_path, dataset=files(data).map(first))
        assert not reads
        analyzed(data, tmp_path, dataset=files(data).map(fn))
        assert 5 == len(reads)

    @pytest.mark.parametrize("make", MAKERS)
    def test_what_a_function_is_made_with_is_part_of_it(self, data, tmp_path, reads, make):
        for size in (2.0, 2.0, 3.0):
            analyzed(data, tmp_path, dataset=files(data).map(make(size)))
        assert 10 == len(reads)

    def test_the_order_of_a_constant_set_is_none(self):
        """Strings have another one in each process; these integers collide."""
        first, second = frozenset([0, 8]), frozenset([8, 0])
        assert list(first) != list(second)
        code = in_a_set.__code__.replace(co_consts=(first,))
        other = in_a_set.__code__.replace(co_consts=(second,))
        assert function_identity.identify(code) == function_identity.identify(other)

    def test_other_layers_read_all(self, data, tmp_path, reads):
        analyzed(data, tmp_path)
        reads.clear()
        analyzed(data, tmp_path, features=pp.Features(size=pp.Normalization()))
        assert 5 == len(reads)


def test_the_recipe_maps_and_filters(data, tmp_path):
    dataset = (
        files(data)
        .map(lambda row: {**row, "size": row["size"] * 0 + 2})
        .filter(lambda row: row["code"] != 0)
    )
    features = pp.Features(size=pp.Normalization(), code=pp.IntegerLookup())
    pp.analyze(features, dataset, str(tmp_path / "out"))
    assert 2.0 == features.layers[0].mean
    assert 0 not in features.layers[1].get_vocabulary()


class TestErrors:
    @pytest.mark.parametrize("operation", [lambda d: d.take(3), lambda d: d.repeat(2)])
    def test_a_recipe_about_all_files_at_once(self, data, tmp_path, operation):
        with pytest.raises(tdi.ConfigurationError, match="reads each file by itself"):
            pp.analyze(make_features(), operation(files(data)), str(tmp_path / "out"))

    def test_what_is_no_file_dataset(self, tmp_path):
        with pytest.raises(TypeError, match=r"call features.adapt\(dataset\)"):
            pp.analyze(make_features(), TABLE, str(tmp_path / "out"))

    @pytest.mark.parametrize("workers", [1, 3])
    def test_bad_data_on_one_worker_fails_all_and_writes_nothing(self, data, tmp_path, workers):
        (data / "3.jsonl").write_text(json.dumps({"size": "large"}) + "\n")

        def run(strategy):
            features = make_features()
            with pytest.raises((tdi.PeerFailedError, TypeError, KeyError)) as caught:
                pp.analyze(features, files(data), str(tmp_path / "out"), strategy=strategy)
            assert not features.state_dict()
            return type(caught.value)

        found = simulate(run, num_workers=workers)
        assert workers - 1 == found.count(tdi.PeerFailedError)
        assert not (tmp_path / "out").exists()

    def test_no_files(self, tmp_path):
        def run(strategy):
            with pytest.raises((FileNotFoundError, tdi.PeerFailedError), match="No file matches"):
                pp.analyze(
                    make_features(), files(tmp_path), str(tmp_path / "out"), strategy=strategy
                )

        simulate(run, num_workers=2)

    def test_a_folder_that_cannot_be_written(self, data, tmp_path):
        (tmp_path / "file").write_text("")

        def run(strategy):
            with pytest.raises((OSError, tdi.PeerFailedError)):
                pp.analyze(
                    make_features(), files(data), f"{tmp_path}/file/out", strategy=strategy
                )

        simulate(run, num_workers=2)

    def test_files_without_rows(self, tmp_path):
        np.savez(tmp_path / "a.npz", age=np.zeros(0, np.float32))
        with pytest.raises(tdi.ConfigurationError, match="got no values"):
            pp.analyze(
                pp.Features(age=pp.Normalization()),
                tdi.FileDataset(f"{tmp_path}/*.npz", reader="npz"),
                str(tmp_path / "out"),
            )


def test_files_of_unknown_versions_are_read_again(reads, monkeypatch, caplog):
    """A state that was kept may be that of other content of the same size."""
    monkeypatch.setattr(filesystem, "_MARKS", ())
    storage = Memory()
    for start in (0, 8):
        storage.put("0.jsonl", as_json_lines(TABLE, start, start + 8).encode())
        features, cache = make_features(), f"{storage.url}/cache"
        pp.analyze(features, files(storage.url), f"{storage.url}/out", cache=cache)
        assert full_pass(storage.url) == features.fingerprint()
    assert 2 == len(reads) == caplog.text.count("1 of 1 files have no version")
