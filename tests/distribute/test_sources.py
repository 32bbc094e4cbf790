"""Every kind of source, and what is refused with which words."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import multiprocessing
import random
import re
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import torch_distinput as tdi
from tests.distribute.street import Shards, listed, options, play, shown, stream_of
from torch_distinput.data.sources import dataloader
from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.steps import prebatched
from torch_distinput.data.user_sources import sampler as sampling
from torch_distinput.testing import simulate

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Item:
    """An example of a class of its own."""

    image: torch.Tensor
    label: int

    def __post_init__(self):
        """Batches must not run the checks of examples."""
        if not isinstance(self.label, int):
            raise TypeError


class Squares(Dataset):
    """A map-style dataset."""

    def __init__(self, count, *, many=False):
        self.count = count
        self.asked = []
        if many:
            self.__getitems__ = self.get_many

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * index

    def get_many(self, indices):
        """Note how many are asked for at once."""
        self.asked.append(len(indices))
        return [index * index for index in indices]


class Stream(IterableDataset):
    """An IterableDataset with a length, which has ``__getitem__`` from its base class."""

    def __len__(self):
        return 7

    def __iter__(self):
        return iter(range(7))


def one(num_replicas=1):
    """A strategy without peers."""
    return tdi.MirroredStrategy(["cpu"] * num_replicas)


def first(source, size, **keywords):
    """The first step on one replica."""
    return next(iter(one().distribute_dataset(source, global_batch_size=size, **keywords)))


def flat(workers):
    """All examples."""
    return [x for worker in workers for step in worker for batch in step for x in batch]


class TestKinds:
    """What a source can be."""

    def test_columns(self):
        """Tensors, arrays, tuples, dicts, TensorDataset: fetched by whole index arrays."""
        x, y = torch.arange(6).reshape(3, 2), np.arange(3.0)
        assert [[0, 1], [2, 3]] == first(x, 2).tolist()
        assert [0.0, 1.0] == first(y, 2).tolist()
        pair = first((x, y), 2)
        assert isinstance(pair, tuple)
        assert {"x", "y"} == set(first({"x": x, "y": y}, 2))
        assert [0.0, 1.0] == first(TensorDataset(x, torch.from_numpy(y)), 2)[1].tolist()
        point = first(Point(x, y), 2)
        assert (Point, [0.0, 1.0]) == (type(point), point.y.tolist())

    def test_columns_with_a_collate_fn(self):
        """It gets examples, as in a DataLoader."""
        columns = torch.arange(4), torch.arange(4) + 10
        batch = first(columns, 2, collate_fn=lambda rows: torch.stack([y for _, y in rows]))
        assert [10, 11] == batch.tolist()

    def test_string_arrays_stay_arrays(self):
        """torch has no strings."""
        batch = first(np.array(["a", "b", "c"]), 2)
        assert ["a", "b"] == list(batch)

    def test_map_style(self):
        """With and without ``__getitems__``; a list is indexable."""
        many = Squares(5, many=True)
        assert [0, 1, 4, 9] == first(many, 4).tolist() == first(Squares(5), 4).tolist()
        assert 4 in many.asked
        assert [7, 8] == first([7, 8, 9], 2).tolist()
        assert [4, 9] == first(Subset(Squares(5), [2, 3]), 2).tolist()

    def test_structures_of_examples(self):
        """Tuples stay tuples, dataclasses keep their class, lists become tuples of columns."""
        item = first([Item(torch.ones(2), k) for k in range(3)], 2)
        assert (Item, (2, 2), [0, 1]) == (type(item), tuple(item.image.shape), item.label.tolist())
        nested = first([{"a": (k, [str(k), b"x"])} for k in range(3)], 2)
        assert [0, 1] == nested["a"][0].tolist()
        assert (["0", "1"], [b"x", b"x"]) == nested["a"][1]
        images, names = first(((torch.ones(2), "a"), (torch.ones(2), "b")), 2)
        assert ((2, 2), ["a", "b"]) == (tuple(images.shape), names)
        point = first([Point(k, np.ones(2)) for k in range(3)], 2)
        assert ((2, 2), torch.float64) == (tuple(point.y.shape), point.y.dtype)

    def test_streams(self):
        """IterableDataset, generator function, any iterable that starts again."""
        for source in (Stream(), stream_of(range(7)), dict.fromkeys(range(7)).keys()):
            assert list(range(7)) == flat(play(source, 3))

    def test_nodes(self):
        """torchdata nodes are reset every epoch."""
        import torchdata.nodes as tn

        node = tn.IterableWrapper(range(7))
        assert [*range(7), *range(7)] == flat(play(node, 3, epochs=2))
        loader = tn.Loader(tn.Batcher(tn.IterableWrapper(range(7)), 3, drop_last=False))
        mapped = stream_of([torch.tensor(batch) for batch in loader])
        assert list(range(7)) == flat(play(mapped, None))


class TestLoaders:
    """A DataLoader built with the global batch size is looked through."""

    def test_order_and_sizes(self):
        """Plain samplers become our own order; batch size and drop_last are kept."""
        for shuffle in (False, True):
            loader = DataLoader(Squares(11), batch_size=4, shuffle=shuffle, drop_last=True)
            dataset = Squares(11)
            ours = play(dataset, 4, 2, shuffle=shuffle, drop_last=True, seed=3)
            assert ours == play(loader, None, 2, seed=3)

    def test_stateful_loader(self):
        """torchdata's StatefulDataLoader is one too."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(Squares(11), batch_size=4, shuffle=True)
        assert play(Squares(11), 4, 2, shuffle=True) == play(loader, None, 2)

    def test_own_collate_fn_and_processes(self):
        """Kept, with worker_init_fn; persistent processes serve several epochs."""
        loader = DataLoader(
            Squares(9), batch_size=4, num_workers=2, persistent_workers=True,
            collate_fn=negated, worker_init_fn=seed_processes,
        )  # fmt: skip

        dataset = one().distribute_dataset(loader)
        for _ in range(3):
            batches = [batch.tolist() for batch in dataset]
            assert [-k * k for k in range(9)] == [x for batch in batches for x in batch]
            for _ in dataset:  # left early: the next epoch must be whole all the same
                break

    def test_state_of_a_process(self):
        """``get_worker_info().dataset`` is the user's, and may be given what a process needs."""
        loader = DataLoader(
            Squares(9), batch_size=4, num_workers=1,
            collate_fn=counts, worker_init_fn=count_one_less,
        )  # fmt: skip
        assert [8] * 9 == flat(play(loader, None))
        assert [9] * 9 == flat(play(Squares(9), 4, num_workers=1, collate_fn=counts))
        stream = Stream()
        stream.count = 5
        assert [5] * 7 == flat(play(stream, 4, num_workers=1, collate_fn=counts))

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_worker_init_fn_that_raises(self, persistent):
        """Its own words, in every epoch."""
        dataset = one().distribute_dataset(
            DataLoader(
                Squares(9), batch_size=4, num_workers=2,
                worker_init_fn=out_of_order, persistent_workers=persistent,
            )
        )  # fmt: skip
        for _ in range(2):
            words = r"step 0: worker_init_fn\(0\) raised ValueError: out of order$"
            with pytest.raises(tdi.SourceError, match=words):
                list(dataset)

    @pytest.mark.parametrize("broken", [False, True])
    def test_processes_end_with_their_dataset(self, broken):
        """Not when garbage is collected: then torch waits five seconds for each of them."""
        gc.collect()
        gc.disable()
        others = set(multiprocessing.active_children())
        try:
            dataset = one().distribute_dataset(
                DataLoader(
                    Squares(9), batch_size=4, num_workers=2, persistent_workers=True,
                    worker_init_fn=out_of_order if broken else None,
                )
            )  # fmt: skip
            with contextlib.suppress(tdi.SourceError):
                list(dataset)
            assert 2 == len(set(multiprocessing.active_children()) - others)
            del dataset
            assert not set(multiprocessing.active_children()) - others
        finally:
            gc.enable()

    def test_own_sampler(self):
        """Taken as the global order: the same on all ranks, whatever it draws from."""

        class Mixed:
            def __iter__(self):
                yield from torch.randperm(3).tolist()
                yield from np.random.permutation(3) + 3
                yield from random.sample(range(6, 9), 3)

        torch.manual_seed(1)
        before = torch.rand(1)
        torch.manual_seed(1)
        loader = DataLoader(Squares(9), batch_size=4, sampler=Mixed())
        workers = play(loader, None, 2, epochs=2)
        assert before == torch.rand(1)
        epochs = [[w[:3] for w in workers], [w[3:] for w in workers]]
        for epoch in epochs:
            assert [k * k for k in range(9)] == sorted(flat(epoch))
        assert epochs[0] != epochs[1]

    def test_samplers_that_differ_between_workers(self):
        """The error names the sampler, the place and the examples there."""

        class Mine(Sampler):
            def __init__(self, rank):
                self.rank = rank

            def __iter__(self):
                return iter([*range(12), 12 + self.rank, 13, *range(14, 20)])

        def work(strategy):
            sampler = Mine(strategy.worker_index)
            loader = DataLoader(Squares(20), batch_size=2, sampler=sampler)
            iter(strategy.distribute_dataset(loader))

        place = "order from Mine in batches 4 to 7 .*'8, 9, ... .* worker 1"
        with pytest.raises(tdi.MismatchError, match=place):
            simulate(work, num_workers=2)

    def test_weighted_sampler(self):
        """Repetitions are the sampler's own doing."""
        sampler = WeightedRandomSampler([0.0, 1.0, 0.0], 5)
        assert [1] * 5 == flat(play(DataLoader(Squares(3), batch_size=2, sampler=sampler), None, 2))

    def test_random_sampler_with_its_own_length(self):
        """Not a plain one: it is iterated."""
        sampler = RandomSampler(Squares(9), num_samples=4)
        loader = DataLoader(Squares(9), batch_size=2, sampler=sampler)
        assert 4 == len(flat(play(loader, None, 2)))

    def test_own_batch_sampler(self):
        """Batches of any size are the global batches."""
        batches = [[0, 1, 2, 3, 4], [5], [6, 7]]
        loader = DataLoader(Squares(9), batch_sampler=batches)
        first_worker, second = play(loader, None, 2)
        assert [[[0, 1, 4]], [[25]], [[36]]] == first_worker
        assert [[[9, 16]], [[]], [[49]]] == second
        plain = DataLoader(Squares(9), batch_sampler=BatchSampler(range(9), 4, drop_last=False))
        assert play(Squares(9), 4, 2) == play(plain, None, 2)

    def test_over_an_iterable_dataset(self):
        """torch's meaning: its batches, in its order, are the global batches."""
        (steps,) = play(DataLoader(Stream(), batch_size=4), None, 1, 2)
        assert [[[0, 1], [2, 3]], [[4, 5], [6]]] == steps
        workers = play(DataLoader(Stream(), batch_size=4, num_workers=2), None, 2)
        assert sorted([*range(7), *range(7)]) == sorted(flat(workers))  # torch repeats, as ever

    def test_tensor_dataset_with_default_collate(self):
        """A tuple, not default_collate's list."""
        loader = DataLoader(TensorDataset(torch.arange(4), torch.arange(4)), batch_size=2)
        assert isinstance(first(loader, None), tuple)

    def test_a_subclass_with_an_iter_of_its_own(self):
        """What it yields are the global batches; torch's own subclasses are looked through."""

        class Doubled(DataLoader):
            def __iter__(self):
                return (2 * batch for batch in super().__iter__())

        first_worker, second = play(Doubled(Squares(5), batch_size=4), None, 2)
        assert [[[0, 2]], [[32]]] == first_worker
        assert [[[8, 18]], [[]]] == second
        assert not dataloader.look_through(type("Same", (DataLoader,), {})(Squares(5))).ready

    def test_containers_of_tensors(self):
        """torch asks them for ``dataset[i]``: they are not columns."""
        rows = torch.arange(4), torch.arange(4) + 4
        assert [[0, 1, 2, 3], [4, 5, 6, 7]] == first(DataLoader(rows, batch_size=2), None).tolist()
        by_number = DataLoader(dict(enumerate(rows)), batch_size=2)
        assert [[0, 1, 2, 3], [4, 5, 6, 7]] == first(by_number, None).tolist()
        with pytest.raises(tdi.SourceError, match="KeyError at example 0"):
            first(DataLoader({"x": rows[0], "y": rows[1]}, batch_size=2), None)
        assert [0, 1] == first(DataLoader(rows[0], batch_size=2), None).tolist()

    def test_refused(self):
        """What cuts or reorders already, and what is said twice."""
        sampler = DistributedSampler(Squares(9), num_replicas=2, rank=0)
        for keywords, words in (
            ({"sampler": sampler}, "DistributedSampler"),
            ({"batch_sampler": BatchSampler(sampler, 2, drop_last=False)}, "DistributedSampler"),
            ({"in_order": False, "num_workers": 1}, "in_order=True"),
        ):
            with pytest.raises(ValueError, match=words):
                one().distribute_dataset(DataLoader(Squares(9), **keywords))
        for name, value, theirs in (
            ("global_batch_size", 8, "batch_size=4"),
            ("shuffle", True, "the sampler SequentialSampler"),
            ("drop_last", True, "drop_last=False"),
            ("collate_fn", list, "collate_fn=<function"),
            ("num_workers", 2, "num_workers=0"),
        ):
            with pytest.raises(ValueError, match=f"{name} to be set once, got .*has {theirs}"):
                one().distribute_dataset(DataLoader(Squares(9), batch_size=4), **{name: value})
        with pytest.raises(ValueError, match="DistributedSampler"):  # that first
            one().distribute_dataset(
                DataLoader(Squares(9), sampler=sampler), global_batch_size=4
            )


