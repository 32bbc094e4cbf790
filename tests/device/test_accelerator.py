"""The path to an accelerator over streams and events that only note what is asked of them."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.device import backend as backend_module
from torch_distinput.device import prefetch
from torch_distinput.device.backend import AcceleratorBackend

META = torch.device("meta")  # any device that is not the CPU


class Stream:
    """What torch.Stream is to an accelerator's backend; entered, it is the current one.

    Made from the numbers of another one, it is the same stream, as another object.
    """

    def __init__(self, device=None, *, stream_id=None, device_index=0, device_type=0):
        self.log = []
        self.stream_id = next(NUMBERS) if stream_id is None else stream_id
        self.device_index, self.device_type = device_index, device_type
        LIVE.add(self)

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, *_):
        self.log.append("exit")

    def wait_stream(self, other):
        self.log.append(("wait stream", other))

    def wait_event(self, event):
        self.log.append(("wait event", id(event)))  # referring to nothing

    def record_event(self):
        return Event()


class Event:
    """Done as soon as anybody asks."""

    def __init__(self):
        LIVE.add(self)

    def synchronize(self):
        """It is."""


NUMBERS = itertools.count()
LIVE: weakref.WeakSet = weakref.WeakSet()


@pytest.fixture
def accelerator(monkeypatch):
    """The meta device with streams, events and pinned memory; its current stream."""
    LIVE.clear()
    current = Stream(META)
    empty = torch.empty

    def pinned(num_bytes):
        memory = empty(num_bytes, dtype=torch.uint8)
        LIVE.add(memory)
        return memory

    backend_module._side_stream.cache_clear()
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(backend_module, "_pinned", pinned)
    yield current
    backend_module._side_stream.cache_clear()


class TestAnAccelerator:
    """What its backend does with a tensor; here the device, its streams and events pretend."""

    @pytest.fixture
    def ring(self, accelerator, monkeypatch):
        """A replica on the meta device, and what was copied there."""
        self.copied = []
        real = AcceleratorBackend.copy

        def copy(backend, source):
            self.copied.append(source)
            return real(backend, source)

        monkeypatch.setattr(AcceleratorBackend, "copy", copy)
        self.backend = AcceleratorBackend(META)
        self.current = accelerator
        return prefetch.StagingRing(self.backend, num_slots=2)

    def start(self, ring, *leaves, owned=False):
        ring.open()
        return ring.start(leaves, owned=owned)[0]

    def test_views_become_dense(self, ring):
        """Also those that have one number in many places; memory formats are kept."""
        wide = torch.arange(24.0).reshape(4, 6)
        images = torch.ones(4, 2, 3, 3).to(memory_format=torch.channels_last)
        for tensor in (wide[:, :2], torch.ones(4, 1).expand(4, 3), wide.T[1:3], images[1:3]):
            (moved,) = self.start(ring, tensor)
            staged = self.copied[-1]
            assert torch.equal(tensor, staged)
            assert sorted(torch.empty_like(tensor).stride()) == sorted(staged.stride())
            assert (META, tensor.shape) == (moved.device, moved.shape)
        assert moved.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize(
        "dtype", [torch.bool, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
    )
    def test_dtypes_are_kept(self, ring, dtype):
        tensor = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype)
        (moved,) = self.start(ring, tensor)
        assert (dtype, tensor.shape) == (moved.dtype, moved.shape)
        assert torch.equal(tensor.view(torch.uint8), self.copied[0].view(torch.uint8))

    @pytest.mark.parametrize("rows", [0, 3])
    def test_graphs_stay_behind(self, ring, monkeypatch, rows):
        """Of what is staged, of what is read in place, and of no rows."""
        leaf = torch.ones(rows, requires_grad=True) * 2
        for is_pinned in (False, True):
            monkeypatch.setattr(AcceleratorBackend, "is_pinned", lambda *_, found=is_pinned: found)
            (moved,) = self.start(ring, leaf, owned=True)
            assert not moved.requires_grad

    def test_no_rows(self, ring):
        """Nothing to stage: it keeps dtype and trailing sizes."""
        (moved,) = self.start(ring, torch.empty(0, 3, dtype=torch.int32))
        assert ((0, 3), torch.int32) == (moved.shape, moved.dtype)
        assert set() == {one for one in LIVE if isinstance(one, torch.Tensor)}

    def test_jagged_leaves(self, ring, monkeypatch):
        """Torch pins their parts; they are kept until they are copied."""
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
        jagged = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged
        )
        (moved,) = self.start(ring, jagged)
        assert torch.jagged is moved.layout
        assert self.copied == ring._slots[0]._kept

    def test_the_source_may_write_over_its_buffer(self, ring, monkeypatch):
        """Pinned or not, while the copy to the device is under way."""
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
        buffer = torch.ones(4)
        self.start(ring, buffer)
        buffer.zero_()
        assert [1.0] * 4 == self.copied[0].tolist()

    def test_pinned_memory_that_nobody_writes_is_read_in_place(self, ring, monkeypatch):
        """If it is dense; else torch would copy it on the host, in memory that is not pinned."""
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
        dense, wide = torch.ones(2, 2), torch.ones(2, 4)
        self.start(ring, dense, wide[:, :2], owned=True)
        assert self.copied[0] is dense
        assert self.copied[1].is_contiguous()
        assert [dense] == ring._slots[0]._kept

    def test_buffers_are_used_again(self, ring):
        """By every second step here; larger ones take their place."""
        blocks = []
        for rows in (4, 4, 3, 4, 5, 4, 5, 5):
            self.start(ring, torch.ones(rows))
            blocks.append(self.copied[-1].data_ptr())
        assert blocks[0] == blocks[2]
        assert blocks[1] == blocks[3]
        assert blocks[4] == blocks[6]
        assert blocks[5] == blocks[3]

    def test_gradients_stay_behind(self, ring):
        """A leaf that requires them does not put a graph on the buffers."""
        weights = torch.ones(2, requires_grad=True)
        for _ in range(4):
            (moved,) = self.start(ring, weights)
            assert not moved.requires_grad

    def test_what_is_there_stays(self, ring):
        """It may still be computed there: the side stream, and so the consumer, waits for it."""
        there = torch.ones(4, device=META)
        (moved,) = self.start(ring, there, owned=True)
        assert moved is there
        assert [("wait stream", self.current)] == self.backend._side.log

    def test_what_is_there_and_may_be_written_over(self, ring):
        """It is copied where it was computed, so before it is written over."""
        there = torch.ones(4, device=META)
        (moved,) = self.start(ring, there)
        assert moved is not there
        assert [("wait stream", self.current)] == self.backend._side.log

    def test_the_consumers_stream_waits(self, ring, monkeypatch):
        """Not the host; and the memory of each tensor is kept for that stream."""
        kept = []
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *both: kept.append(both))
        marker, batch = self.backend.mark(), torch.ones(2)
        ring.hand_over([batch, "name"], marker)
        assert [(batch, self.current)] == kept
        assert [("wait event", id(marker))] == self.current.log

    def test_a_thread_goes_on_behind_what_its_caller_has_started(self, accelerator):
        """On a stream of the caller's own, of which the thread's would know nothing."""
        marker = AcceleratorBackend(META).mark_caller()
        AcceleratorBackend(META).enter_thread(marker)
        assert [("wait event", id(marker))] == accelerator.log

    def test_a_device_has_one_stream(self, accelerator):
        """For the life of the process: torch keeps the memory of a stream for that stream.

        Each iterator has an object of its own for it, as ``with`` keeps there what was current.
        """
        one, other = AcceleratorBackend(META)._side, AcceleratorBackend(META)._side
        assert one.stream_id == other.stream_id
        assert one is not other


class TestReplicaFunctions:
    """They have threads of their own, and work on the streams of who calls ``run``."""

    def test_their_streams(self, accelerator, monkeypatch):
        """Of all devices: each reads the parameters of the first one. Then its device is current.

        To enter a stream of another device makes that one the current one.
        """
        streams = {torch.device("meta", index): Stream(META) for index in (0, 1)}
        calls = []
        monkeypatch.setattr(torch.accelerator, "current_stream", streams.__getitem__)
        monkeypatch.setattr(torch.accelerator, "set_stream", calls.append)
        monkeypatch.setattr(torch.accelerator, "set_device_index", calls.append)
        strategy = tdi.MirroredStrategy(["meta:0", "meta:1"])
        seen = strategy.run(lambda: [calls.pop() for _ in range(len(calls))])
        for (current, *entered), device in zip(strategy.local_results(seen), streams, strict=True):
            assert device == current
            assert set(streams.values()) == set(entered)


class TestNothingIsLeft:
    """Over 1,000 iterators, whichever way they end."""

    def leave(self, number, dataset):
        """One of five ways to leave an iterator."""
        iterator = iter(dataset)
        if number % 5 == 0:
            next(iterator)
            iterator.close()
        elif number % 5 == 1:
            for _ in iterator:
                break
        elif number % 5 == 2:
            list(iterator)
        elif number % 5 == 3:
            loop = [iterator]
            loop.append(loop)  # only the garbage collector ends it
            next(iterator)
        else:
            with pytest.raises(ZeroDivisionError):
                for _ in iterator:
                    raise ZeroDivisionError

    @pytest.mark.slow
    @pytest.mark.parametrize("buffer_size", [0, 1])
    def test_by_a_thousand_iterators(self, accelerator, buffer_size):
        """No thread, event or pinned block; and one stream for all of them."""
        strategy = tdi.MirroredStrategy(["meta:0", "meta:0"])
        options = tdi.InputOptions(per_replica_buffer_size=buffer_size)
        dataset = strategy.distribute_dataset(
            torch.arange(12.0), global_batch_size=4, options=options
        )
        before = set(threading.enumerate())  # some of other tests may be about to end
        iterator = iter(dataset)
        next(iterator)
        assert {Stream, Event, torch.Tensor} == {type(one) for one in LIVE}
        del iterator
        for number in range(1000):
            self.leave(number, dataset)
        del dataset
        gc.collect()
        assert set(threading.enumerate()) <= before
        assert {accelerator, backend_module._side_stream(torch.device("meta:0"))} >= set(LIVE)
