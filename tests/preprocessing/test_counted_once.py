"""What adapt must not pass over in silence, nor count twice."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import torch_distinput as tdi
from torch_distinput import preprocessing as pp
from torch_distinput.testing import simulate


def stops_at(last, value):
    if value == last:
        raise StopIteration
    return value


class Stops(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return stops_at(5, index)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(8))


def stopping_collate(examples):
    return torch.tensor([stops_at(5, example) for example in examples])


class TestStopIterationInCodeOfTheUsers:
    @pytest.mark.parametrize(
        ("source", "collate_fn", "where"),
        [
            (Stops(), None, "an example of Stops, got StopIteration"),
            (range(8), stopping_collate, "collate_fn to return a batch, got StopIteration"),
            (Numbers(), stopping_collate, "collate_fn to return a batch, got StopIteration"),
        ],
        ids=["dataset", "collate_fn", "collate_fn of a stream"],
    )
    def test_in_a_loader(self, source, collate_fn, where):
        """It is an error in adapt, which torch would take for the end of the data."""
        layer = pp.Normalization()
        with pytest.raises(RuntimeError, match=where):
            layer.adapt(DataLoader(source, batch_size=2, collate_fn=collate_fn))
        assert {} == layer.state_dict()

    @pytest.mark.parametrize("source", [Stops(), range(8), Numbers()])
    def test_in_a_loader_process(self, source):
        """It is an error there too."""
        loader = DataLoader(
            source,
            batch_size=2,
            collate_fn=None if isinstance(source, Stops) else stopping_collate,
            num_workers=1,
            persistent_workers=True,
        )
        with pytest.raises(RuntimeError, match="got StopIteration"):
            pp.Normalization().adapt(loader)
        loader._iterator._shutdown_workers()  # torch's error keeps it from being collected soon

    def test_the_loader_keeps_its_collate_fn(self):
        """A pass leaves the user's loader as it was."""
        loader = DataLoader(range(8), batch_size=2)
        before = loader.collate_fn
        pp.Normalization().adapt(loader)
        assert before is loader.collate_fn

    @pytest.mark.parametrize("rule", ["standardize", "split"])
    def test_in_a_function_of_a_layer(self, rule):
        """It is an error that names the text, in adapt and in a plain DataLoader."""
        fn = functools.partial(stops_at, "c")
        layer = pp.TextVectorization(**{"split": None, "vocabulary": ["a"], rule: fn})
        with pytest.raises(RuntimeError, match=rf"{rule} to return, got StopIteration for 'c'"):
            list(DataLoader(["c", "a"], collate_fn=layer))


class TestEachExampleOnce:
    def test_a_dataset_that_all_workers_play_is_refused(self):
        """Under OFF each example would be counted once a worker."""

        def adapt(strategy):
            options = tdi.InputOptions(auto_shard_policy="off")
            dataset = strategy.distribute_dataset(
                torch.arange(6), global_batch_size=2, options=options
            )
            layer = pp.Discretization(num_bins=2)
            layer.adapt(dataset)
            return layer.bin_boundaries.tolist()

        assert [[2.0]] == simulate(adapt, num_workers=1)
        with pytest.raises(tdi.UsageError, match="all 2 workers read everything"):
            simulate(adapt, num_workers=2)


def test_the_others_hear_why_a_rank_cannot_count():
    """Not that it has left the loop, which is what its peers see of it in a stream."""

    def adapt(strategy):
        value = None if strategy.worker_index == 1 else "a"
        dataset = strategy.distribute_datasets_from_function(lambda _: [[value]] * 500)
        with pytest.raises((ValueError, tdi.PeerFailedError)) as caught:
            pp.StringLookup().adapt(dataset)
        return str(caught.value)

    heard, own = simulate(adapt, num_workers=2)
    assert own.startswith("StringLookup got None")
    assert own in heard


class TestSkippedRecords:
    @pytest.fixture
    def files(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"i": 1}\nbad\n{"i": 2}\n')
        return functools.partial(tdi.FileDataset, f"{tmp_path}/a.jsonl", reader="jsonl")

    def test_adapt_alone_says_so(self, files, caplog):
        """What adapt leaves out of a file is logged."""
        pp.Features(i=pp.IntegerLookup()).adapt(files(on_error="skip"))
        assert "skips bad records of" in caplog.text

    def test_a_state_without_them_is_not_kept(self, files, tmp_path, caplog):
        """A file that was not counted whole is read again: who wants an error gets it."""
        out, cache = str(tmp_path / "out"), str(tmp_path / "cache")
        for _ in range(2):
            caplog.clear()
            pp.analyze(pp.Features(i=pp.IntegerLookup()), files(on_error="skip"), out, cache=cache)
            assert "skips bad records of" in caplog.text
        with pytest.raises(tdi.SourceError, match="record 1"):
            pp.analyze(pp.Features(i=pp.IntegerLookup()), files(), out, cache=cache)


class TestLargeIntegers:
    def test_beside_floats_they_are_refused(self):
        """Beside a float NumPy rounds them: another batch would give another token."""
        layer = pp.Features(i=pp.IntegerLookup(vocabulary=[2**53]))
        rows = [{"i": 2.0}, {"i": 2**53 + 1}]
        for apply, given in (
            (layer.collate, rows),
            (layer, {"i": [2.0, 2**53 + 1]}),
            (layer.pack, {"i": [2.0, 2**53 + 1]}),
            (pp.Features(i=pp.IntegerLookup()).adapt, rows),
        ):
            with pytest.raises(ValueError, match=r"up to 2\*\*53 beside floats"):
                apply(given)

    def test_beyond_int64_they_are_refused_in_a_batch_of_examples(self):
        """NumPy makes floats of them, in which their neighbours would be rounded."""
        layer = pp.Features(i=pp.IntegerLookup(vocabulary=[2**53]))
        with pytest.raises(ValueError, match=r"below 2\*\*63"):
            layer.collate([{"i": -1}, {"i": 2**63}, {"i": 2**53 + 1}])


def test_escapes_that_are_utf8_are_what_they_stand_for():
    """A host string is looked up by its bytes, as a packed one is."""
    layer, odd = pp.StringLookup(vocabulary=["é"]), ["\udcc3\udca9", "\udcc3"]
    assert [1, 0] == layer(odd).tolist() == layer(pp.pack_strings(odd)).tolist()
