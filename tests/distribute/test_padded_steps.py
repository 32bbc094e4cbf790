"""partial_batch="pad": what the steps are like, when they are compiled, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

import torch_distinput as tdi
from tests.distribute.masks import PAD, masked
from tests.distribute.street import one, options, play, stream_of
from torch_distinput.device import prefetch
from torch_distinput.device.backend import CpuBackend
from torch_distinput.testing import simulate


class TestSteps:
    """What is handed out."""

    def test_any_structure(self):
        """The batch keeps its own, with the mask beside it."""
        examples = [{"x": (torch.ones(2) * k, k), "name": f"n{k}"} for k in range(1, 4)]
        dataset = one(2).distribute_dataset(examples, global_batch_size=4, options=PAD)
        ((batch, mask),) = dataset
        assert ["n1", "n2"] == batch["name"][0]
        assert ["n3", "n3"] == batch["name"][1]
        assert [[3, 3], [3, 3]] == batch["x"][0][1].tolist()
        assert [3, 3] == batch["x"][1][1].tolist()
        assert isinstance(mask, tdi.PerReplica)
        assert [[True, True], [True, False]] == [own.tolist() for own in mask]

    def test_element_spec(self):
        """The rows are a number, before, while and after steps are taken."""
        dataset = one(3).distribute_dataset(
            {"x": torch.ones(5, 2)}, global_batch_size=4, options=PAD
        )
        batch = {"x": tdi.TensorSpec((2, 2), torch.float32)}
        expected = (batch, tdi.TensorSpec((2,), torch.bool))
        assert expected == dataset.element_spec
        iterator = iter(dataset)
        assert expected == iterator.element_spec == dataset.element_spec
        list(iterator)
        assert expected == iterator.element_spec == dataset.element_spec

    def test_element_spec_of_a_stream(self):
        """It is found out by all ranks together."""

        def work(strategy):
            dataset = strategy.distribute_dataset(
                stream_of(["a", "b", "c"]), global_batch_size=6, options=PAD
            )
            return dataset.element_spec, [strategy.local_results(step) for step in dataset]

        for worker, (spec, steps) in enumerate(simulate(work, num_workers=4)):
            assert (tdi.TensorSpec((2,), str), tdi.TensorSpec((2,), torch.bool)) == spec
            ((batch, mask),) = steps[0]
            assert [["a"] * 2, ["b"] * 2, ["c"] * 2, [""] * 2][worker] == batch
            assert [worker < 3, False] == mask.tolist()

    def test_batches_may_be_kept_and_written_to(self):
        """Nothing of a step is seen in a later one, nor in the source."""
        data = torch.arange(1, 12)
        expected = play(data, 4, 1, 3, epochs=2)

        def work(strategy):
            kept, found = [], []
            dataset = strategy.distribute_dataset(data, global_batch_size=4, options=PAD)
            for step in itertools.chain(dataset, dataset):
                found.append([(b.tolist(), m.tolist()) for b, m in strategy.local_results(step)])
                kept += itertools.chain(*strategy.local_results(step))
                for leaf in kept:
                    leaf.fill_(0)
            assert not any(leaf.any() for leaf in kept)
            return found

        found = simulate(work, num_workers=1, replicas_per_worker=3)
        assert expected == masked(found, 2)
        assert list(range(1, 12)) == data.tolist()

    def test_a_full_batch_is_not_copied(self):
        """It is what the source made."""
        made = []

        def collate(examples):
            made.append(torch.tensor(examples))
            return made[-1]

        dataset = one().distribute_dataset(
            range(6), global_batch_size=4, collate_fn=collate, options=PAD
        )
        iterator = iter(dataset)
        batch, _ = next(iterator)
        assert any(batch.data_ptr() == own.data_ptr() for own in made)
        batch, _ = next(iterator)
        assert not any(batch.data_ptr() == own.data_ptr() for own in made)

    @pytest.mark.parametrize("fetch_to_device", [True, False])
    @pytest.mark.parametrize("buffer_size", [0, 2])
    def test_on_the_way_to_a_device(self, monkeypatch, fetch_to_device, buffer_size):
        """The mask goes along, like any other leaf."""
        moved = []

        class Backend(CpuBackend):
            def holds(self, tensor):
                return False

            def copy(self, source):
                moved.append(source.dtype)
                return source.clone()

        monkeypatch.setattr(prefetch, "backend_for", lambda device: Backend())
        option = replace(
            PAD, fetch_to_device=fetch_to_device, per_replica_buffer_size=buffer_size
        )
        strategy = tdi.MirroredStrategy(["meta:0", "meta:1"])
        data = torch.arange(1, 12)
        steps = list(strategy.distribute_dataset(data, global_batch_size=4, options=option))
        worker = [[(b[r], m[r]) for r in range(2)] for b, m in steps]
        ((*_, last),) = masked([worker], 2)
        assert [[9, 10], [11]] == last
        assert (moved.count(torch.bool) == 6) is fetch_to_device

    def test_replay_is_not_padded(self):
        """It shows what there was."""
        dataset = one(2).distribute_dataset(torch.arange(5), global_batch_size=4, options=PAD)
        state = dataset.state_dict()
        assert [4] == dataset.replay(state, 1).batches[0].tolist()
        assert dataset.replay(state, 1).batches[1] is None


class TestRefusals:
    """Without a global batch size there is no number of rows to fill up to."""

    def test_ready_batches(self):
        """Of a stream, and of a DataLoader over one."""

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(4))

        for source in (stream_of([torch.ones(2)]), DataLoader(Stream(), batch_size=2)):
            with pytest.raises(tdi.ConfigurationError, match="needs global_batch_size.*got"):
                one().distribute_dataset(source, options=PAD)

    def test_a_batch_sampler(self):
        """Of the user's own; a sampler with a batch size is fine."""

        class Batches(BatchSampler):
            pass

        data = torch.arange(5)
        own = Batches(SequentialSampler(data), 4, drop_last=False)
        with pytest.raises(tdi.ConfigurationError, match="DataLoader, whose batches have sizes"):
            one().distribute_dataset(DataLoader(data, batch_sampler=own), options=PAD)
        loader = DataLoader(data, batch_size=4, sampler=[4, 3, 2, 1, 0])
        steps = list(one().distribute_dataset(loader, options=PAD))
        assert [[[4, 3, 2, 1], [0]]] == [[b[m].tolist() for b, m in steps]]

    def test_a_function(self):
        """It is not even called."""
        with pytest.raises(tdi.ConfigurationError, match="got batches, whose batches have sizes"):
            one().distribute_datasets_from_function(batches, options=PAD)

    def test_another_name(self):
        """The names are listed."""
        allowed = "partial_batch must be one of 'auto', 'zero_rows', 'pad'"
        with pytest.raises(ValueError, match=allowed):
            options(partial_batch="fill")
        assert "pad" == options(partial_batch="PAD").partial_batch

    def test_ranks_that_differ(self):
        """They would compute with other shapes."""

        def work(strategy):
            option = options(partial_batch=("pad", "zero_rows")[strategy.worker_index])
            with pytest.raises(tdi.MismatchError, match="partial_batch"):
                iter(strategy.distribute_dataset(range(4), global_batch_size=2, options=option))

        simulate(work, num_workers=2)


