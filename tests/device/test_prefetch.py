"""The prefetcher over a backend that notes its calls: order, look-ahead, errors, leaving."""

from __future__ import annotations

import gc
import itertools
import threading
from unittest import mock

import pytest
import torch
from torch.utils.data import IterableDataset

import torch_distinput as tdi
from torch_distinput.device import prefetch
from torch_distinput.device.backend import AcceleratorBackend, CpuBackend
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves


class Recorder:
    """A backend that stands for an accelerator."""

    def __init__(self):
        self.log = []
        self.count = itertools.count()

    def start(self, tensor):
        """Note a copy and make one."""
        self.log.append(("start", tensor.tolist()))
        return tensor.clone()

    def mark(self):
        """Number the batches."""
        number = next(self.count)
        self.log.append(("mark", number))
        return number

    def hand_over(self, tensors, marker):
        """Note which marker the consumer waits for."""
        self.log.append(("hand over", marker, [tensor.tolist() for tensor in tensors]))

    def enter_thread(self):
        """Note the thread."""
        self.log.append(("thread", threading.current_thread().name))


@pytest.fixture
def recorder(monkeypatch):
    """Every device gets the recorder."""
    backend = Recorder()
    monkeypatch.setattr(prefetch, "backend_for", lambda device: backend)
    return backend


META = torch.device("meta")  # any device that is not the CPU


def step(number):
    """A step of one replica with a tensor, names and nothing."""
    return ReplicaLeaves(leaves=([torch.tensor([number]), [str(number)], None],), note=number)


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 5])
def test_all_steps_in_order(recorder, buffer_size):
    """Whatever the look-ahead; tensors are copied, other leaves pass through."""
    steps = list(Prefetcher(map(step, range(7)), [META], buffer_size=buffer_size))
    assert list(range(7)) == [s.note for s in steps]
    assert [[str(k)] for k in range(7)] == [s.leaves[0][1] for s in steps]
    assert [[k] for k in range(7)] == [s.leaves[0][0].tolist() for s in steps]


def test_a_step_is_waited_for_before_it_is_handed_over(recorder):
    """The marker of a batch comes behind its copies; the consumer waits for that very marker."""
    list(Prefetcher(map(step, range(3)), [META], buffer_size=0))
    expected = [
        entry
        for k in range(3)
        for entry in (("start", [k]), ("mark", k), ("hand over", k, [[k]]))
    ]
    assert expected == recorder.log


def test_look_ahead_is_bounded(recorder):
    """``buffer_size`` steps beyond the one in use, no more."""
    for buffer_size in (1, 3):
        pulled, settled = [], threading.Event()

        def source(pulled=pulled, limit=buffer_size, settled=settled):
            for k in range(20):
                pulled.append(k)
                if len(pulled) == 1 + limit:
                    settled.set()
                yield step(k)

        prefetcher = Prefetcher(source(), [META], buffer_size=buffer_size)
        next(prefetcher)
        assert settled.wait(10)
        prefetcher.stop()
        prefetcher.join()
        assert len(pulled) == 1 + buffer_size


def test_errors_come_where_the_step_would_have(recorder):
    """After the good steps, with their own type."""

    def source():
        yield step(0)
        yield step(1)
        msg = "broken"
        raise KeyError(msg)

    prefetcher = Prefetcher(source(), [META], buffer_size=3)
    assert [0, 1] == [next(prefetcher).note, next(prefetcher).note]
    with pytest.raises(KeyError, match="broken"):
        next(prefetcher)


@pytest.mark.parametrize("how", ["stop", "end", "collect"])
def test_no_thread_stays(recorder, how):
    """After a stop, the end, or when nobody holds it: the owner stops what it drops."""
    before = set(threading.enumerate())
    prefetcher = Prefetcher(map(step, range(50)), [META], buffer_size=2)
    next(prefetcher)
    if how == "end":
        list(prefetcher)
    prefetcher.stop()
    if how == "collect":
        del prefetcher
        gc.collect()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
    else:
        prefetcher.join()
    assert set() == set(threading.enumerate()) - before


