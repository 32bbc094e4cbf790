"""Values on a GPU that this machine need not have: torch's fake tensors check devices alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_distinput as tdi
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.leaf_kinds import kind_of
from torch_distinput.data.sources.indexed import _Column
from torch_distinput.distribute.replicas.worker_part import WorkerPart
from torch_distinput.testing import simulate

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("width", [2, 100_000])  # batches of 64 KiB and more have buffers
def test_columns(width):
    """Their rows are chosen by indices in host memory."""
    with FakeTensorMode():
        leaf, wanted = torch.empty(8, width, device=CUDA), torch.zeros(3, dtype=torch.int64)
        taken = _Column.of(leaf, torch.empty).take(wanted, 3)
        assert (CUDA, (3, width)) == (taken.device, tuple(taken.shape))


def test_rows():
    with FakeTensorMode(allow_non_fake_inputs=True):
        taken = rows.take_rows({"x": torch.empty(8, 2, device=CUDA)}, np.array([1, 2]))
        assert (CUDA, (2, 2)) == (taken["x"].device, tuple(taken["x"].shape))


@pytest.mark.parametrize("leaf", ["cpu", "cuda:0"])
@pytest.mark.parametrize("order", ["cpu", "cuda:0"])
def test_rows_in_order(leaf, order):
    """Ids are in host memory; who made an index of a column has it on the device."""
    with FakeTensorMode():
        order = torch.zeros(4, dtype=torch.int64, device=order)
        values = torch.empty(4, 2, device=leaf)
        assert torch.device(leaf) == kind_of(values).take(values, order).device


def test_weights_are_added_up_on_the_host():
    """Whatever the default device is: those of replicas on several devices meet there."""
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    dataset = strategy.distribute_dataset(torch.arange(4.0), global_batch_size=4)

    def loss_of(step, batch):
        return step.average(batch, weights=batch.new_ones(len(batch)))

    for step in dataset.steps():
        with torch.device("meta"):
            losses = strategy.run(loss_of, args=(step, step.batch))
        assert [0.25, 1.25] == [loss.item() for loss in losses]


class TestSomeOnTheHost:
    """A group may have one backend for the host and another for GPUs: they would never meet."""

    @pytest.mark.parametrize(
        ("value_on", "result_on"), [("cpu", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]
    )
    def test_a_part_goes_over_the_host(self, value_on, result_on):
        """And what was in host memory gets the result where the others have theirs."""
        with FakeTensorMode():
            part = WorkerPart(facts=(), value=torch.empty(2, device=value_on))
            sent = part.over_host(CUDA)
            assert "cpu" == sent.value.device.type
            assert torch.device(result_on) == sent.deliver(sent.value).device
            assert torch.device(value_on) == part.deliver(part.value).device

    def test_where_a_part_is(self):
        """Lists are nowhere."""
        packed = tdi.PackedStrings.from_list(["a"])
        found = [WorkerPart(facts=(), value=own).find_device() for own in (packed, ["a"])]
        assert [torch.device("cpu"), None] == found

    @pytest.mark.parametrize("call", ["reduce", "gather", "gather in order"])
    @pytest.mark.parametrize("kinds", [["cpu", "cpu"], ["cuda", "cuda"], ["cpu", "cuda"]])
    def test_all_parts_do(self, monkeypatch, call, kinds):
        """Also those of the workers whose value is on the device."""
        sent, delivered = [], []

        def find_device(part):
            """What the worker pretends whose number is in the value."""
            return torch.device(kinds[bool(part.value.flatten()[0])])

        def over_host(part, own):
            sent.append(own)
            return part

        def deliver(part, value):
            delivered.append(value)
            return value

        def work(strategy):
            own = torch.full((2,), float(strategy._session.rank))
            if call == "reduce":
                return strategy.reduce("sum", own[0])
            if call == "gather":
                return strategy.gather(own, axis=0)
            numbers = torch.arange(2) + 2 * strategy._session.rank
            return strategy.gather_in_order(numbers, own)

        monkeypatch.setattr(WorkerPart, "find_device", find_device)
        monkeypatch.setattr(WorkerPart, "over_host", over_host)
        monkeypatch.setattr(WorkerPart, "deliver", deliver)
        expected = torch.tensor(1.0) if call == "reduce" else torch.tensor([0.0, 0.0, 1.0, 1.0])
        for found in simulate(work, num_workers=2):
            assert torch.equal(expected, found)
        num_leaves = 2 if call == "gather in order" else 1
        assert len(sent) == (2 * num_leaves if kinds[0] != kinds[1] else 0)
        assert len(delivered) == 2 * num_leaves  # what came over the host goes back