def negated(examples):
    """A collate function that can be pickled."""
    return -torch.tensor(examples)


def densely(examples):
    """From sparse examples to a dense batch."""
    return torch.stack([example.to_dense() for example in examples])


def count_one_less(process):
    """Change the dataset of a loader process."""
    get_worker_info().dataset.count -= 1


def counts(examples):
    """What a loader process knows of the dataset."""
    return torch.full((len(examples),), get_worker_info().dataset.count)


def out_of_order(process):
    """A worker_init_fn that fails."""
    msg = "out of order"
    raise ValueError(msg)


def numpy_batch(examples):
    """A batch of arrays."""
    return {"x": np.array(examples), "names": np.array([str(x) for x in examples])}


def seed_processes(process):
    """Called in each loader process."""
    assert process in (0, 1)


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
            ((torch.ones(2), ["a", "b"]), "all are tensors or arrays, got {0: Tensor, 1: list}"),
            ({"x": np.ones(2), "y": [1, 2]}, "'y': list.*pass examples"),
        ],
    )
    def test_no_source(self, source, words):
        """The kinds are named."""
        with pytest.raises(TypeError, match=words):
            one().distribute_dataset(source, global_batch_size=2)

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

    def test_replication_per_replica(self):
        """Only for from_function, as in TensorFlow."""
        with pytest.raises(NotImplementedError, match="distribute_datasets_from_function"):
            one().distribute_dataset(
                range(4), global_batch_size=2, options=options(replication_mode="per_replica")
            )

    def test_dataset_fn(self):
        """A function, which returns something that starts again."""
        with pytest.raises(TypeError, match="must be a function"):
            one().distribute_datasets_from_function([1])
        with pytest.raises(TypeError, match="Return the function instead"):
            one().distribute_datasets_from_function(lambda c: iter([1]))
        dataset = one().distribute_datasets_from_function(lambda c: [torch.tensor(1)])
        with pytest.raises(tdi.SourceError, match=r"0-dim.*Batch the examples in dataset_fn"):
            list(dataset)

    @pytest.mark.parametrize("kind", [TypeError, ValueError])
    def test_a_source_of_batches_that_raises(self, kind):
        """Its own error, not one about the batch."""

        def stream():
            yield torch.ones(2)
            msg = "bad weather"
            raise kind(msg)

        dataset = one().distribute_dataset(stream)
        words = rf"step 1: The source raised {kind.__name__} at batch 1: bad weather$"
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