def test_on_the_cpu_everything_happens_at_the_call():
    """No thread, no copy, the caller's generator state."""
    before = threading.active_count()
    pulled = []

    def source():
        for k in range(3):
            pulled.append((k, threading.current_thread()))
            yield step(k)

    prefetcher = Prefetcher(source(), [torch.device("cpu")], buffer_size=4)
    assert [] == pulled
    next(prefetcher)
    assert [(0, threading.current_thread())] == pulled
    assert before == threading.active_count()


def test_a_batch_for_each_replica(recorder):
    """Several replicas may share a device, and so its stream."""
    both = ReplicaLeaves(leaves=([torch.tensor([1])], [torch.tensor([2])]))
    (out,) = Prefetcher(iter([both]), [META, META], buffer_size=0)
    assert [[1], [2]] == [leaves[0].tolist() for leaves in out.leaves]


class TestOnTheWay:
    """What an accelerator's backend does with a tensor; here nothing is pinned, and no stream."""

    @pytest.fixture
    def backend(self, monkeypatch):
        """A backend for the meta device."""
        monkeypatch.setattr(torch, "Stream", lambda device: mock.MagicMock())
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: "current")
        empty_like = torch.empty_like

        def pinned(tensor, *, pin_memory):
            assert pin_memory
            self.pinned = empty_like(tensor)
            return self.pinned

        monkeypatch.setattr(torch, "empty_like", pinned)
        return AcceleratorBackend(META)

    def test_views_become_dense(self, backend):
        """Also those that have one number in many places; memory formats are kept."""
        wide = torch.arange(24.0).reshape(4, 6)
        images = torch.ones(4, 2, 3, 3).to(memory_format=torch.channels_last)
        for tensor in (wide[:, :2], torch.ones(4, 1).expand(4, 3), wide.T[1:3], images[1:3]):
            moved = backend.start(tensor)
            assert torch.equal(tensor, self.pinned)
            assert self.pinned.numel() * 4 == self.pinned.untyped_storage().nbytes()
            assert (META, tensor.shape) == (moved.device, moved.shape)
        assert self.pinned.is_contiguous(memory_format=torch.channels_last)

    def test_the_source_may_write_over_its_buffer(self, backend):
        """Pinned or not, while the copy to the device is under way."""
        buffer = torch.ones(4)
        backend.start(buffer)
        buffer.zero_()
        assert [1.0] * 4 == self.pinned.tolist()

    def test_what_is_there_stays(self, backend):
        """It may still be computed there: the side stream, and so the consumer, waits for it."""
        there = torch.ones(4, device=META)
        assert backend.start(there) is there
        backend._stream.wait_stream.assert_called_once_with("current")


class TestUnderAnIterator:
    """The thread and whoever else touches the source, on a device that only pretends."""

    @pytest.fixture
    def strategy(self, monkeypatch):
        """One replica on a device that is not the CPU."""
        monkeypatch.setattr(prefetch, "backend_for", lambda device: CpuBackend())
        return tdi.MirroredStrategy(["meta:0"])

    def test_the_spec_does_not_race_with_the_thread(self, strategy):
        """It may be asked for before, between and after steps."""

        def stream():
            yield from range(10)

        dataset = strategy.distribute_dataset(stream, global_batch_size=2)
        assert (None,) == dataset.element_spec.shape
        iterator = iter(dataset)
        assert iterator.element_spec == dataset.element_spec
        assert list(range(10)) == [x for batch in iterator for x in batch.tolist()]

    def test_epochs_do_not_overlap_in_the_source(self, strategy):
        """A loop that is left waits for its thread before the next one starts."""
        inside, most = [], []

        class Source(IterableDataset):
            def __iter__(self):
                for number in range(30):
                    inside.append(number)
                    most.append(len(inside))
                    yield number
                    inside.pop()

        dataset = strategy.distribute_dataset(Source(), global_batch_size=1)
        for _ in range(5):
            for _ in dataset:
                break
            inside.clear()
        assert 1 == max(most)

    def test_close_frees_a_thread_that_waits_in_next(self, strategy):
        """Which then hears that the iterator was closed."""
        slow = threading.Event()

        def stream():
            yield 0
            slow.wait(20)
            yield 1

        iterator = iter(strategy.distribute_dataset(stream, global_batch_size=1))
        next(iterator)
        closer = threading.Timer(0.2, lambda: (slow.set(), iterator.close()))
        closer.start()
        with pytest.raises(tdi.UsageError, match="closed"):
            while True:
                next(iterator)
        closer.join(10)
