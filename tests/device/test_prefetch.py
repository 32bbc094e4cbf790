"""The prefetcher over a backend that notes its calls: order, look-ahead, errors, leaving."""

from __future__ import annotations

import gc
import itertools
import threading
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import torch_distinput as tdi
from torch_distinput.device import backend as backend_module
from torch_distinput.device import prefetch
from torch_distinput.device.backend import (
    BlockingBackend,
    CpuBackend,
    backend_for,
    host_memory,
)
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves

META = torch.device("meta")  # any device that is not the CPU
CPU = torch.device("cpu")


class Recorder(CpuBackend):
    """A backend that stands for an accelerator."""

    copies_at_once = False

    def __init__(self):
        self.log = []
        self.count = itertools.count()

    def holds(self, tensor):
        return False

    def copy(self, source):
        self.log.append(("copy", source.tolist()))
        return source.clone()

    def mark(self):
        number = next(self.count)
        self.log.append(("mark", number))
        return number

    def wait_on_host(self, marker):
        self.log.append(("host waits", marker))

    def wait_on_consumer(self, marker):
        self.log.append(("consumer waits", marker))

    def keep_for_consumer(self, tensor):
        self.log.append(("keep", tensor.tolist()))

    def mark_caller(self):
        return threading.current_thread().name

    def enter_thread(self, marker):
        self.log.append(("thread", threading.current_thread().name, "behind", marker))


@pytest.fixture
def recorder(monkeypatch):
    """Every device gets the recorder."""
    backend = Recorder()
    monkeypatch.setattr(prefetch, "backend_for", lambda device: backend)
    return backend


def step(number):
    """A step of one replica with a tensor, names and nothing."""
    return ReplicaLeaves(leaves=([torch.tensor([number]), [str(number)], None],), note=number)


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 5])
def test_all_steps_in_order(recorder, buffer_size):
    """Whatever the look-ahead; tensors are copied, other leaves pass through."""
    steps = list(Prefetcher(map(step, range(7)), [META], buffer_size=buffer_size))
    assert list(range(7)) == [s.note for s in steps]
    assert [[[k], [str(k)], None] for k in range(7)] == [
        [s.leaves[0][0].tolist(), *s.leaves[0][1:]] for s in steps
    ]


def test_a_step_is_waited_for_before_it_is_handed_over(recorder):
    """The marker comes behind the copies; the consumer waits for that very marker.

    The one slot is used again when its copies are done, also where the end of data is found.
    """
    list(Prefetcher(map(step, range(3)), [META], buffer_size=0))
    kinds = ("copy", "mark", "consumer waits", "keep", "host waits")
    expected = [(kind, [k] if kind in ("copy", "keep") else k) for k in range(3) for kind in kinds]
    assert expected == recorder.log


def test_slots_are_used_in_turn(recorder):
    """With n steps ahead, the host waits for a copy when n + 1 others have been started."""
    prefetcher = Prefetcher(map(step, range(6)), [META], buffer_size=2)
    list(prefetcher)
    prefetcher.join()
    waits = [entry for entry in recorder.log if entry[0] in ("mark", "host waits")]
    assert [("mark", k) for k in range(3)] == waits[:3]
    assert [("host waits", 0), ("mark", 3), ("host waits", 1), ("mark", 4)] == waits[3:7]


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
        assert settled.wait(60)
        prefetcher.stop()
        prefetcher.join()
        assert len(pulled) == 1 + buffer_size


@pytest.mark.parametrize("buffer_size", [0, 3])
def test_errors_come_where_the_step_would_have(recorder, buffer_size):
    """After the good steps, with their own type; then it is over."""

    def source():
        yield step(0)
        yield step(1)
        msg = "broken"
        raise KeyError(msg)

    prefetcher = Prefetcher(source(), [META], buffer_size=buffer_size)
    assert [0, 1] == [next(prefetcher).note, next(prefetcher).note]
    with pytest.raises(KeyError, match="broken"):
        next(prefetcher)
    assert [] == list(prefetcher)


def test_a_device_that_fails_in_the_thread(recorder, monkeypatch):
    """Whatever the thread does first is reported too, instead of a hang."""

    def broken(marker):
        msg = "no device"
        raise RuntimeError(msg)

    monkeypatch.setattr(recorder, "enter_thread", broken)
    with pytest.raises(RuntimeError, match="no device"):
        next(Prefetcher(map(step, range(3)), [META], buffer_size=1))