def test_processes_started_under_torchrun_must_initialise(monkeypatch):
    """One worker by mistake would train each rank alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tdi.UsageError, match="init_distributed"):
        tdi.MultiWorkerMirroredStrategy()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert 1 == tdi.MultiWorkerMirroredStrategy().num_workers


def test_strategies():
    """Topologies and devices."""
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    assert (2, 1, 0) == (
        strategy.num_replicas_in_sync,
        strategy.num_workers,
        strategy.worker_index,
    )
    assert "MirroredStrategy(worker 0 of 1, devices cpu, cpu)" == repr(strategy)
    assert (torch.device("cpu"),) == tdi.OneDeviceStrategy("cpu").devices
    for wrong in ([], "cpu"):
        with pytest.raises(ValueError, match="one per replica"):
            tdi.MirroredStrategy(wrong)
    with pytest.raises(ValueError, match="data_dims"):
        tdi.MultiWorkerMirroredStrategy(data_dims=["dp"])


def test_shards_with_fewer_shards_than_workers():
    """On every worker, before the first step."""

    def work(strategy):
        dataset = strategy.distribute_dataset(Shards([[1], [2]]), global_batch_size=2)
        with pytest.raises(tdi.TooFewFilesError, match="has 2 for 3 workers"):
            iter(dataset)
        whole = strategy.distribute_dataset(
            Shards([[1], [2]]), global_batch_size=2, options=options(auto_shard_policy="data")
        )
        return [shown(strategy, step) for step in whole]

    assert [1, 2] == sorted(flat(simulate(work, num_workers=3)))


def test_listed():
    """The helper of these tests."""
    assert [1] == listed(torch.tensor([1]))


class TestMended:
    """Cases that were wrong once."""

    def test_subclasses_with_a_getitem_of_their_own(self):
        """A TensorDataset's columns are not what a subclass returns."""

        class Plus(TensorDataset):
            def __getitem__(self, index):
                return super().__getitem__(index)[0] + 100

        assert [100, 101] == first(Plus(torch.arange(4)), 2).tolist()

    def test_samplers_that_only_look_plain(self):
        """A subclass, and a sampler over something shorter."""

        class Backwards(torch.utils.data.SequentialSampler):
            def __iter__(self):
                return iter(range(len(self.data_source) - 1, -1, -1))

        data = list(range(6))
        backwards = DataLoader(data, batch_size=6, sampler=Backwards(data))
        assert [5, 4, 3, 2, 1, 0] == first(backwards, None).tolist()
        short = DataLoader(data, batch_size=6, sampler=RandomSampler(range(3)))
        assert [0, 1, 2] == sorted(first(short, None).tolist())

    def test_samplers_of_other_keys(self):
        """Indices are whole numbers."""
        loader = DataLoader(list(range(4)), batch_size=2, sampler=[(0, 1), (1, 0)])
        with pytest.raises(ValueError, match="yields indices, got"):
            first(loader, None)
        for batch in ([0.5, 1.5], [True, False], [(0, 1)], 1):
            loader = DataLoader(list(range(4)), batch_sampler=[[0], batch])
            with pytest.raises(ValueError, match="batch sampler yields a list"):
                first(loader, None)

    def test_samplers_that_do_not_end(self, monkeypatch):
        """With a length and without."""

        class Endless:
            def __iter__(self):
                return itertools.cycle(self.items)

        class Counted(Endless):
            def __len__(self):
                return 4

        monkeypatch.setattr(sampling, "_MOST", 100)
        for kind, words in ((Endless, "no len"), (Counted, "after 4 items, and its len.. is 4")):
            for name, items in (("sampler", [0, 1]), ("batch_sampler", [[0, 1], []])):
                sampler = kind()
                sampler.items = items
                with pytest.raises(ValueError, match=words):
                    first(DataLoader(list(range(4)), **{name: sampler}), None)

    def test_a_dataset_without_a_length(self):
        """A sampler says which examples there are, as in torch; example 0 may be none."""

        class Tens(Dataset):
            def __getitem__(self, index):
                return {1: 10, 2: 20, 3: 30}[index]

        for loader in (
            DataLoader(Tens(), batch_size=2, sampler=[3, 1, 2]),
            DataLoader(Tens(), batch_sampler=[[3, 1], [2]]),
        ):
            assert [[[[30]], [[20]]], [[[10]], [[]]]] == play(loader, None, 2)
            assert [[[[30]], [[20]]], [[[10]], [[]]], [[[]], [[]]]] == play(loader, None, 3)

    def test_iterable_datasets_that_are_their_own_iterator(self):
        """``__iter__`` starts them anew."""

        class Own(IterableDataset):
            def __iter__(self):
                self.rest = iter(range(5))
                return self

            def __next__(self):
                return next(self.rest)

        assert [*range(5), *range(5)] == flat(play(Own(), 2, epochs=2))

    def test_collate_functions_get_lines(self, tmp_path):
        """Also where no map has made examples of them."""
        (tmp_path / "a").write_text("a\nbb\n")
        lengths = first(tdi.FileDataset(tmp_path / "a"), 2, collate_fn=lambda x: [*map(len, x)])
        assert [1, 2] == lengths

    def test_keys_in_any_order(self):
        """Examples are matched by their keys, as in default_collate."""
        batch = first([{"a": 1, "b": {"x": 2, "y": 3}}, {"b": {"y": 6, "x": 5}, "a": 4}], 2)
        assert ["a", "b"] == list(batch)
        assert ([1, 4], [2, 5]) == (batch["a"].tolist(), batch["b"]["x"].tolist())

    def test_arrays_that_torch_cannot_share(self):
        """Backwards, in another byte order, read-only."""
        backwards, big, frozen = np.arange(4)[::-1], np.arange(4, dtype=">i4"), np.arange(4)
        frozen.flags.writeable = False
        x, y, z = first((backwards, big, frozen), 2)
        assert ([3, 2], [0, 1], [0, 1]) == (x.tolist(), y.tolist(), z.tolist())

    def test_files_mapped_to_memory_stay_there(self, tmp_path):
        """Read-only columns are not read before their rows are asked for."""
        np.save(tmp_path / "x.npy", np.arange(12).reshape(6, 2))
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        assert ColumnFetch.of({"x": mapped}).columns[0].leaf is mapped
        batch = first((mapped, torch.arange(6)), 2, shuffle=True)
        assert all(isinstance(leaf, torch.Tensor) for leaf in batch)
        assert [[2 * k, 2 * k + 1] for k in batch[1].tolist()] == batch[0].tolist()
        stacked = first(mapped, 2, collate_fn=torch.stack)
        assert [[0, 1], [2, 3]] == stacked.tolist()

    def test_memory_formats_are_kept(self):
        """channels_last columns give channels_last batches."""
        images = torch.ones(4, 2, 3, 3).to(memory_format=torch.channels_last)
        assert first(images, 2).is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("num_workers", [1, 3])
    def test_arrays_that_a_collate_fn_returns(self, num_workers):
        """Tensors, also without rows; torch has no strings."""
        for source in (range(4), stream_of(range(4))):

            def work(strategy, source=source):
                dataset = strategy.distribute_dataset(
                    source, global_batch_size=4, collate_fn=numpy_batch
                )
                (step,) = dataset
                return step, dataset.element_spec

            for step, spec in simulate(work, num_workers=num_workers):
                assert isinstance(step["x"], torch.Tensor)
                assert torch.int64 is step["x"].dtype is spec["x"].dtype
                assert isinstance(step["names"], np.ndarray)

    def test_examples_that_are_sparse(self):
        """The collate_fn makes rows of them."""
        examples = [torch.eye(2).to_sparse()] * 4
        workers = play(stream_of(examples), 2, 2, collate_fn=densely)
        assert [[[[[[1, 0], [0, 1]]]]] * 2] * 2 == workers

    def test_a_single_worker_compares_nothing(self, monkeypatch):
        """There is nobody who could have read another stream."""
        monkeypatch.setattr(prebatched, "examine", None)
        assert list(range(4)) == flat(play(stream_of(range(4)), 2, 1, 2))

    def test_cycle_compares_streams_too(self):
        """The first global batches, also where none need be held."""

        def work(strategy):
            order = list(range(40))[:: 1 - 2 * strategy.worker_index]
            dataset = strategy.distribute_dataset(
                stream_of(order), global_batch_size=4, options=options(rebatch="cycle")
            )
            with pytest.raises(tdi.MismatchError, match="read the same stream"):
                list(dataset)

        simulate(work, num_workers=2)

    def test_reduced_structures_must_have_one_order(self):
        """Values under other names must not be added up."""

        def work(strategy):
            names = ["loss", "hits"][:: 1 - 2 * strategy.worker_index]
            with pytest.raises(tdi.MismatchError, match="Expected one name"):
                strategy.reduce("sum", {name: torch.ones(()) for name in names})

        simulate(work, num_workers=2)

    def test_arguments_of_run_are_the_callers_own(self):
        """What has no PerReplica in it can be changed in place."""
        strategy, log = one(2), {"steps": 0}

        def step(x, state):
            state["steps"] += x

        strategy.run(step, args=(tdi.PerReplica([1, 2]), log))
        assert {"steps": 3} == log
        with pytest.raises(TypeError, match="args="):
            strategy.run(step, (1,), 2)

    def test_a_dataset_is_true(self):
        """Also one whose length is not known, or 0."""
        for source in (range(0), stream_of(range(4))):
            assert one().distribute_dataset(source, global_batch_size=2)

    def test_the_spec_can_be_asked_for_within_the_loop(self):
        """Without closing the iterator that runs."""
        dataset = one().distribute_dataset(stream_of(range(4)), global_batch_size=2)
        specs = [dataset.element_spec for _ in dataset]
        assert [tdi.TensorSpec((None,), torch.int64)] * 2 == specs


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["columns", "arrays", "stream"])
def test_the_default_device_is_another(kind, large):
    """Scripts set it to their accelerator; batches are made in host memory all the same."""
    rows = np.arange(5.0)[:, None] * np.ones(20_000 if large else 2)
    source = {
        "columns": torch.from_numpy(rows),
        "arrays": list(rows),
        "stream": lambda: iter(rows),
    }[kind]
    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    with torch.device("meta"):
        steps = list(strategy.distribute_dataset(source, global_batch_size=4))
    assert [[[0, 1], [2, 3]], [[4], []]] == [[b[:, 0].tolist() for b in step] for step in steps]
