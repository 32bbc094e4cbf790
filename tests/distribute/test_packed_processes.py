"""Packed rows in loader processes that are spawned: what they are told grows with no document."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
import torch.multiprocessing as mp

import torch_distinput as tdi
from tests.distribute.packings import dicts, documents, jagged, rows_of
from tests.distribute.street import one
from torch_distinput.data.sources.sequences.packed_fetch import PackedFetch

LENGTHS = [5, 3, 9, 1, 6, 8, 4, 2, 7]


class WithoutTensors(pickle.Pickler):
    """Leaves out what processes share the memory of."""

    def persistent_id(self, value):
        return "tensor" if isinstance(value, torch.Tensor) else None


def open_fetch(packing):
    """The fetch of a packed source, as a loader process gets it."""
    dataset = one().distribute_dataset(packing, global_batch_size=4)
    source = dataset._input._source
    assert isinstance(source.fetch, PackedFetch)
    return source.fetch


def pickled_bytes(count):
    packing = tdi.pack(jagged(documents([2] * count)), length=8)
    file = io.BytesIO()
    WithoutTensors(file).dump(open_fetch(packing))
    return len(file.getvalue())


def test_the_plan_travels_as_tensors():
    """Whose memory torch shares with processes: the rest does not grow."""
    assert pickled_bytes(10) == pickled_bytes(1000)


@pytest.mark.parametrize(
    "packing",
    [
        tdi.pack(dicts(documents(LENGTHS)), length=8),
        tdi.pack(
            tdi.mix(
                {"a": jagged(documents(LENGTHS)), "b": jagged(documents(LENGTHS))}, weights=(1, 2)
            ),
            length=8,
        ),
    ],
)
def test_a_fetch_is_the_same_in_another_process(packing):
    """Of a source, and of a mixture, which has an order."""
    fetch = open_fetch(packing)
    indices = torch.arange(fetch.plan.num_rows).numpy()
    again = pickle.loads(pickle.dumps(fetch))
    assert rows_of(fetch(indices)) == rows_of(again(indices))


@pytest.mark.long
def test_rows_of_processes_that_are_spawned():
    """As those that are made here."""
    packing = tdi.pack(jagged(documents(LENGTHS)), length=8)
    before = mp.get_start_method()
    mp.set_start_method("spawn", force=True)
    try:
        here, there = (
            [
                rows_of(batch)
                for batch in one().distribute_dataset(
                    packing, global_batch_size=2, shuffle=True, num_workers=count
                )
            ]
            for count in (0, 2)
        )
    finally:
        mp.set_start_method(before, force=True)
    assert here == there