def test_the_thread_sets_its_device(recorder):
    """Current devices are per thread; without a thread the caller's is left alone.

    What the caller has started before comes before what it does.
    """
    for buffer_size in (0, 1):
        list(Prefetcher(map(step, range(2)), [META], buffer_size=buffer_size))
    entered = [entry[1:] for entry in recorder.log if entry[0] == "thread"]
    assert [("torch_distinput-prefetch", "behind", threading.current_thread().name)] == entered


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
            thread.join(60)
    else:
        prefetcher.join()
    assert set() == set(threading.enumerate()) - before


def test_a_consumer_that_waits_is_freed(recorder):
    """By whoever stops it, in another thread: also when all that was ready is dropped."""
    for _ in range(50):
        inside, slow = threading.Event(), threading.Event()

        def source(inside=inside, slow=slow):
            inside.set()
            slow.wait(60)
            yield step(0)

        prefetcher = Prefetcher(source(), [META], buffer_size=1)
        consumer = threading.Thread(target=next, args=(prefetcher, None), daemon=True)
        consumer.start()
        inside.wait(60)
        slow.set()
        prefetcher.stop()
        prefetcher.join()
        consumer.join(60)
        assert not consumer.is_alive()


def test_on_the_cpu_everything_happens_at_the_call():
    """No thread, no copy, the caller's generator state: the step itself comes out."""
    before = set(threading.enumerate())
    steps = [step(k) for k in range(3)]
    pulled = []

    def source():
        for one in steps:
            pulled.append((one.note, threading.current_thread()))
            yield one

    prefetcher = Prefetcher(source(), [CPU], buffer_size=4)
    assert [] == pulled
    assert next(prefetcher) is steps[0]
    assert [(0, threading.current_thread())] == pulled
    assert set(threading.enumerate()) <= before


def test_a_batch_for_each_replica(recorder):
    """Several replicas may share a device, and so its stream."""
    both = ReplicaLeaves(leaves=([torch.tensor([1])], [torch.tensor([2])]))
    (out,) = Prefetcher(iter([both]), [META, META], buffer_size=0)
    assert [[1], [2]] == [leaves[0].tolist() for leaves in out.leaves]


@pytest.mark.parametrize("device", [META, CPU])
def test_what_is_written_over_is_copied_before(recorder, monkeypatch, device):
    """Steps are pulled ahead, so the next one must not change this one: arrays, and CPU replicas
    beside an accelerator, included."""
    monkeypatch.setattr(
        prefetch, "backend_for", lambda d: CpuBackend() if d.type == "cpu" else recorder
    )
    tensor, array = torch.zeros(1), np.zeros(1)

    def source():
        for number in range(5):
            leaves = [tensor.fill_(number), array]
            array[0] = number
            yield ReplicaLeaves(leaves=(leaves, [torch.zeros(1)]), note=number)

    for one in Prefetcher(source(), [device, META], buffer_size=3):
        assert [one.note, one.note] == [leaf.item() for leaf in one.leaves[0]]


@pytest.mark.parametrize("kind", ["tpu", "mps"])
def test_devices_without_streams_block(kind):
    """torch has no ``record_stream`` for MPS, and the events of torch_tpu do nothing."""
    device = mock.Mock(type=kind)  # torch knows "tpu" with torch_tpu only
    assert isinstance(backend_for(device), BlockingBackend)
    assert host_memory([CPU, device]) is None


def test_host_memory_is_pinned_where_a_device_reads_it():
    """And ordinary on the CPU, where there is nothing to pin for."""
    assert host_memory([CPU, CPU]) is None
    assert host_memory([CPU, META]) is backend_module._pinned


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
            slow.wait(60)
            yield from itertools.repeat(1)  # the end of the data must not come before the close

        iterator = iter(strategy.distribute_dataset(stream, global_batch_size=1))
        next(iterator)
        closer = threading.Timer(0.2, lambda: (slow.set(), iterator.close()))
        closer.start()
        with pytest.raises(tdi.UsageError, match="closed"):
            while True:
                next(iterator)
        closer.join(60)
