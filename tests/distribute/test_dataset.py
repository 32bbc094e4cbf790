"""DistributedDataset and DistributedIterator: epochs, lengths, specs, steps, the loss."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one, options, stream_of
from torch_distinput.testing import simulate


def batches(dataset):
    """The steps of one epoch."""
    return [step.tolist() for step in dataset]


class TestEpochs:
    """Each iter() is the next epoch, from its beginning."""

    def test_orders_differ_by_epoch_and_can_be_chosen(self):
        """0, 1, 2, ... or set_epoch; also after a break."""
        dataset = one().distribute_dataset(range(20), global_batch_size=20, shuffle=True, seed=3)
        first, second = batches(dataset), batches(dataset)
        assert first != second
        assert 2 == dataset.epoch
        dataset.set_epoch(0)
        for _ in dataset:
            break
        assert second == batches(dataset)

    @pytest.mark.parametrize("seed", [3, 2**63])
    def test_integers_of_numpy_are_integers(self, seed):
        """Seeds and sizes: the same order, and no difference between the workers."""

        def work(strategy):
            kind = np.uint64 if strategy.worker_index else int
            dataset = strategy.distribute_dataset(
                range(20), global_batch_size=kind(4), shuffle=True, seed=kind(seed),
                num_workers=kind(0), options=options(per_replica_buffer_size=kind(1)),
            )  # fmt: skip
            return [x for step in dataset for x in step.tolist()]

        first, second = simulate(work, num_workers=2)
        assert list(range(20)) == sorted(first + second)

    def test_a_new_iterator_closes_the_one_before(self):
        """Whoever needs two distributes twice."""
        dataset = one().distribute_dataset(range(8), global_batch_size=2)
        earlier = iter(dataset)
        next(earlier)
        iter(dataset)
        with pytest.raises(tdi.UsageError, match="newer iter"):
            next(earlier)

    def test_after_the_end(self):
        """StopIteration again and again; an empty optional."""
        iterator = iter(one().distribute_dataset(range(2), global_batch_size=2))
        assert [0, 1] == iterator.get_next().tolist()
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)
        optional = iterator.get_next_as_optional()
        assert not optional.has_value()
        with pytest.raises(tdi.UsageError, match="has_value"):
            optional.get_value()

    def test_optional(self):
        """A step, and whether there is one."""
        iterator = iter(one().distribute_dataset(range(2), global_batch_size=2))
        optional = iterator.get_next_as_optional()
        assert optional.has_value()
        assert [0, 1] == optional.get_value().tolist()

    def test_context_manager(self):
        """Closed when left."""
        with iter(one().distribute_dataset(range(8), global_batch_size=2)) as iterator:
            next(iterator)
        with pytest.raises(tdi.UsageError, match="closed"):
            next(iterator)


class TestLength:
    """Known where the number of examples is."""

    @pytest.mark.slow
    @pytest.mark.parametrize("policy", ["data", "off"])
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_is_the_number_of_steps(self, policy, drop_last):
        """For every small source, on every small cluster."""
        for count in range(12):
            for cluster in ((1, 1), (2, 1), (2, 3)):

                def work(strategy, count=count):
                    dataset = strategy.distribute_dataset(
                        range(count),
                        global_batch_size=3,
                        drop_last=drop_last,
                        options=options(auto_shard_policy=policy),
                    )
                    return len(dataset), len(list(dataset))

                for length, steps in simulate(
                    work, num_workers=cluster[0], replicas_per_worker=cluster[1]
                ):
                    assert length == steps

    def test_unknown(self):
        """The error says why."""
        dataset = one().distribute_dataset(stream_of(range(3)), global_batch_size=2)
        with pytest.raises(TypeError, match="no length before it is read"):
            len(dataset)


class TestElementSpec:
    """The structure of a batch with dtypes and sizes."""

    @pytest.mark.parametrize("kind", ["index", "stream"])
    def test_structure(self, kind):
        """The same for any number of replicas and workers."""
        examples = [{"x": torch.ones(3), "name": "a", "y": (k, 1.5)} for k in range(5)]
        source = examples if kind == "index" else stream_of(examples)
        expected = {
            "x": tdi.TensorSpec((None, 3), torch.float32),
            "name": tdi.TensorSpec((None,), str),
            "y": (
                tdi.TensorSpec((None,), torch.int64),
                tdi.TensorSpec((None,), torch.float64),
            ),
        }

        def work(strategy):
            dataset = strategy.distribute_dataset(source, global_batch_size=2)
            spec = dataset.element_spec
            iterator = iter(dataset)
            return spec, iterator.element_spec, len(list(iterator)), dataset.epoch

        for cluster in ((1, 1), (2, 2), (3, 1)):
            for result in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
                assert (expected, expected, 3, 1) == result

    def test_sizes_that_vary_are_none(self):
        """Noted as the batches come."""
        source = stream_of([torch.ones(2, 3), torch.ones(2, 5)])
        iterator = iter(one().distribute_dataset(source))
        assert tdi.TensorSpec((None, 3), torch.float32) == iterator.element_spec
        list(iterator)
        assert tdi.TensorSpec((None, None), torch.float32) == iterator.element_spec

    def test_of_nothing(self):
        """A source without examples has no structure."""
        for source in ([], stream_of([])):
            dataset = one().distribute_dataset(source, global_batch_size=2)
            with pytest.raises(tdi.SourceError, match="got none from any worker"):
                _ = dataset.element_spec


class TestLastStep:
    """Facts about the step delivered last."""

    def test_of_an_index(self):
        """Counts in sync, counts here, and which examples."""

        def work(strategy):
            iterator = iter(strategy.distribute_dataset(range(7), global_batch_size=4))
            with pytest.raises(tdi.UsageError, match="Call next"):
                _ = iterator.last_step
            return [iterator.last_step for _ in iterator]

        first, second = simulate(work, num_workers=2, replicas_per_worker=2)
        assert [4, 3] == [step.num_examples for step in first]
        assert [0, 1] == [step.index for step in first]
        assert [(1, 1), (1, 1)] == [step.local_counts for step in first]
        assert [(1, 1), (1, 0)] == [step.local_counts for step in second]
        assert [[2], [3]] == [ids.tolist() for ids in second[0].ids]
        assert [[6], []] == [ids.tolist() for ids in second[1].ids]

    def test_of_files(self, tmp_path):
        """File number and record number, also under shuffles."""
        (tmp_path / "a").write_text("x\ny\n")
        (tmp_path / "b").write_text("z\n")
        files = tdi.FileDataset([tmp_path / "a", tmp_path / "b"]).shuffle(3)
        lines = {(0, 0): "x", (0, 1): "y", (1, 0): "z"}
        iterator = iter(one().distribute_dataset(files, global_batch_size=2))
        seen = {}
        for batch in iterator:
            ids = map(tuple, iterator.last_step.ids.tolist())
            seen.update(zip(ids, batch, strict=True))
        assert lines == seen

    def test_stats(self):
        """Counters of this worker."""
        iterator = iter(one(3).distribute_dataset(range(5), global_batch_size=4))
        list(iterator)
        stats = iterator.stats()
        assert (2, 5, 3) == (stats.steps, stats.examples, stats.zero_row_batches)
        assert stats.wait_seconds > 0


@pytest.mark.parametrize("cluster", [(1, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("num_processes", [0, 1])
def test_jagged_batches_have_one_width(cluster, num_processes):
    """That of the global batch, on any number of replicas."""
    rows = [torch.ones(length) for length in (3, 1, 5, 2)]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged)

    def work(strategy):
        dataset = strategy.distribute_dataset(lambda: iter([batch]), num_workers=num_processes)
        (step,) = dataset
        return [
            torch.nested.to_padded_tensor(piece, 0.0).shape[1]
            for piece in strategy.local_results(step)
        ]

    found = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    assert [[5] * cluster[1]] * cluster[0] == found


def test_batches_without_rows_are_each_their_own():
    """Changed in place and saved for backward, as those with rows are."""
    weight, losses = torch.ones(1, requires_grad=True), []
    for batch in one(2).distribute_dataset(torch.ones(3, 2, 5), global_batch_size=1):
        empty = batch.values[1].sub_(1).transpose_(1, 2)
        assert (0, 5, 2) == empty.shape
        losses.append((empty * weight).sum())
    sum(losses).backward()


def test_batches_of_one_dataset_do_not_alias_the_source():
    """Writing into a batch leaves the user's data alone."""
    data = torch.zeros(4)
    for batch in one().distribute_dataset(data, global_batch_size=2):
        batch.add_(1)
    assert [0, 0, 0, 0] == data.tolist()


