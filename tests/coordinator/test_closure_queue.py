"""The queue by itself, one call after another: what is waited for, what is handed out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import torch_distinput as tdi
from tests.coordinator.waiting import SECONDS, Waits, in_thread
from torch_distinput.coordinator.closures.closure import Death, Failed, Returned
from torch_distinput.coordinator.closures.dataset_record import DatasetRecord
from torch_distinput.coordinator.closures.queue import ClosureQueue
from torch_distinput.coordinator.workers.messages import DatasetRecipe


@pytest.fixture
def queue():
    made = ClosureQueue(2)
    made.arrive(0)
    made.arrive(1)
    return made


def make_record(number=0):
    recipe = DatasetRecipe(
        number=number, name="numbers", payload=b"", is_function=True, keeps_state=False
    )
    return DatasetRecord(recipe, [])


def put(queue):
    return queue.put("add", b"payload", [])


def test_closures_are_taken_in_the_order_in_which_they_came(queue) -> None:
    closures = [put(queue) for _ in range(3)]
    assert closures == [queue.take(worker) for worker in (0, 1, 0)]


def test_what_is_given_back_comes_first(queue) -> None:
    first, second = put(queue), put(queue)
    queue.give_back(0, queue.take(0))
    assert [first, second] == [queue.take(1), queue.take(0)]


def test_it_is_done_when_each_closure_has_ended(queue) -> None:
    assert queue.is_done()
    put(queue)
    assert not queue.is_done()
    queue.take(0)
    assert not queue.is_done()
    queue.finish(0, Returned(value=b""))
    assert queue.is_done()


def test_workers_that_are_there_make_a_dataset_before_anything_else(queue) -> None:
    record = make_record()
    queue.add_dataset(record)
    closure = put(queue)
    assert [record, record, closure] == [queue.take(worker) for worker in (0, 1, 0)]


def test_it_is_not_done_before_they_have_made_it(queue) -> None:
    record = make_record()
    queue.add_dataset(record)
    assert not queue.is_done()
    queue.take(0)
    queue.finish(0)
    assert not queue.is_done()
    queue.take(1)
    assert not queue.is_done()
    queue.finish(1)
    assert queue.is_done()


def test_a_worker_that_is_not_there_is_not_waited_for(queue) -> None:
    record = make_record()
    queue.leave(1)
    queue.add_dataset(record)
    queue.take(0)
    queue.finish(0)
    assert queue.is_done()
    queue.arrive(1, is_again=True)
    assert not queue.is_done()
    assert record is queue.take(1)


def test_a_payload_is_kept_until_the_end_alone(queue) -> None:
    closure = put(queue)
    queue.give_back(0, queue.take(0))
    assert b"payload" == closure.payload
    queue.take(0)
    queue.finish(0, Returned(value=b""))
    assert b"" == closure.payload


def test_the_first_end_is_the_one_that_is_told(queue) -> None:
    waiting = put(queue)
    queue.end(tdi.UsageError("closed"))
    queue.end(tdi.ServerLostError("died"))
    with pytest.raises(tdi.UsageError, match="closed"):
        queue.join()
    assert isinstance(waiting.outcome, Failed)
    assert queue.take(0) is None


def test_the_last_worker_that_is_lost_ends_it(queue) -> None:
    queue.leave(0, for_good=[Death(cause="worker 0: no memory")])
    assert queue.is_done()
    queue.leave(1, for_good=[Death(cause="worker 1: no memory")])
    with pytest.raises(tdi.WorkerLostError, match=r"worker 0: no memory\n.*worker 1: no memory"):
        queue.is_done()
    with queue.hold():  # parameters may still be saved
        pass


def test_nothing_is_handed_out_while_it_is_held(queue, pool) -> None:
    closure = put(queue)
    waits = Waits(SimpleNamespace(_queue=queue))
    with queue.hold():
        taken = in_thread(pool, waits, lambda: queue.take(0))
        assert not taken.done()
    assert closure is taken.result(SECONDS)
