"""Results of loader processes in shared memory that is used again: what goes, when it is free."""

from __future__ import annotations

import collections
import logging
import os
import pickle
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_buffers import SHARING
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.loader import process_datasets, shared_memory
from torch_distinput.data.loader.shared_memory import FREE, OPENED, SENT, Receiver, Sender


class Pair(NamedTuple):
    """A container of the user's."""

    x: object
    y: object


def states(sender):
    """Whose the slots are."""
    return [int(slot[0]) for slot in sender._slots.values()]


def sent(value):
    """What arrives."""
    return Receiver().open(Sender(0).pack(value))


JAGGED = torch.nested.nested_tensor_from_jagged(torch.arange(4.0), torch.tensor([0, 1, 4]))
TENSORS = {
    "plain": torch.arange(12.0).reshape(3, 4),
    "bytes": torch.arange(3, dtype=torch.uint8),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "unsigned": torch.ones(3, dtype=torch.uint16),
    "complex": torch.ones(3, dtype=torch.complex64) * 1j,
    "conjugate": (torch.ones(3, dtype=torch.complex64) * 1j).conj(),
    "bare": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "of one row": torch.arange(3.0).reshape(1, 3)[:, 1],
    "a part": torch.arange(12.0)[3:5],
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "expanded": torch.ones(1, 4).expand(3, 4),
    "channels last": torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
}
ARRAYS = {
    "plain": np.arange(12.0).reshape(3, 4),
    "Fortran's order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "big-endian": np.arange(3, dtype=">i4"),
    "read-only": np.frombuffer(b"abcd", dtype=np.uint8),
    "strings": np.array(["a", "bc"]),
    "objects": np.array([{"a": 1}, None], dtype=object),
    "records": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "every second": np.arange(10)[::2],
    "empty": np.empty((0, 3)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive(name):
    """Values, dtype, shape and memory format."""
    tensor = TENSORS[name]
    arrived, others = sent((tensor, ["text", None, 3]))
    assert ["text", None, 3] == others
    assert (tensor.dtype, tensor.shape, tensor.layout) == (
        arrived.dtype, arrived.shape, arrived.layout
    )  # fmt: skip
    assert torch.equal(tensor.to(torch.complex64), arrived.to(torch.complex64))
    if name == "channels last":
        assert arrived.is_contiguous(memory_format=torch.channels_last)


def test_jagged_tensors_arrive():
    """Torch's own way, beside others in the slot."""
    arrived, plain = sent((JAGGED, torch.ones(2)))
    assert JAGGED.values().tolist() == arrived.values().tolist()
    assert JAGGED.offsets().tolist() == arrived.offsets().tolist()
    assert [1.0, 1.0] == plain.tolist()


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive(name):
    """Also those without a buffer of plain numbers."""
    array = ARRAYS[name]
    arrived = sent({"array": array})["array"]
    assert (array.dtype, array.shape) == (arrived.dtype, arrived.shape)
    assert array.tolist() == arrived.tolist()


def test_containers_arrive():
    """As they were."""
    value = Pair(collections.OrderedDict(a=torch.ones(2)), [np.ones(2), "x"])
    arrived = sent(value)
    assert isinstance(arrived, Pair)
    assert isinstance(arrived.x, collections.OrderedDict)


def test_what_arrives_may_be_written_to():
    """It is the user's."""
    x, y = sent((torch.zeros(3), np.zeros(3)))
    x += 1
    y += 1
    assert [1.0] * 3 == x.tolist() == y.tolist()


@pytest.mark.parametrize("form", SHARING)
def test_a_slot_is_free_when_nothing_refers_to_it(form):
    """In every form in which a user can keep a batch, and no sooner."""
    sender, receiver = Sender(0), Receiver()
    parcel = sender.pack((torch.ones(4, 2), torch.zeros(8)))
    assert [SENT] == states(sender)
    first, second = receiver.open(parcel)
    assert [OPENED] == states(sender)
    del second
    kept = SHARING[form](first)
    del first
    assert [OPENED] == states(sender)
    del kept
    assert [FREE] == states(sender)


def test_slots_are_used_again_and_memory_travels_once():
    """However many results there are."""
    sender, receiver = Sender(3), Receiver()
    parcels = []
    for number in range(20):
        parcels.append(sender.pack(torch.full((5,), number)))
        assert [number] * 5 == receiver.open(parcels[-1]).tolist()
    assert 1 == len(sender._slots)
    assert 1 == sum(memory is not None for *_, memory in parcels)
    larger = sender.pack(torch.ones(500))
    assert larger[-1] is not None
    assert 500 == receiver.open(larger).sum()
    assert 1 == len(sender._slots)


def test_who_keeps_all_gets_all():
    """When the slots are taken, results travel torch's way; nothing is written over."""
    sender, receiver = Sender(0), Receiver()
    kept = [receiver.open(sender.pack(torch.full((5,), number))) for number in range(30)]
    assert [[number] * 5 for number in range(30)] == [tensor.tolist() for tensor in kept]
    assert shared_memory._MOST_SLOTS == len(sender._slots)


def test_what_nobody_will_open_is_free_again():
    """A new run of persistent loader processes has begun: what was under way is lost."""
    sender, receiver = Sender(0), Receiver()
    kept = receiver.open(sender.pack(torch.ones(1)))
    sender.pack(torch.ones(1))
    assert [OPENED, SENT] == states(sender)
    sender.forget_unopened()
    assert [OPENED] == states(sender)
    assert [2.0] == receiver.open(sender.pack(torch.full((1,), 2))).tolist()
    assert [1.0] == kept.tolist()


def test_a_parcel_is_small():
    """What goes through the pipe does not grow with the batch."""
    sender, receiver = Sender(0), Receiver()
    receiver.open(sender.pack((torch.ones(100_000), torch.ones(3))))
    parcel = sender.pack((torch.ones(100_000), torch.ones(3)))
    assert len(pickle.dumps(parcel)) < 400


def numbers(size):
    """A result, in a loader process."""
    return torch.full((size,), size)


def test_results_that_grow_use_the_memory_of_the_last():
    """Both ends drop a slot that has become too small."""
    sender, receiver = Sender(3), Receiver()
    for size in range(1, 200):
        assert torch.equal(numbers(size), receiver.open(sender.pack(numbers(size))))
    assert 1 == len(sender._slots) == len(receiver._slots)


RESULTS = st.lists(
    st.tuples(st.integers(1, 40), st.booleans(), st.sampled_from([torch.int64, torch.int32]))
)


@given(results=RESULTS, num_kept=st.integers(0, 3), most_layouts=st.sampled_from([0, 1, 64]))
def test_results_of_all_sizes_and_kinds_in_any_order(results, num_kept, most_layouts):
    """Plain and pickled ones, in slots that are replaced by larger ones; some are kept for long."""
    sender, receiver = Sender(0), Receiver()
    kept = collections.deque(maxlen=num_kept)
    with patch.object(shared_memory, "_MOST_LAYOUTS", most_layouts):
        for number, (size, is_plain, dtype) in enumerate(results):
            content = torch.full((size,), number, dtype=dtype)
            result = (content,) if is_plain else (content, "text")
            opened, *_ = receiver.open(sender.pack(result))
            for arrived, expected in [*kept, (opened, content)]:
                assert expected.dtype == arrived.dtype
                assert torch.equal(expected, arrived)
            kept.append((opened, content))
            del opened, arrived


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    """Also those of the older layout, which cannot be viewed as bytes."""
    parts = [torch.ones(2), torch.zeros(3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.strided)
    opened = Receiver().open(Sender(0).pack(nested))
    assert all(map(torch.equal, parts, opened.unbind()))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_keeps_what_it_has():
    """Its memory is that of the slot, whoever drops the result here, or there."""
    sender, receiver = Sender(0), Receiver()
    result = receiver.open(sender.pack(numbers(5)))
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        os.read(asked, 1)
        os._exit(0 if torch.equal(numbers(5), result) else 1)
    del result
    for size in range(1, 5):
        receiver.open(sender.pack(numbers(size)))
    os.write(ask, b" ")
    assert 0 == os.waitpid(child, 0)[1]
    assert 1 == len(sender._slots) == len(receiver._slots)


@pytest.mark.parametrize("other", [torch.t, lambda x: x[:, 1:], lambda x: x[:1].requires_grad_()])
def test_tensors_that_share_memory(other):
    """Torch moves the memory of what it shares itself: nothing is read where it was before."""
    sender, receiver = Sender(0), Receiver()
    for number in range(20):
        whole = torch.full((30, 70), number)
        pair = [whole.double(), whole.double()]
        result = [*pair, *map(other, (tensor.detach() for tensor in pair))]
        expected = [tensor.detach().clone() for tensor in result]
        assert all(map(torch.equal, expected, receiver.open(sender.pack(result))))


def no_memory(_):
    """What torch says."""
    raise RuntimeError("unable to allocate shared memory(shm) for file </x>: No space left")


def test_without_shared_memory(monkeypatch, caplog):
    """Results come by value, may be written to, and that is said once."""
    shared_memory._warn_of_full_memory.cache_clear()
    monkeypatch.setattr(torch.Tensor, "share_memory_", no_memory)
    sender, receiver = Sender(0), Receiver()
    for name in ("plain", "bytes", "half", "unsigned", "complex", "empty"):
        got = receiver.open(pickle.loads(pickle.dumps(sender.pack((name, TENSORS[name])))))
        assert name == got[0]
        assert torch.equal(TENSORS[name], got[1])
        got[1].zero_()
    array = receiver.open(sender.pack(ARRAYS["plain"]))
    assert ARRAYS["plain"].tolist() == array.tolist()
    assert 1 == len([r for r in caplog.records if r.levelno == logging.WARNING])
    assert not sender._slots


def test_tasks_without_shared_memory(monkeypatch):
    """Examples of a stream are sent on to the processes that finish them."""
    examples = [torch.ones(3), {"a": torch.zeros(2, dtype=torch.int8)}, "text"]
    monkeypatch.setattr("multiprocessing.reduction.ForkingPickler.dumps", no_memory)
    run, (ones, zeros, text) = pickle.loads(process_datasets.dump_message(7, examples))
    assert (7, "text") == (run, text)
    assert torch.equal(examples[0], ones)
    assert torch.equal(examples[1]["a"], zeros["a"])


def test_torch_leaves_no_file_where_there_was_no_memory(monkeypatch, tmp_path):
    """It has made the file before it finds that there is no room in it."""

    def leave_a_file(_):
        (tmp_path / "torch_1_22_0").touch()
        msg = "unable to allocate shared memory(shm) for file </torch_1_22_0>: No space left"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch.Tensor, "share_memory_", leave_a_file)
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    sender = Sender(0)
    for _ in range(2):
        assert [1.0] == Receiver().open(sender.pack(torch.ones(1))).tolist()
        assert not list(tmp_path.iterdir())


def test_shared_memory_comes_back(monkeypatch):
    """What could not be laid out the first time is, and is told, the next."""
    sender, receiver = Sender(0), Receiver()
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "share_memory_", no_memory)
        assert torch.equal(numbers(3), receiver.open(sender.pack(numbers(3))))
    for _ in range(2):
        assert torch.equal(numbers(3), receiver.open(sender.pack(numbers(3))))
    assert 1 == len(sender._slots)


def test_another_error_is_no_lack_of_memory(monkeypatch):
    """It is raised as it is."""

    def share_memory_(_):
        raise RuntimeError("something else")

    monkeypatch.setattr(torch.Tensor, "share_memory_", share_memory_)
    with pytest.raises(RuntimeError, match="something else"):
        Sender(0).pack(torch.ones(3))


def test_stacking_needs_no_shared_memory(monkeypatch):
    """As torch's default_collate does in a loader process, from where it is copied again."""
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", object())
    collated = collate_examples([torch.ones(3), torch.zeros(3)])
    assert not collated.is_shared()
