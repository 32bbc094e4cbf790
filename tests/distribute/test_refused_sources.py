"""What is no source, or no option of one, is refused with these words."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
)

import torch_distinput as tdi
from tests.distribute.example_sources import Squares, first
from tests.distribute.hugging_face_streams import of_generator, of_tables
from tests.distribute.street import one, options, stream_of


class TestRefused:
    """Bad input, and the words for it."""

    @pytest.mark.parametrize(
        ("size", "kind", "words"),
        [
            (0, ValueError, "global_batch_size must be at least 1, got 0"),
            (-4, ValueError, "global_batch_size must be at least 1, got -4"),
            (2.5, TypeError, "global_batch_size must be a whole number, got 2.5"),
            (True, TypeError, "whole number"),
            ("8", TypeError, "whole number"),
            (None, ValueError, "needs global_batch_size"),
        ],
    )
    def test_global_batch_size(self, size, kind, words):
        """A positive whole number."""
        with pytest.raises(kind, match=words):
            one().distribute_dataset(range(8), global_batch_size=size)

    @pytest.mark.parametrize(("name", "value"), [("shuffle", 100), ("drop_last", "no")])
    def test_flags(self, name, value):
        """As in tf.data a number would be a buffer size, and a word would count as True."""
        with pytest.raises(TypeError, match=f"{name} must be True or False, got {value!r}"):
            one().distribute_dataset(range(8), global_batch_size=2, **{name: value})

    @pytest.mark.parametrize("given", ["file", {"auto_shard_policy": "file"}])
    def test_options_of_another_kind(self, given):
        with pytest.raises(TypeError, match="options must be an InputOptions, got .*file"):
            one().distribute_dataset(range(8), global_batch_size=2, options=given)

    @pytest.mark.parametrize(
        ("keywords", "kind", "words"),
        [
            ({"auto_shard_policy": "files"}, ValueError, "'auto', 'file', 'data', 'off'"),
            ({"auto_shard_policy": 3}, TypeError, "auto_shard_policy"),
            ({"rebatch": "fair"}, ValueError, "'split', 'even', 'cycle'"),
            ({"per_replica_buffer_size": -1}, ValueError, "at least 0"),
            ({"timeout": 0}, ValueError, "more than 0"),
            ({"timeout": "1"}, TypeError, "seconds"),
            ({"fetch_to_device": 1}, TypeError, "True or False"),
            ({"replication_mode": "both"}, ValueError, "'per_worker', 'per_replica'"),
        ],
    )
    def test_options(self, keywords, kind, words):
        """Refused when they are written."""
        with pytest.raises(kind, match=words):
            options(**keywords)

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            (5, "Expected a source: a DataLoader;"),
            ("train.txt", "Got str"),
            (iter(range(3)), "iterated only once"),
            ((k for k in range(3)), "pass the function that makes it"),
            ({1, 2}, "Got set"),
            (torch.utils.data.Dataset(), "Got Dataset, which has __getitem__ and no __len__"),
            ((torch.ones(2), ["a", "b"]), "to be a tensor or an array, got {0: Tensor, 1: list}"),
            ({"x": np.ones(2), "y": [1, 2]}, "'y': list.*pass examples"),
        ],
    )
    def test_no_source(self, source, words):
        """The kinds are named."""
        with pytest.raises(TypeError, match=words):
            one().distribute_dataset(source, global_batch_size=2)

    @pytest.mark.parametrize("wrap", [
        lambda x: (x, {}), lambda x: ({"x": x, "y": np.ones(4)}, {}), lambda x: ([x] * 4, {}),
        lambda x: (list(x), {}), lambda x: ([{"x": x[1]}] * 4, {}),
        lambda x: (stream_of([{"x": x}] * 4), {}),
        lambda x: (stream_of([0] * 4), {"collate_fn": lambda _: x}),
    ], ids=["array", "columns", "list", "numbers", "number", "stream", "collate_fn"])  # fmt: skip
    def test_masked_arrays(self, wrap):
        """What is masked would come as data."""
        source, keywords = wrap(np.ma.array(np.arange(4.0), mask=[0, 1, 0, 0]))
        words = r"without a mask, got a MaskedArray as .*\.filled\(value\)"
        with pytest.raises((TypeError, tdi.SourceError), match=words):
            first(source, 4, **keywords)

    def test_masked_arrays_that_are_batches(self):
        """Of a stream, and of a loader."""
        rows = np.ma.array(np.arange(4.0), mask=[0, 1, 0, 0])
        with pytest.raises(tdi.SourceError, match="got a MaskedArray as a leaf"):
            first(stream_of([{"x": rows}]), None)
        with pytest.raises(TypeError, match="got a MaskedArray as a column"):
            first(DataLoader(rows, batch_size=2), None)

    @pytest.mark.parametrize("size", [2, None])
    def test_series(self, size):
        """By label it would be another order, or other values."""

        class Series(dict):  # as that of pandas
            iloc = None

        words = r"Got Series, .*with the label i; pass its values: series.to_numpy\(\)"
        with pytest.raises(TypeError, match=words):
            one().distribute_dataset(Series({2: 10.0, 0: 20.0}), global_batch_size=size)

    def test_lists_in_a_dict(self):
        """It may be of columns; it is no list of examples."""
        with pytest.raises(TypeError, match=r"Got dict; its columns are to be tensors"):
            one().distribute_dataset({"x": [1, 2], "y": [3, 4]}, global_batch_size=2)

    def test_distributed_twice(self):
        """A distributed dataset is no source."""
        dataset = one().distribute_dataset(range(4), global_batch_size=2)
        with pytest.raises(TypeError, match="distributed already"):
            one().distribute_dataset(dataset, global_batch_size=2)

    def test_file_policy_without_files(self):
        """Also with one worker; the cure is named."""
        with pytest.raises(ValueError, match=r"AutoShardPolicy.FILE needs.*got range.*Use"):
            one().distribute_dataset(
                range(4), global_batch_size=2, options=options(auto_shard_policy="file")
            )

    @pytest.mark.parametrize(
        ("keywords", "words"),
        [
            ({"global_batch_size": 2, "shuffle": True}, r"FileDataset.shuffle\(buffer_size\)"),
            ({"drop_last": True}, "Pass global_batch_size too"),
            ({"options": options(rebatch="cycle")}, "cycle.*needs global_batch_size"),
        ],
    )
    def test_streams(self, keywords, words):
        """What a stream cannot do."""
        with pytest.raises(ValueError, match=words):
            one().distribute_dataset(stream_of(range(3)), **keywords)

    def test_leaves_without_rows(self):
        """0-dim leaves and leaves of different row counts."""
        for batch, words in (
            ({"a": torch.ones(2), "b": torch.tensor(1)}, "0-dim.*pass global_batch_size"),
            (torch.eye(2).to_sparse(), "layout torch.sparse_coo.*to_dense"),
            ({"a": torch.ones(2), "b": torch.ones(3)}, r"batch\['a'\]: 2, batch\['b'\]: 3"),
            (7, "one row per example"),
            (object(), "one row per example"),
        ):
            with pytest.raises(tdi.SourceError, match=words):
                next(iter(one().distribute_dataset(stream_of([batch]))))
        with pytest.raises(ValueError, match=r"\[0\]: 3, batch\[1\]: 4"):
            one().distribute_dataset((torch.ones(3), torch.ones(4)), global_batch_size=2)

    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    @pytest.mark.parametrize("wrap", [
        lambda x: (x, {}), lambda x: (list(x), {}), lambda x: (stream_of(list(x)), {}),
        lambda x: (stream_of(range(4)), {"collate_fn": lambda _: x}),
    ], ids=["columns", "list", "stream", "collate_fn"])  # fmt: skip
    def test_quantized_tensors_are_refused(self, wrap):
        """Before a replica without rows gets one that has no quantizer."""
        quantized = torch.quantize_per_tensor(torch.ones(4, 2), 0.5, 0, torch.quint8)
        source, keywords = wrap(quantized)
        with pytest.raises((TypeError, tdi.SourceError), match=r"quantized.*dequantize\(\)"):
            first(source, 4, **keywords)

    def test_collate_functions_that_lose_examples(self):
        """The counts would lie."""
        for source in (range(4), stream_of(range(4))):
            with pytest.raises(tdi.SourceError, match="3 rows for 4 examples"):
                first(source, 4, collate_fn=lambda e: torch.tensor(e[1:]))

    def test_examples_that_do_not_stack(self):
        """Which leaf, which shapes, and the cure."""
        ragged = [{"x": torch.ones(k)} for k in (1, 2)]
        with pytest.raises(tdi.SourceError, match=r"example\['x'\].*Pass a collate_fn"):
            first(ragged, 2)
        with pytest.raises(tdi.SourceError, match="one structure"):
            first([{"x": 1}, {"y": 1}], 2)
        lists = [{"x": [1] * k} for k in (100, 200)]
        with pytest.raises(tdi.SourceError, match="and 96 more in .* and 196 more .* pad_collate"):
            first(lists, 2)

    def test_replication_per_replica(self):
        """Only for from_function, as in TensorFlow."""
        with pytest.raises(NotImplementedError, match="distribute_datasets_from_function"):
            one().distribute_dataset(
                range(4), global_batch_size=2, options=options(replication_mode="per_replica")
            )

    def test_dataset_fn(self):
        """A function, which returns something that starts again."""
        with pytest.raises(TypeError, match="must be a function of an InputContext"):
            one().distribute_datasets_from_function([1])
        with pytest.raises(TypeError, match="Return the function instead"):
            one().distribute_datasets_from_function(lambda c: iter([1]))
        dataset = one().distribute_datasets_from_function(lambda c: [torch.tensor(1)])
        with pytest.raises(tdi.SourceError, match=r"0-dim.*Batch the examples in dataset_fn"):
            list(dataset)

    def test_what_is_no_function_is_refused_where_it_is_given(self):
        with pytest.raises(TypeError, match="collate_fn must be a function of a list of examples"):
            one().distribute_dataset(range(4), global_batch_size=2, collate_fn=5)
        with pytest.raises(TypeError, match="value_fn must be a function of a ValueContext"):
            one().distribute_values_from_function(5)

    @pytest.mark.parametrize("kind", [TypeError, ValueError])
    def test_a_source_of_batches_that_raises(self, kind):
        """Its own error, not one about the batch."""

        def stream():
            yield torch.ones(2)
            msg = "bad weather"
            raise kind(msg)

        dataset = one().distribute_dataset(stream)
        words = rf"(?m)step 1: The source raised {kind.__name__} at batch 1: bad weather$"
        with pytest.raises(tdi.SourceError, match=words) as caught:
            list(dataset)
        assert isinstance(caught.value.__cause__, kind)

    def test_a_loader_of_examples(self):
        """Which has no batches of its own."""
        dataset = one().distribute_dataset(DataLoader(Squares(4), batch_size=None))
        with pytest.raises(tdi.SourceError, match="Give the DataLoader a batch_size"):
            list(dataset)

    def test_an_example_that_raises(self):
        """Index, rank, step and the original error."""

        class Rotten(Squares):
            def __getitem__(self, index):
                if index == 5:
                    msg = "rotten"
                    raise KeyError(msg)
                return index

        for num_workers in (0, 1):
            words = r"Worker 0, step 1: The source raised KeyError at example 5: .*rotten"
            dataset = one().distribute_dataset(
                Rotten(8), global_batch_size=4, num_workers=num_workers
            )
            with pytest.raises(tdi.SourceError, match=re.compile(words, re.DOTALL)):
                list(dataset)

    def test_a_file_that_is_missing(self, tmp_path):
        """Or a glob without a match."""
        for name in ("nothing.txt", "*.txt"):
            dataset = one().distribute_dataset(
                tdi.FileDataset(tmp_path / name), global_batch_size=2
            )
            with pytest.raises(FileNotFoundError):
                iter(dataset)

    def test_a_file_that_is_not_text(self, tmp_path):
        """File and line."""
        (tmp_path / "a.txt").write_bytes(b"good\n\xff\xfe\n")
        dataset = one().distribute_dataset(tdi.FileDataset(tmp_path / "a.txt"), global_batch_size=1)
        with pytest.raises(tdi.SourceError, match="a.txt, line 2: expected UTF-8"):
            list(dataset)

    def test_a_map_that_raises(self, tmp_path):
        """Which record of which file."""
        (tmp_path / "a.txt").write_text("1\n2\nx\n")
        files = tdi.FileDataset(tmp_path / "a.txt").map(int)
        with pytest.raises(tdi.SourceError, match=r"ValueError at .*a.txt, record 2"):
            list(one().distribute_dataset(files, global_batch_size=2))


def begun(make):
    """A Hugging Face stream that goes on behind its third row."""
    played, stream = make(), make()
    rows = iter(played)
    for _ in range(3):
        next(rows)
    stream.load_state_dict(played.state_dict())
    return stream


@pytest.mark.parametrize(
    ("wrap", "policy"),
    [
        (lambda stream: stream, "file"),
        (lambda stream: stream, "data"),
        (lambda stream: tdi.mix({"a": stream, "b": range(8)}, weights=(1, 1)), "data"),
        (lambda stream: stream.shuffle(seed=1, buffer_size=2), "file"),
    ],
    ids=["dealt out", "whole", "mixed", "shuffled"],
)
def test_a_stream_with_a_position(wrap, policy):
    """Copies of it are played, which would begin at its beginning."""
    for make in (of_tables, of_generator):
        source = begun(lambda make=make: wrap(make())) if policy == "file" else wrap(begun(make))
        with pytest.raises(tdi.ConfigurationError, match="whose load_state_dict.* Distribute a fr"):
            one().distribute_dataset(
                source, global_batch_size=4, options=options(auto_shard_policy=policy)
            )


def test_replica_batches_with_a_position():
    """The same of what dataset_fn returns."""
    with pytest.raises(tdi.ConfigurationError, match="Expected a stream at its beginning"):
        one().distribute_datasets_from_function(lambda _: begun(lambda: of_tables().batch(2)))


def test_a_loader_over_a_stream_with_a_position():
    """It is played from there, by itself."""
    loader = DataLoader(begun(of_tables), batch_size=33)
    (batch,) = one().distribute_dataset(loader)
    assert list(range(3, 36)) == batch["row"].tolist()


def test_processes_started_under_torchrun_must_initialise(monkeypatch):
    """One worker by mistake would train each rank alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tdi.UsageError, match="init_distributed"):
        tdi.MultiWorkerMirroredStrategy()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert 1 == tdi.MultiWorkerMirroredStrategy().num_workers
