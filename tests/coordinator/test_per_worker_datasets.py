"""Datasets of workers: made there, advanced there, counted here. Over pretended processes."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch

import torch_distinput as tdi
from tests.coordinator.example_datasets import (
    count,
    count_up_to_three,
    distribute_rows,
    take,
    take_at,
)
from tests.coordinator.in_process import start
from tests.coordinator.simulated_engine import Gate
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy


def give_back(iterator):
    return iterator


def show_context(context):
    strategy = tdi.get_strategy()
    return [(str(context), context.num_replicas_in_sync, strategy.num_workers)]


def distribute(context):
    return tdi.get_strategy().distribute_datasets_from_function(lambda _: [torch.zeros(3)] * 4)


def fail_on_worker_one(context):
    if context.input_pipeline_id == 1:
        raise OSError("no such bucket")
    return [1, 2]


def join_for_ever(coordinator):
    """Until an error surfaces: that of a worker which may not be there yet."""
    while True:
        coordinator.join()


class TestHandles:
    def test_each_worker_advances_its_own_iterator(self, coordinator) -> None:
        iterator = iter(coordinator.create_per_worker_dataset(count))
        gate = Gate("both")
        values = [coordinator.schedule(take_at, args=(gate, iterator)) for _ in range(2)]
        gate.expect(2)
        gate.open()
        assert {"worker 0": 0, "worker 1": 100} == dict(coordinator.fetch(values))

    def test_an_iterator_goes_on_from_closure_to_closure(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(count))
        values = [alone.schedule(take, args=(iterator, n)) for n in (1, 2, 1)]
        assert [[0], [1, 2], [3]] == alone.fetch(values)

    def test_another_iter_begins_again(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(count_up_to_three)
        first, second = iter(dataset), iter(dataset)
        values = [alone.schedule(take, args=(i, 1)) for i in (first, second, first)]
        assert [[1], [1], [2]] == alone.fetch(values)

    def test_a_generator_function_is_called_again_for_another_iter(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(count)
        values = [alone.schedule(take, args=(iter(dataset), 2)) for _ in range(2)]
        assert [[0, 1], [0, 1]] == alone.fetch(values)

    def test_next_on_the_coordinator_is_refused(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset([1]))
        with pytest.raises(tdi.UsageError, match=r"on a worker.*schedule\(fn, args=\(iterator,\)"):
            next(iterator)
        assert iter(iterator) is iterator

    def test_a_dataset_in_the_place_of_its_iterator_is_refused(self, alone) -> None:
        dataset = alone.create_per_worker_dataset([1])
        with pytest.raises(tdi.UsageError, match=r"Call iter\(per_worker_dataset\) once"):
            alone.schedule(take, args=(dataset,))

    def test_a_handle_of_another_coordinator_is_refused(self, alone, coordinator) -> None:
        iterator = iter(coordinator.create_per_worker_dataset([1]))
        with pytest.raises(tdi.UsageError, match=r"dataset 0 \(list\) of another coordinator"):
            alone.schedule(take, args=([iterator],))

    def test_parameters_of_another_coordinator_are_refused(
        self, alone, strategy, coordinator
    ) -> None:
        """Their servers are not told when a worker of this one dies, and would wait for it."""
        parameters, _ = start(1, partial(torch.nn.Linear, 2, 1), partial(torch.optim.SGD, lr=0.1))
        strategy._processes.add_parameters(parameters)
        assert isinstance(coordinator.schedule(type, args=(parameters,)).fetch(), type)
        with pytest.raises(tdi.UsageError, match="got parameters of another coordinator"):
            alone.schedule(type, args=(parameters,))

    def test_a_handle_is_pickled_by_schedule_alone(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset([1]))
        with pytest.raises(tdi.UsageError, match=r"got a pickle or a copy"):
            pickle.dumps(iterator)

    def test_get_next_reads_too(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset([1]))

        assert [1, True, False] == alone.schedule(read_to_the_end, args=(iterator,)).fetch()

    def test_other_attributes_are_those_of_the_datasets_iterator(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(distribute_rows)
        assert 4 == alone.schedule(count_last_step, args=(iter(dataset),)).fetch()


def count_last_step(iterator):
    next(iterator)
    return iterator.last_step.num_examples


def read_to_the_end(iterator):
    first = iterator.get_next()
    ended = iterator.get_next_as_optional()
    return [first, first == 1, ended.has_value()]


class TestMaking:
    def test_a_function_gets_its_context_under_the_workers_strategy(self, coordinator) -> None:
        iterator = iter(coordinator.create_per_worker_dataset(show_context))
        gate = Gate("contexts")
        values = [coordinator.schedule(take_at, args=(gate, iterator)) for _ in range(2)]
        gate.expect(2)
        gate.open()
        shown = "tf.distribute.InputContext(input pipeline id {}, total: 2)"
        expected = {f"worker {i}": (shown.format(i), 1, 1) for i in range(2)}
        assert expected == dict(coordinator.fetch(values))

    @pytest.mark.parametrize(
        "dataset", [count_up_to_three, [1, 2, 3], tdi.DatasetCreator(lambda _: None)]
    )
    def test_functions_datasets_and_creators_are_taken(self, alone, dataset) -> None:
        if isinstance(dataset, tdi.DatasetCreator):
            dataset = tdi.DatasetCreator(count)
        found = alone.schedule(take, args=(iter(alone.create_per_worker_dataset(dataset)),))
        assert found.fetch() in ([1], [0])

    def test_a_function_may_distribute_over_the_workers_replicas(self, simulated) -> None:
        with ParameterServerStrategy(1, 0, simulated, devices=["cpu", "cpu"]) as strategy:
            coordinator = ClusterCoordinator(strategy)
            iterator = iter(coordinator.create_per_worker_dataset(distribute_rows))
            [rows] = coordinator.schedule(take, args=(iterator,)).fetch()
            assert [[0, 1], [2, 3]] == [replica.tolist() for replica in rows]

    def test_all_workers_make_it_before_it_is_needed(self, coordinator, simulated) -> None:
        made = Gate("made")

        def note(remote, method):
            if method == "create_dataset":
                made.arrive()

        simulated.after = note
        dataset = coordinator.create_per_worker_dataset(count)
        made.expect(2)
        assert {"worker 0", "worker 1"} == set(made.arrivals)
        del dataset

    def test_a_function_that_raises_on_one_worker_is_an_error(self, coordinator, simulated) -> None:
        dataset = coordinator.create_per_worker_dataset(fail_on_worker_one)
        with pytest.raises(
            tdi.SourceError,
            match=r"\(fail_on_worker_one\); on worker 1 it raised OSError: no such bucket",
        ) as caught:
            join_for_ever(coordinator)
        assert isinstance(caught.value.__cause__, OSError)
        coordinator.join()
        del dataset

    def test_it_is_tried_again_when_a_closure_needs_it(self, simulated) -> None:
        with ParameterServerStrategy(1, 0, simulated, devices=["cpu"]) as strategy:
            coordinator = ClusterCoordinator(strategy)
            flags = Gate("mended")
            dataset = coordinator.create_per_worker_dataset(make_if_open, ids=None)
            with pytest.raises(tdi.SourceError, match="not yet"):
                join_for_ever(coordinator)
            flags.is_open = True
            assert [1] == coordinator.schedule(take, args=(iter(dataset),)).fetch()

    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            (5, r"needs an iterable, a function.*got int"),
            (
                tdi.MirroredStrategy(["cpu"]).distribute_dataset([1], global_batch_size=1),
                r"each worker can have, got a DistributedDataset of this process",
            ),
            (
                tdi.MirroredStrategy(["cpu"]),
                r"each worker can have, got a MirroredStrategy of this process",
            ),
        ],
    )
    def test_what_is_no_dataset_is_refused(self, alone, dataset, message) -> None:
        with pytest.raises(TypeError, match=message):
            alone.create_per_worker_dataset(dataset)

    def test_a_function_that_returns_no_dataset_is_an_error(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(return_nothing)
        with pytest.raises(tdi.SourceError, match=r"can be iterated, got NoneType"):
            join_for_ever(alone)
        del dataset

    def test_an_unknown_way_to_resume_is_refused(self, alone) -> None:
        with pytest.raises(ValueError, match=r"resume must be 'start' or 'state', got 'end'"):
            alone.create_per_worker_dataset([1], resume="end")

    @pytest.mark.parametrize("resume", ["start", "state"])
    def test_an_iterator_that_nobody_has_is_dropped_too(self, alone, simulated, resume) -> None:
        """Though its values are there, and its dataset: one for each epoch would be many."""
        dataset = alone.create_per_worker_dataset(distribute_rows, resume=resume)
        values = [alone.schedule(take, args=(iter(dataset),)) for _ in range(5)]
        alone.schedule(take, args=(iter(dataset),)).fetch()
        of_worker = simulated.objects["worker 0"].made[0]._datasets._datasets[0]
        assert 1 >= len(of_worker._iterators)
        assert 5 == len(values)

    def test_a_dataset_that_nobody_has_is_dropped_on_the_workers(self, alone, simulated) -> None:
        dataset = alone.create_per_worker_dataset(count)
        alone.schedule(take, args=(iter(dataset),)).fetch()
        worker = simulated.objects["worker 0"].made[0]
        assert [0] == list(worker._datasets._datasets)
        del dataset
        alone.schedule(count_up_to_three).fetch()
        assert [] == list(worker._datasets._datasets)


def return_nothing():
    return None


def make_if_open():
    from tests.coordinator.simulated_engine import find_gate

    if not find_gate("mended").is_open:
        raise OSError("not yet")
    return [1]


class TestEnd:
    def test_the_end_of_data_says_whose_and_what_to_do(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(count_up_to_three))
        alone.schedule(take, args=(iterator, 3))
        alone.schedule(take, args=(iterator,))
        with pytest.raises(
            tdi.UsageError,
            match=r"Expected take to find data on worker 0, got the end of dataset 0 "
            r"\(count_up_to_three\) of worker 0, which has 3 elements.*repeat forever",
        ):
            alone.join()

    def test_a_function_may_catch_it(self, alone) -> None:
        iterator = iter(alone.create_per_worker_dataset(count_up_to_three))
        assert 6 == alone.schedule(sum, args=(iterator,)).fetch()

    def test_the_end_of_another_iterator_is_not_blamed_on_a_dataset(self, alone) -> None:
        alone.schedule(next, args=(iter(()),))
        with pytest.raises(tdi.UsageError, match=r"got the end of an iterator of its own"):
            alone.join()


class TestReturned:
    def test_an_iterator_stays_on_its_worker(self, alone) -> None:
        """A copy would give elements that the worker gives, too."""
        iterator = iter(alone.create_per_worker_dataset(count_up_to_three))
        with pytest.raises(
            TypeError, match=r"an iterator stays .* \(count_up_to_three\) of worker 0"
        ):
            alone.schedule(give_back, args=(iterator,)).fetch()