def test_dropped_examples_are_logged(caplog):
    """Nothing is left out silently."""
    for source in (range(5), stream_of(range(5))):
        with caplog.at_level(logging.INFO, "torch_distinput"):
            list(one().distribute_dataset(source, global_batch_size=4, drop_last=True))
        assert "leaves out 1 examples at the end" in caplog.text
        caplog.clear()


def test_fetch_to_device_false_leaves_batches_on_the_host():
    """On the meta device nothing would have values."""
    strategy = tdi.OneDeviceStrategy("cpu")
    kept = strategy.distribute_dataset(
        np.arange(3), global_batch_size=3, options=options(fetch_to_device=False)
    )
    assert "cpu" == next(iter(kept)).device.type


def test_a_rank_that_leaves_alone_is_noticed_by_the_next_epoch():
    """Where lengths are known nobody waits for it: it is told when they meet again."""

    def work(strategy):
        dataset = strategy.distribute_dataset(range(20), global_batch_size=4)
        iterator = iter(dataset)
        for _ in range(2 if strategy.worker_index else 4):
            next(iterator)
        words = "same step at which the epoch before was left .*4 on worker 0 and 2 on worker 1"
        with pytest.raises(tdi.MismatchError, match=words):
            iter(dataset)

    simulate(work, num_workers=2)


def test_what_closed_an_iterator_is_said():
    """And what to do about it."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(range(8), global_batch_size=4)
    for close, words in (
        (lambda iterator: iterator.close(), "closed by close... Call iter"),
        (lambda _: iter(dataset).close(), "by a newer iter.. of its dataset. Distribute"),
        (lambda _: dataset.load_state_dict(dataset.state_dict()), "by load_state_dict... Call"),
    ):
        iterator = iter(dataset)
        close(iterator)
        with pytest.raises(tdi.UsageError, match=words):
            next(iterator)
