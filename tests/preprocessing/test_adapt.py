"""adapt: one pass, shared by all workers, whose result does not depend on how."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.preprocessing.table import as_json_lines, examples, make_features, make_table
from torch_distinput import preprocessing as pp
from torch_distinput.testing import simulate

ROWS = 23


@cache
def expected(num_rows: int = ROWS) -> str:
    """The fingerprint after one pass of one process over one batch."""
    features = make_features()
    features.adapt(iter([make_table(num_rows)]))
    return features.fingerprint()


class Rows(IterableDataset):
    """The table as a stream of examples."""

    def __iter__(self):
        return iter(examples(make_table(ROWS)))


def batches_of(size):
    table = make_table(ROWS)
    for start in range(0, ROWS, size):
        yield {name: column[start : start + size] for name, column in table.items()}
        yield {name: column[:0] for name, column in table.items()}  # zero rows change nothing


SOURCES = {
    "columns": lambda: (make_table(ROWS), None),
    "columns in small batches": lambda: (make_table(ROWS), 4),
    "examples": lambda: (examples(make_table(ROWS)), 5),
    "examples that hold lists": lambda: (with_lists(examples(make_table(ROWS))), 5),
    "a stream of examples": lambda: (Rows(), 3),
    "a stream of batches": lambda: (lambda: batches_of(6), None),
    "a DataLoader": lambda: (loader(), None),
}


def with_lists(rows):
    """Lists in examples become tuples of columns when they are collated."""
    return [{**row, "place": row["place"].tolist(), "tags": list(row["tags"])} for row in rows]


def loader() -> Any:
    rows: Any = examples(make_table(ROWS))
    return DataLoader(rows, 4, collate_fn=collated)


def collated(rows):
    return {
        name: [row[name] for row in rows] if isinstance(rows[0][name], str)
        else np.stack([row[name] for row in rows])
        for name in rows[0]
    }  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_the_source_and_the_workers_do_not_change_a_bit(kind, workers):
    def run(strategy):
        features = make_features()
        data, batch_size = SOURCES[kind]()
        features.adapt(data, strategy=strategy, batch_size=batch_size)
        return features.fingerprint()

    found = simulate(run, num_workers=workers) if workers else [run(None)]
    assert [expected()] * len(found) == found


@pytest.mark.parametrize(("workers", "replicas"), [(1, 3), (2, 2), (4, 1)])
@pytest.mark.parametrize("partial_batch", ["zero_rows", "pad"])
def test_a_distributed_dataset_is_played_as_it_is(workers, replicas, partial_batch):
    """Padding repeats rows, which are not counted; the next epoch is the one it would have been."""

    def run(strategy):
        options = tdi.InputOptions(partial_batch=partial_batch)
        dataset = strategy.distribute_dataset(
            make_numbers(), global_batch_size=5, shuffle=True, options=options
        )
        features = numbers_features()
        features.adapt(dataset)
        assert dataset.epoch == 0
        return features.fingerprint()

    alone = numbers_features()
    alone.adapt(make_numbers())
    found = simulate(run, num_workers=workers, replicas_per_worker=replicas)
    assert {alone.fingerprint()} == set(found)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_dataset_with_a_loaded_position_is_played_from_its_beginning(workers, is_indexed):
    """All of it is counted, and the position that was loaded is there afterwards."""
    table = torch.arange(100.0)

    def run(strategy):
        def distributed():
            source = table if is_indexed else lambda: iter(table)
            return strategy.distribute_dataset(source, global_batch_size=10)

        dataset = distributed()
        for _ in zip(range(8), dataset, strict=False):
            pass
        state = dataset.state_dict()
        resumed = distributed()
        resumed.load_state_dict(state)
        layer = pp.Normalization()
        layer.adapt(resumed)
        assert resumed.state_dict() == state
        return float(layer.mean), [len(list(resumed)) for _ in range(2)]

    assert [(49.5, [2, 10])] * workers == simulate(run, num_workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_rest_of_an_epoch_that_was_left_is_still_in_the_state(workers):
    """Also of an epoch that was set meanwhile."""

    def run(strategy):
        dataset = strategy.distribute_dataset(torch.arange(10.0), global_batch_size=2)
        next(iter(dataset))
        found = []
        for epoch in (None, 4):
            if epoch is not None:
                dataset.set_epoch(epoch)
            state = dataset.state_dict()
            pp.Normalization().adapt(dataset)
            assert state == dataset.state_dict()
            found.append((state["epoch"], state["steps"]))
        return found

    assert [[(0, 1), (4, 0)]] * workers == simulate(run, num_workers=workers)


def test_a_pass_that_fails_puts_the_position_back():
    """As it was before the pass."""
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(make_numbers(), global_batch_size=5)
    next(iter(dataset))
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    with pytest.raises(TypeError, match="adapts to batches that are its column") as caught:
        pp.Normalization().adapt(dataset)
    assert state == dataset.state_dict()
    assert caught  # and with it the frames of the pass


def make_numbers():
    """Columns that can be padded."""
    table = make_table(ROWS)
    return {name: table[name] for name in ("size", "place", "code")}


def numbers_features():
    return pp.Features(
        size=pp.Normalization(), place=pp.Normalization(), code=pp.IntegerLookup()
    )


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_without_rows_change_nothing(workers):
    def run(strategy):
        features = make_features()
        features.adapt(make_table(1), strategy=strategy)
        return features.fingerprint()

    assert [expected(1)] * workers == simulate(run, num_workers=workers)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("num_files", [1, 5])
def test_files_are_read_once_by_all_workers_together(tmp_path, workers, num_files):
    table = make_table(ROWS)
    cuts = np.linspace(0, ROWS, num_files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(cuts)):
        (tmp_path / f"{number}.jsonl").write_text(as_json_lines(table, start, stop))

    def run(strategy):
        features = make_features()
        files = tdi.FileDataset(f"{tmp_path}/*.jsonl", reader="jsonl")
        features.adapt(files, strategy=strategy, batch_size=7)
        return features.fingerprint()

    assert [expected()] * workers == simulate(run, num_workers=workers)


def test_one_layer_takes_batches_that_are_its_column():
    lookup = pp.StringLookup()
    lookup.adapt(["b", "a", "b"])
    assert ["[UNK]", "b", "a"] == lookup.get_vocabulary()
    normalization = pp.Normalization()
    normalization.adapt(torch.tensor([1.0, 3.0]))
    assert [-1.0, 1.0] == normalization([1.0, 3.0]).tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_features_that_share_a_layer_share_its_state(workers, tmp_path):
    def run(strategy):
        place = pp.StringLookup()
        features = pp.Features(start=place, end=place, last=("end", pp.StringLookup()))
        data = {"start": ["a", "b", "b"], "end": ["c", "c", "c"]}
        features.adapt(data, strategy=strategy)
        assert ["[UNK]", "c", "b", "a"] == features["start"].get_vocabulary()
        assert ["[UNK]", "c"] == features["last"].get_vocabulary()
        return features

    features, *_ = simulate(run, num_workers=workers)
    pp.save(features, str(tmp_path / "out"))
    loaded = pp.load(str(tmp_path / "out"))
    assert features.fingerprint() == loaded.fingerprint()
    assert loaded["start"] is loaded["end"]
    assert loaded["start"] is not loaded["last"]


def test_lists_in_a_dict_are_columns():
    features = pp.Features(age=pp.Normalization(), city=pp.StringLookup())
    features.adapt({"age": [1, 3], "city": ["a", "b"]})
    found = features({"age": [1, 3], "city": ["a", "b"]})
    assert {"age": [-1.0, 1.0], "city": [2, 1]} == {k: v.tolist() for k, v in found.items()}


def test_an_adapted_layer_can_adapt_again():
    layer = pp.Normalization()
    layer.adapt(np.float32([1, 2]))
    layer.adapt(np.float32([10, 30]))
    assert 20.0 == layer.mean.item()


class TestErrors:
    """On every worker, and nothing half applied."""

    def test_no_data(self):
        def run(strategy):
            features = pp.Features(age=pp.Normalization(), city=pp.StringLookup())
            data = {"age": np.float32([1, 2]), "city": np.array(["[UNK]"] * 2, dtype=object)}
            with pytest.raises(tdi.ConfigurationError, match="StringLookup 'city' got no values"):
                features.adapt(data, strategy=strategy)
            return features.layers[0].mean

        assert [None, None] == simulate(run, num_workers=2)

    def test_no_rows(self):
        with pytest.raises(ValueError, match="got no values"):
            pp.Normalization().adapt(np.zeros((0, 3), np.float32))

    @pytest.mark.slow
    def test_a_worker_that_cannot_count(self):
        def run(strategy):
            def batches():
                yield {"city": ["a", "b"]}
                if strategy.worker_index == 1:
                    yield {"city": [1.5, 2.5]}

            features = pp.Features(city=pp.StringLookup())
            dataset = strategy.distribute_datasets_from_function(lambda _: batches)
            with pytest.raises((TypeError, tdi.PeerFailedError)) as caught:
                features.adapt(dataset, strategy=strategy)
            return str(caught.value), features.layers[0].ends

        (other, state), (own, _) = simulate(run, num_workers=2)
        assert "Expected strings, got 1.5" in own
        assert "Expected strings, got 1.5" in other or "orker 1" in other
        assert state is None

    def test_workers_whose_layers_differ(self):
        def run(strategy):
            bins = 3 + (strategy.worker_index == 2)
            features = pp.Features(age=pp.Discretization(num_bins=bins))
            with pytest.raises(tdi.MismatchError, match=r"worker 2 differ.*num_bins=4"):
                features.adapt({"age": np.float32([1, 2])}, strategy=strategy)
            return True

        assert all(simulate(run, num_workers=3))

    def test_a_dataset_of_another_strategy(self):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset([1.0], global_batch_size=1)
        with pytest.raises(tdi.UsageError, match="to be that of the dataset"):
            pp.Normalization().adapt(dataset, strategy=tdi.OneDeviceStrategy("cpu"))

    def test_a_given_state(self):
        with pytest.raises(ValueError, match="was given its boundaries"):
            pp.Discretization([0.0]).adapt(np.float32([1]))

    def test_a_column_that_is_not_there(self):
        with pytest.raises(KeyError, match=r"'age' for the feature 'age', got \['size'\]"):
            pp.Features(age=pp.Normalization()).adapt({"size": np.float32([1])})

    def test_before_adapt(self):
        for layer, value in (
            (pp.Normalization(), 1.0),
            (pp.Discretization(num_bins=2), 1.0),
            (pp.StringLookup(), "a"),
            (pp.IntegerLookup(), 1),
            (pp.TextVectorization(), "a b"),
        ):
            with pytest.raises(tdi.UsageError, match=r"Call adapt\(dataset\)"):
                layer([value])


@pytest.mark.parametrize("batch_size", [2, 3])
def test_lists_in_the_examples_of_a_loader(batch_size):
    """default_collate makes a list of columns of them, which is no list of rows."""
    rows = [{"v": [float(i), 100.0, -1.0], "t": ["a", "b"]} for i in range(8)]
    found = []
    for data, strategy in (
        (rows, None),
        (DataLoader(rows, batch_size), None),
        (DataLoader(rows, batch_size), tdi.OneDeviceStrategy("cpu")),
    ):
        features = pp.Features(v=pp.Normalization(), t=pp.StringLookup())
        features.adapt(data, strategy=strategy)
        assert [3.5, 100, -1] == features["v"].mean.tolist()
        found.append(features.fingerprint())
    assert 1 == len(set(found))
