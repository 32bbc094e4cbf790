"""Memory that is used again: never while anybody refers to it, whatever the form."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from torch_distinput.data.batch.buffer_pool import LARGE, Buffers

SHAPE = (LARGE // 8, 2)

# What a user may keep of a batch; all but the copies share its memory.
SHARING = {
    "itself": lambda x: x,
    "a list": lambda x: [x],
    "a slice": lambda x: x[1:3],
    "a row": lambda x: x[1],
    "every second row": lambda x: x[::2],
    "transposed": lambda x: x.T,
    "detached": lambda x: x.detach(),
    "a parameter": torch.nn.Parameter,
    "another dtype": lambda x: x.view(torch.int32),
    "a storage": lambda x: x.untyped_storage(),
    "an array": lambda x: x.numpy(),
    "a part of an array": lambda x: x.numpy()[1:2],
    "a memoryview": lambda x: memoryview(x.numpy()),
    "a tensor of an array": lambda x: torch.from_numpy(x.numpy()),
    "dlpack": torch.utils.dlpack.from_dlpack,
    "a shallow copy": copy.copy,
    "saved for backward": lambda x: (x * torch.ones(1, requires_grad=True)).sum(),
    "a closure": lambda x: lambda: x,
}
COPIES = {
    "pickled": pickle.dumps,
    "a clone": lambda x: x.clone(),
    "a deep copy": copy.deepcopy,
    "numbers": lambda x: x.tolist(),
}


def test_what_nobody_refers_to_is_used_again():
    """Without a single new allocation."""
    buffers, made = counting()
    places = {buffers.empty(SHAPE, torch.float32).data_ptr() for _ in range(100)}
    assert (1, 1) == (len(places), len(made))


@pytest.mark.parametrize("form", SHARING)
def test_what_is_kept_is_not(form):
    """In every form in which a user can keep a batch; once it is dropped, it is."""
    buffers, place, kept = given_out_as(SHARING[form])
    others = {buffers.empty(SHAPE, torch.float32).fill_(2).data_ptr() for _ in range(10)}
    assert place not in others
    assert 1 == len(others)
    del kept
    gc.collect()
    assert place == buffers.empty(SHAPE, torch.float32).data_ptr()


@pytest.mark.parametrize("form", COPIES)
def test_a_copy_keeps_nothing(form):
    """The memory is free at once."""
    buffers, place, kept = given_out_as(COPIES[form])
    assert place == buffers.empty(SHAPE, torch.float32).data_ptr()
    del kept


def test_it_does_not_grow():
    """Who keeps all batches gets fresh memory, and it is his alone: few arrays are held here."""
    buffers, made = counting()
    kept = [buffers.empty(SHAPE, torch.float32).fill_(number) for number in range(50)]
    assert 50 == len(made)
    assert all(batch.eq(number).all() for number, batch in enumerate(kept))
    assert len(buffers._arrays) <= 4


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), keep=st.integers(0, 6))
def test_batches_of_any_size(sizes, keep):
    """Whatever comes and however many are kept, nobody's numbers change."""
    buffers, _ = counting()
    kept = []
    for number, size in enumerate(sizes):
        kept = [*kept, (number, buffers.empty((size, 3), torch.int16).fill_(number))][-1 - keep :]
        for expected, batch in kept:
            assert batch.eq(expected).all()
        assert (size, 3) == kept[-1][1].shape


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.uint16]
)
def test_dtypes_that_numpy_lacks(dtype):
    """The memory is bytes."""
    buffers, _ = counting()
    tensor = buffers.empty((4, 5), dtype)
    assert (dtype, (4, 5)) == (tensor.dtype, tensor.shape)


def test_several_threads():
    """None gets what another has just got."""
    buffers, _ = counting()
    wrong = []

    def work(number):
        for _ in range(300):
            tensor = buffers.empty((64,), torch.int64).fill_(number)
            if not tensor.eq(number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong


def test_it_travels_empty():
    """To a loader process that is spawned."""
    buffers, _ = counting()
    buffers._allocate = torch.empty  # a function that can be pickled
    buffers.empty((3,), torch.float32)
    assert [] == pickle.loads(pickle.dumps(buffers))._arrays


def given_out_as(form):
    """Buffers that gave out a tensor, where it lies, and the form in which alone it is kept."""
    buffers, _ = counting()
    tensor = buffers.empty(SHAPE, torch.float32).fill_(1)
    return buffers, tensor.data_ptr(), form(tensor)


def counting():
    """Buffers, and what they allocate."""
    made = []

    def allocate(num_bytes):
        made.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    return Buffers(allocate), made


@pytest.mark.parametrize("form", SHARING)
def test_batches_that_are_kept_in_an_epoch(form):
    """Steps gather large columns into memory that is used again, but not while it is kept."""
    rows = torch.arange(60 * 8192, dtype=torch.float32).reshape(60, 8192)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset((rows,), global_batch_size=4)
    kept, places = {}, []
    for number, (batch,) in enumerate(dataset):
        assert torch.equal(rows[4 * number : 4 * number + 4], batch)
        places.append(batch.data_ptr())
        if number == 5:
            kept = {batch.data_ptr(): SHARING[form](batch)}
        elif number > 6:  # 6 was gathered elsewhere too, because 5 was still in use
            assert batch.data_ptr() not in kept
        del batch
    assert len(set(places)) < 5
