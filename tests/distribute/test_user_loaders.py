"""A DataLoader of the user's is looked through: what it keeps, and what it may not be."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import torch_distinput as tdi
from tests.distribute.example_sources import Squares, Stream, first, flat
from tests.distribute.street import one, play
from torch_distinput.data.sources import dataloader as user_loader
from torch_distinput.testing import simulate


class TestLoaders:
    """A DataLoader built with the global batch size is looked through."""

    def test_order_and_sizes(self):
        """Plain samplers become our own order; batch size and drop_last are kept."""
        for shuffle in (False, True):
            loader = DataLoader(Squares(11), batch_size=4, shuffle=shuffle, drop_last=True)
            dataset = Squares(11)
            ours = play(dataset, 4, 2, shuffle=shuffle, drop_last=True, seed=3)
            assert ours == play(loader, None, 2, seed=3)

    @pytest.mark.parametrize("generator", [None, torch.Generator()])
    def test_stateful_loader(self, generator, caplog):
        """torchdata's StatefulDataLoader is one too. A generator that was given is not used."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(Squares(11), batch_size=4, shuffle=True, generator=generator)
        assert play(Squares(11), 4, 2, shuffle=True) == play(loader, None, 2)
        assert ("generator is not used" in caplog.text) is (generator is not None)

    def test_stateful_loader_with_a_position(self):
        """Which nobody would look at, unless its batches are ready."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        def begun(dataset):
            state = StatefulDataLoader(dataset, batch_size=4)
            next(iter(state))
            loader = StatefulDataLoader(dataset, batch_size=4)
            loader.load_state_dict(state.state_dict())
            return loader

        with pytest.raises(tdi.ConfigurationError, match="whose load_state_dict.* fresh one, and"):
            one().distribute_dataset(begun(Squares(11)))
        assert [4, 5, 6] == flat(play(begun(Stream()), None))

    @pytest.mark.parametrize("num_processes", [0, 1])
    def test_stateful_loader_over_a_stream_without_a_state(self, num_processes):
        """Its own state counts what it has passed over twice, so an epoch is resumed by ours."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        state, found = None, []
        for num_steps in (2, 1, 1, 3):
            loader = StatefulDataLoader(Stream(), batch_size=1, num_workers=num_processes)
            dataset = one().distribute_dataset(loader)
            if state is not None:
                dataset.load_state_dict(state)
            found += [batch.item() for batch in itertools.islice(dataset, num_steps)]
            state = json.loads(json.dumps(dataset.state_dict()))
        assert list(range(7)) == found

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
            words = r"(?m)step 0: worker_init_fn\(0\) raised ValueError: out of order$"
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

    def test_random_sampler_over_something_shorter(self):
        """It draws from that alone, as often as it has to."""
        sampler = RandomSampler(range(4), num_samples=8)
        loader = DataLoader(Squares(8), batch_size=4, sampler=sampler)
        assert [0, 0, 1, 1, 4, 4, 9, 9] == sorted(flat(play(loader, None, 2)))

    @pytest.mark.parametrize(
        "keywords",
        [
            {"shuffle": True},
            {"shuffle": True, "generator": torch.Generator()},
            {"sampler": WeightedRandomSampler([1.0] * 4, 4)},
        ],
        ids=["shuffle", "generator", "weights"],
    )
    def test_ready_batches_in_an_order_that_is_drawn(self, keywords):
        """It would be another one after a restart; seed= has no part in it."""
        loader = DataLoader(TensorDataset(torch.eye(4)), batch_size=None, **keywords)
        with pytest.raises(tdi.ConfigurationError, match="order of its dataset, got"):
            one().distribute_dataset(loader)

    @pytest.mark.parametrize("order", [[3, 0], (3, 0), range(3, -1, -3), None])
    def test_ready_batches_in_an_order_that_is_fixed(self, order):
        """A list, or the epoch, decides it."""

        class Told:
            first = 3

            def set_epoch(self, epoch):
                self.first = 3 - epoch

            def __iter__(self):
                return iter([self.first, 0])

        loader = DataLoader(torch.arange(8).view(4, 2), batch_size=None, sampler=order or Told())
        dataset = one().distribute_dataset(loader)
        epochs = [[batch.tolist() for batch in dataset] for _ in range(2)]
        second = [6, 7] if order else [4, 5]
        assert [[[6, 7], [0, 1]], [second, [0, 1]]] == epochs

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
        assert not user_loader.look_through(type("Same", (DataLoader,), {})(Squares(5))).ready

    def test_a_subclass_with_a_get_iterator_of_its_own(self):
        """What ``__iter__`` calls is as much the user's; passed by, its work would be missing."""

        class Doubled(DataLoader):
            def _get_iterator(self):
                return (2 * batch for batch in super()._get_iterator())

        assert play(Squares(5), 4, 2) != play(Doubled(Squares(5), batch_size=4), None, 2)
        assert [0, 2, 8, 18] == first(Doubled(Squares(5), batch_size=4), None).tolist()

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


def seed_processes(process):
    """Called in each loader process."""
    assert process in (0, 1)