def batches(context):
    """A dataset_fn that must not be called."""
    raise AssertionError


class Counter:
    """A backend of torch.compile that runs graphs as they are."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, inputs):
        """Count a compilation."""
        self.num_graphs += 1
        return graph.forward


@pytest.mark.slow
@pytest.mark.parametrize(("partial_batch", "num_graphs"), [("pad", 1), ("zero_rows", 3)])
def test_a_step_is_compiled_once(partial_batch, num_graphs):
    """With full, partial and empty batches in an epoch; without padding there are more graphs."""
    torch.compiler.reset()
    strategy = one(3)
    images = torch.rand(31, 3, 4, 5).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 2, (31,))
    layers = torch.nn.Conv2d(3, 2, 2), torch.nn.Flatten(), torch.nn.Linear(24, 2)
    model = torch.nn.Sequential(*layers)
    counter = Counter()

    @torch.compile(backend=counter, dynamic=False)
    def losses(x, y):
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    def step(batch):
        x, y = batch[0] if partial_batch == "pad" else batch
        loss = tdi.compute_average_loss(losses(x, y))
        loss.backward()
        return loss.detach()

    dataset = strategy.distribute_dataset(
        (images, labels), global_batch_size=9, options=options(partial_batch=partial_batch)
    )
    for _ in range(2):
        iterator = iter(dataset)
        for batch in iterator:
            strategy.run(step, (batch,))
        assert (2, 2, 0) == iterator.last_step.local_counts
    assert num_graphs == counter.num_graphs
    torch.compiler.reset()
