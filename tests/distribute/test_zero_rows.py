"""Zero-row batches are foreseen where lengths are known, and told from others."""

from __future__ import annotations

import logging

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.street import one, options, stream_of
from torch_distinput.testing import simulate


def said(caplog, source, workers, replicas=1, **keywords):
    """What is logged about zero rows at the starts of two epochs, and how many there are in one."""

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=4, **keywords)
        list(dataset)
        with iter(dataset) as steps:
            empty = [steps.last_step.is_empty for _ in steps]
            return steps.stats().zero_row_batches, sum(empty)

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = simulate(work, num_workers=workers, replicas_per_worker=replicas)
    words = [record.getMessage() for record in caplog.records if "zero rows" in record.getMessage()]
    return words, sum(rows for rows, _ in found), sum(empty for _, empty in found)


def test_the_plan_says_how_many_will_come(caplog):
    """Once, on one worker, before the first epoch; the number is right."""
    (words,), num_batches, _ = said(caplog, torch.arange(9), 3, 2)
    assert "in 3 of the 3 steps of epoch 0" in words
    assert f"zero rows ({num_batches} of them)" in words
    assert 2 + 2 + 5 == num_batches


def test_counted_files_say_it_too(tmp_path, caplog):
    """A worker with shorter files waits through many steps."""
    pattern = write_numbers(tmp_path, [range(20), range(3)])
    files = tdi.FileDataset(pattern, reader=Numbers(counted=True))
    (words,), num_batches, _ = said(caplog, files, 2)
    assert f"zero rows ({num_batches} of them)" in words
    assert num_batches > 5


@pytest.mark.parametrize(
    ("source", "keywords"),
    [
        (torch.arange(8), {}),
        (torch.arange(9), {"drop_last": True}),
        (torch.arange(9), {"options": options(partial_batch="pad")}),
        (stream_of(range(9)), {}),
    ],
    ids=["none will come", "dropped", "padded", "not known"],
)
def test_nothing_is_said(caplog, source, keywords):
    """Where none will come, they do not matter, or nobody knows."""
    assert [] == said(caplog, source, 2, **keywords)[0]


def test_a_step_tells_whether_it_is_empty(caplog):
    """All local replicas together; padding is no example."""
    assert (1, 1) == said(caplog, torch.arange(9), 2)[1:]
    assert (3, 1) == said(caplog, torch.arange(9), 2, 2)[1:]
    padded = {"options": options(partial_batch="pad")}
    assert (1, 1) == said(caplog, torch.arange(9), 2, **padded)[1:]


class TestZeroRows:
    """A replica without data gets a batch of the right kind."""

    def test_after_real_batches_they_have_their_sizes(self):
        """Trailing sizes of the last real batch on this worker, and storage of their own."""

        def work(strategy):
            source = stream_of([(torch.ones(2, 3, dtype=torch.float16), ["a", "b"])])
            iterator = iter(
                strategy.distribute_dataset(source, options=options(auto_shard_policy="data"))
            )
            return [strategy.local_results(step) for step in iterator]

        workers = simulate(work, num_workers=3)
        ((tensor, names),) = workers[2][0]
        assert (0, 3) == tuple(tensor.shape)
        assert torch.float16 is tensor.dtype
        assert [] == names
        assert 0 == tensor.untyped_storage().nbytes()

    def test_each_is_new(self):
        """Whoever makes one larger in place changes no other."""
        source = [(torch.ones(2), "a"), (torch.ones(2), "b"), (torch.ones(2), "c")]
        rows, names = zip(*one(2).distribute_dataset(source, global_batch_size=1), strict=True)
        rows[0][1].resize_(4, 2).fill_(7)
        names[0][1].append("more")
        assert [0, 0] == [len(own) for _, own in rows[1:]]
        assert [[], []] == [own for _, own in names[1:]]
        assert {0} == {own.untyped_storage().nbytes() for _, own in rows[1:]}

    def test_jagged(self):
        """Jagged tensors are cut by rows, down to none."""
        rows = [torch.ones(2, 3), torch.ones(1, 3), torch.ones(4, 3)]

        def collate(examples):
            return torch.nested.nested_tensor(list(examples), layout=torch.jagged)

        dataset = one(4).distribute_dataset(rows, global_batch_size=3, collate_fn=collate)
        (step,) = dataset
        assert [1, 1, 1, 0] == [part.shape[0] for part in step]
        assert [2, 1, 4] == [part.values().shape[0] for part in step[:3]]
        assert (0, 3) == tuple(step[3].values().shape)
        assert torch.nn.Linear(3, 2)(step[3]).shape[0] == 0

    def test_losses_of_jagged_batches(self):
        """By token, with weights made of the batch; three rows for four workers."""

        def collate(rows):
            return torch.nested.nested_tensor(rows, layout=torch.jagged)

        def work(strategy):
            rows = [torch.arange(size) for size in (3, 1, 4)]
            dataset = strategy.distribute_dataset(rows, global_batch_size=4, collate_fn=collate)
            (step,) = dataset.steps()
            ((same,),) = tdi.accumulate(dataset.steps(), 1, weights=lambda batch: batch > 0)
            loss = step.average(step.batch * 1.0, weights=step.batch > 0)
            return loss.item(), same.average(same.batch * 1.0, per="token").item()

        for losses in zip(*simulate(work, num_workers=4), strict=True):
            assert (1 + 2 + 1 + 2 + 3) / 5 == pytest.approx(sum(losses))


def test_a_dtype_that_cannot_be_filled():
    """Zero rows need no value."""

    def batches():
        for count in (1, 3):
            yield torch.zeros(count, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    def work(strategy):
        dataset = strategy.distribute_dataset(batches)
        return [len(batch) for batch in dataset]

    assert [[1, 2], [0, 1]] == simulate(work, num_workers=2)
