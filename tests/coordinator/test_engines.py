"""Calls to an object in another process: what goes there, what comes back, what is raised."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.coordinator.remote_objects import (
    FailedToMake,
    Meeting,
    MissingError,
    NoFileError,
    OversizedError,
    Subject,
)
from torch_distinput.coordinator.engines.outcome import RemoteTraceback
from torch_distinput.errors import ConfigurationError, UsageError, again


@pytest.fixture(scope="module")
def remote(started):
    return started.start("worker 0", Subject, restarts=True)


@pytest.fixture(scope="module")
def others(started):
    return [started.start(f"worker {i}", Subject, restarts=True) for i in (1, 2)]


class TestCalls:
    def test_a_call_runs_in_another_process(self, remote, others):
        pids = {one.call("pid") for one in (remote, *others)}
        assert 3 == len(pids - {None})

    def test_an_object_keeps_what_calls_did_to_it(self, started):
        counter = started.start("counter", Subject, restarts=False)
        assert [1, 2, 12] == [counter.call("add"), counter.call("add"), counter.call("add", 10)]

    def test_calls_run_at_the_same_time(self, remote):
        """Each of the four waits inside of the object for the other three."""
        with ThreadPoolExecutor(4) as pool:
            places = [pool.submit(remote.call, "meet") for _ in range(4)]
            assert [0, 1, 2, 3] == sorted(place.result() for place in places)

    def test_as_many_run_at_the_same_time_as_were_asked_for(self, started):
        meeting = started.start("server 0", Meeting, restarts=False, num_calls=40)
        with ThreadPoolExecutor(40) as pool:
            places = [pool.submit(meeting.call, "meet") for _ in range(40)]
            assert list(range(40)) == sorted(place.result() for place in places)

    def test_another_process_may_call(self, remote, others):
        asked = others[0].call("ask", remote, "pid")
        assert remote.call("pid") == asked

    def test_a_pickled_one_calls_the_same_object(self, remote):
        copy = pickle.loads(pickle.dumps(remote))
        assert "worker 0" == copy.name
        assert remote.call("pid") == copy.call("pid")

    def test_processes_draw_different_random_numbers(self, remote, others):
        draws = [one.call("draw") for one in (remote, *others)]
        assert [3, 3, 3] == [len(set(numbers)) for numbers in zip(*draws, strict=True)]


class TestArrays:
    @pytest.mark.parametrize("rows", [0, 1, 5, 30_000, 3_000_000])
    def test_they_arrive_whole_both_ways(self, remote, rows):
        array = np.arange(rows, dtype=np.float64)
        (back,) = remote.call("echo", array)
        assert back.dtype == array.dtype
        assert np.array_equal(array, back)

    def test_many_small_and_large_ones_in_a_structure(self, remote):
        sizes = [0, 1, 3, 70_000, 8, 200_000] * 100
        sent = {"all": [np.full(size, i % 100, dtype=np.int8) for i, size in enumerate(sizes)]}
        (back,) = remote.call("echo", sent)
        assert all(map(np.array_equal, sent["all"], back["all"]))
        assert 600 == len(back["all"])

    @pytest.mark.parametrize("rows", [3, 3_000_000])
    def test_what_the_sender_writes_afterwards_stays_with_it(self, remote, rows):
        array = np.ones(rows)
        remote.call("keep", array)
        array[:] = 2
        (back,) = remote.call("kept")
        assert rows == back.sum()

    @pytest.mark.parametrize("rows", [3, 3_000_000])
    def test_what_is_lent_arrives_as_it_was_inside(self, remote, rows):
        back = [remote.call("lend", rows) for _ in range(3)]
        assert [rows] * 3 == [array.sum() for array in back]

    def test_what_is_lent_is_given_back_also_if_it_cannot_be_pickled(self, remote):
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
            remote.call("lend_unpicklable")
        assert 3 == remote.call("lend", 3).sum()

    def test_others_than_contiguous_ones_travel_too(self, remote):
        array = np.arange(24).reshape(4, 6)
        back = remote.call("echo", array.T, array[:, ::2], np.asfortranarray(array))
        assert np.array_equal(array.T, back[0])
        assert np.array_equal(array[:, ::2], back[1])
        assert np.array_equal(array, back[2])


class TestErrors:
    def test_the_error_of_a_method_is_raised(self, remote):
        with pytest.raises(KeyError, match="absent") as caught:
            remote.call("fail", KeyError("absent"))
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in fail\n    raise error" in str(caught.value.__cause__)

    def test_so_is_one_of_ours(self, remote):
        with pytest.raises(ConfigurationError, match="no worker"):
            remote.call("fail", ConfigurationError("no worker"))

    def test_one_that_does_not_travel_does_as_text(self, remote):
        with pytest.raises(RuntimeError, match="LockedError: with a lock") as caught:
            remote.call("fail_oddly", "lock")
        assert "in fail_oddly" in str(caught.value.__cause__)

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            ("args", OversizedError(3, 2)),
            ("words", MissingError("a.txt")),
            ("file", NoFileError("a.txt")),
        ],
    )
    def test_one_whose_init_takes_something_else(self, remote, kind, error):
        """It has its class, words and attributes, also when it is raised again."""
        with pytest.raises(type(error)) as caught:
            remote.call("fail_oddly", kind)
        for found in (caught.value, again(caught.value)):
            assert str(error) == str(found)
            assert vars(error) == vars(found)
            assert isinstance(found.__cause__, RemoteTraceback)

    def test_one_that_shows_an_address_has_its_class(self, remote):
        with pytest.raises(ValueError, match="bad"):
            remote.call("fail_oddly", "object")

    def test_sys_exit_is_an_error_that_the_caller_survives(self, remote):
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            remote.call("exit", 3)

    def test_one_whose_class_only_the_process_has_is_that_class_or_text(self, remote):
        with pytest.raises((ValueError, RuntimeError), match="made here"):
            remote.call("fail_inside")

    def test_a_result_that_cannot_be_pickled(self, remote):
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
            remote.call("unpicklable")

    def test_an_argument_that_cannot_be_pickled(self, remote):
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
            remote.call("echo", Subject())

    def test_a_method_that_is_not_there(self, remote):
        with pytest.raises(AttributeError, match="'Subject' object has no attribute 'absent'"):
            remote.call("absent")

    def test_the_object_answers_after_all_of_them(self, remote):
        with pytest.raises(KeyError):
            remote.call("fail", KeyError(0))
        assert (1,) == remote.call("echo", 1)

    def test_each_call_raises_what_make_did(self, started):
        failed = started.start("failed", FailedToMake, restarts=False)
        for _ in range(2):
            with pytest.raises(LookupError, match="nothing to make it of") as caught:
                failed.call("pid")
        assert "in __init__" in str(caught.value.__cause__)

    def test_an_object_that_may_not_be_restarted(self, started):
        with pytest.raises(UsageError, match="restarts=True, got server 0"):
            started.restart(started.start("server 0", Subject, restarts=False))
