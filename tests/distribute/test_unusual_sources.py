"""What datasets, samplers and collate functions of users also do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

import torch_distinput as tdi
from tests.distribute.example_sources import Squares, densely, first, flat, numpy_batch
from tests.distribute.street import one, options, play, stream_of
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.steps import ready_batches
from torch_distinput.data.user_sources import sampler as sampling
from torch_distinput.testing import simulate


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
        for kind, words in ((Endless, "without a len"), (Counted, "at most 4 items, as its len")):
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

    def test_a_subclass_in_an_order_that_is_drawn(self):
        """As with ready batches: after a restart it would be another one."""

        class Same(DataLoader):
            def __iter__(self):
                yield from super().__iter__()

        class Repeated:  # as in timm
            def __init__(self, sampler):
                self.sampler = sampler

            def __iter__(self):
                return iter(self.sampler)

        loader = Same(Squares(5), batch_size=4, shuffle=True)
        repeated = Same(Squares(5), batch_sampler=Repeated(loader.batch_sampler))
        for one_of_them in (loader, repeated):
            with pytest.raises(tdi.ConfigurationError, match="Same whose own .* got .* RandomS"):
                one().distribute_dataset(one_of_them)
        fixed = Same(Squares(5), batch_sampler=[[4, 3], [0]])
        assert [16, 9, 0] == flat(play(fixed, None))

    def test_a_stateful_subclass_in_an_order_that_is_drawn(self):
        """It tells where it is."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        class Same(StatefulDataLoader):
            def __iter__(self):
                yield from super().__iter__()

        def distributed():
            return one().distribute_dataset(Same(Squares(9), batch_size=2, shuffle=True))

        dataset = distributed()
        steps = iter(dataset)
        next(steps)
        again = distributed()
        again.load_state_dict(dataset.state_dict())
        assert [batch.tolist() for batch in steps] == [batch.tolist() for batch in again]

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
        monkeypatch.setattr(ready_batches, "examine", None)
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

    def test_reduced_structures_must_have_one_set_of_names(self):
        """Values under other names must not be added up; their order is that of the names."""

        def work(strategy):
            values = {"loss": torch.ones(()), "hits": torch.zeros(())}
            names = ["loss", "hits"][:: 1 - 2 * strategy.worker_index]
            total = strategy.reduce("sum", {name: values[name] for name in names})
            assert (2, 0) == (total["loss"].item(), total["hits"].item())
            with pytest.raises(tdi.MismatchError, match="Expected one name"):
                strategy.reduce("sum", {names[0]: values["loss"]})

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


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_ready_batches_of_many_sizes(num_replicas):
    """Each is cut by its own size, whatever that of the one before was."""
    rows = torch.arange(21)

    def stream():
        yield from torch.split(rows, [4, 4, 7, 2, 1, 3])

    steps = list(one(num_replicas).distribute_dataset(stream))
    parts = steps if num_replicas == 1 else [part for step in steps for part in step]
    assert rows.tolist() == torch.cat(parts).tolist()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "second",
    [torch.arange(4), np.arange(4), tdi.PackedStrings.from_list(["a", "b", "c", "d"])],
    ids=["tensor", "array", "packed"],
)
def test_a_ready_batch_of_text_and_a_column(second, replicas):
    """A list of columns, though its first one is a list: it was cut between its columns."""
    texts = ["t0", "t1", "t2", "t3"]

    def work(strategy):
        (step,) = strategy.distribute_dataset(stream_of([[texts, second]]))
        return [(list(text), len(column)) for text, column in strategy.local_results(step)]

    workers = simulate(work, num_workers=2, replicas_per_worker=replicas)
    found = [own for each in workers for own in each]
    assert texts == [text for own, _ in found for text in own]
    assert {4 // len(found)} == {size for _, size in found}


@pytest.mark.parametrize(
    "second", [{"x": torch.arange(4)}, [torch.arange(4)], (torch.arange(4),), {"y": [np.arange(4)]}]
)
def test_a_ready_batch_of_text_and_a_container_of_columns(second):
    """The list is a container, too."""
    texts = ["t0", "t1", "t2", "t3"]

    def work(strategy):
        (step,) = strategy.distribute_dataset(stream_of([[texts, second]]))
        return step[0], flatten(step[1])[0]

    (texts_0, leaves_0), (texts_1, leaves_1) = simulate(work, num_workers=2)
    assert texts == [*texts_0, *texts_1]
    assert [0, 1, 2, 3] == torch.cat([*leaves_0, *leaves_1]).tolist()


@pytest.mark.parametrize("is_ready", [False, True])
def test_transposed_jagged_tensors_are_refused(is_ready):
    """Their rows were cut along another dimension."""
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    batch = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    words = r"Expected jagged tensors of shape \(rows, length, .*transposed"
    with pytest.raises((TypeError, tdi.SourceError), match=words):
        if is_ready:
            list(one().distribute_dataset(stream_of([batch])))
        else:
            list(one().distribute_dataset({"x": batch}, global_batch_size=1))


def test_a_ready_batch_of_a_tuple_of_strings():
    """What torch makes of texts in tuples; a row of its own would not help."""
    batch = default_collate([("a", "b"), ("c", "d")])
    with pytest.raises(tdi.SourceError, match="Make a list of the strings in a tuple"):
        list(one().distribute_dataset(stream_of([batch])))


def test_rows_beside_a_column_are_no_batch():
    """A number or string first makes no rows of what is behind it."""
    for batch in ([7, torch.arange(4)], ["a", None, torch.arange(4)]):
        with pytest.raises(tdi.SourceError, match="one row per example"):
            list(one().distribute_dataset(stream_of([batch])))
