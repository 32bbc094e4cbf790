"""How often the examples of per-worker datasets came. Over pretended processes."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from tests.coordinator.simulated_engine import Gate
from tests.coordinator.stateful_datasets import Numbers
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy


def same(batch):
    return batch


def keep(iterator):
    KEPT[:] = [iterator]


def take_both(first, second):
    take(first, 3)
    take(second, 3)


def take_kept():
    return next(KEPT[0])


KEPT: list[Any] = []


class Untold(Numbers):
    """Its state cannot be pickled from the third number on."""

    def state_dict(self):
        return {**super().state_dict(), "more": iter([self]) if self.place > 2 else None}

    def __reduce__(self):
        raise TypeError("not this one")


class TestVisits:
    def test_elements_are_counted_by_worker_and_number(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(count)
        iterator = iter(dataset)
        for number in (2, 1):
            alone.schedule(take, args=(iterator, number)).fetch()
        alone.schedule(take, args=(iter(dataset),)).fetch()
        visits = dataset.visits()
        assert {(0, 0): 2, (0, 1): 1, (0, 2): 1} == visits.counts
        assert (3, 0) == (visits.num_closures, visits.num_lost)

    def test_examples_of_ours_are_counted_by_their_ids(self, coordinator) -> None:
        dataset = coordinator.create_per_worker_dataset(distribute_rows)
        for _ in range(4):
            iterator = iter(dataset)
            coordinator.schedule(take, args=(iterator, 3)).fetch()
        found = dataset.visits().counts
        by_row = [sum(found.get((worker, row), 0) for worker in range(2)) for row in range(10)]
        assert [4] * 10 == by_row
        assert 40 == sum(found.values())

    def test_shares_without_names_are_not_taken_for_one_another(self, coordinator) -> None:
        """Two workers have an example 0 each, which need not be the same."""
        dataset = coordinator.create_per_worker_dataset(distribute_rows)
        iterator = iter(dataset)
        gate = Gate("both workers")
        values = [coordinator.schedule(take_at, args=(gate, iterator)) for _ in range(2)]
        gate.expect(2)
        gate.open()
        coordinator.fetch(values)
        expected = {(worker, row): 1 for worker in range(2) for row in range(4)}
        assert expected == dataset.visits().counts

    def test_a_function_may_name_the_examples(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(["ab", "bc"], ids=list)
        alone.schedule(take, args=(iter(dataset), 2)).fetch()
        assert {"a": 1, "b": 2, "c": 1} == dataset.visits().counts

    @pytest.mark.parametrize(
        ("batch", "names"),
        [
            (torch.tensor([3, 4]), {3: 2, 4: 2}),
            (torch.tensor([[3, 4]]), {(3, 4): 2}),
            ([torch.tensor(3), [4, 5]], {3: 2, (4, 5): 2}),
            (np.array(["a"]), {"a": 2}),
        ],
    )
    def test_tensors_among_the_names_are_counted_by_value(self, alone, batch, names) -> None:
        dataset = alone.create_per_worker_dataset([batch] * 2, ids=same)
        alone.schedule(take, args=(iter(dataset), 2)).fetch()
        assert names == dataset.visits().counts

    @pytest.mark.parametrize("batch", ["ab", 3, torch.tensor(3), [{1}]])
    def test_what_are_no_names_fails_the_closure_alone(self, alone, batch) -> None:
        dataset = alone.create_per_worker_dataset([batch], ids=same)
        alone.schedule(take, args=(iter(dataset),))
        with pytest.raises(TypeError, match=r"ids of dataset 0 .* an iterable of the examples'"):
            alone.join()
        assert [1] == alone.schedule(list, args=([1],)).fetch()

    def test_a_stop_iteration_of_ids_is_not_the_end_of_the_data(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(["ab", "bc"], ids=lambda _: next(iter(())))
        with pytest.raises(RuntimeError, match="got a StopIteration"):
            alone.schedule(list, args=(iter(dataset),)).fetch()
        with pytest.raises(RuntimeError, match="got a StopIteration"):
            alone.join()

    def test_replicas_are_counted_together(self, simulated) -> None:
        with ParameterServerStrategy(1, 0, simulated, devices=["cpu"] * 3) as strategy:
            coordinator = ClusterCoordinator(strategy)
            dataset = coordinator.create_per_worker_dataset(distribute_rows)
            coordinator.schedule(take, args=(iter(dataset), 3)).fetch()
            assert {(0, row): 1 for row in range(10)} == dataset.visits().counts

    def test_a_closure_that_raised_is_counted(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(count_up_to_three)
        alone.schedule(take, args=(iter(dataset), 4))
        with pytest.raises(tdi.UsageError, match="got the end of"):
            alone.join()
        assert {(0, 0): 1, (0, 1): 1, (0, 2): 1} == dataset.visits().counts
        assert 1 == dataset.visits().num_closures

    def test_closures_that_took_nothing_are_not(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(count)
        alone.schedule(take, args=(iter(dataset), 0)).fetch()
        assert 0 == dataset.visits().num_closures

    def test_what_is_taken_from_a_kept_iterator_is_counted(self, alone) -> None:
        """A closure may keep its iterator on the worker, for others that do not get it."""
        dataset = alone.create_per_worker_dataset(count)
        iterator = iter(dataset)
        alone.schedule(keep, args=(iterator,)).fetch()
        assert [0, 1] == [alone.schedule(take_kept).fetch() for _ in range(2)]
        assert {(0, 0): 1, (0, 1): 1} == dataset.visits().counts

    @pytest.mark.parametrize("has_dataset", [False, True])
    def test_a_kept_iterator_that_would_not_be_counted_is_refused(self, alone, has_dataset) -> None:
        dataset = alone.create_per_worker_dataset(count)
        alone.schedule(keep, args=(iter(dataset),)).fetch()
        if not has_dataset:
            del dataset
        alone.schedule(take_kept)
        with pytest.raises(tdi.UsageError, match="Keep what iter"):
            alone.join()

    def test_nor_that_of_another_dataset(self, alone) -> None:
        first, second = (
            alone.create_per_worker_dataset(made, resume="state") for made in (Numbers, Untold)
        )
        alone.schedule(take_both, args=(iter(first), iter(second)))
        with pytest.raises(TypeError, match=r"state_dict\(\) of dataset 1 .* be pickled"):
            alone.join()
        for dataset in (first, second):
            assert {(0, 0): 1, (0, 1): 1, (0, 2): 1} == dataset.visits().counts

    def test_a_state_that_cannot_be_pickled_loses_no_count(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(Untold, resume="state")
        iterator = iter(dataset)
        alone.schedule(take, args=(iterator, 2)).fetch()
        alone.schedule(take, args=(iterator,))
        with pytest.raises(TypeError, match=r"state_dict\(\) of dataset 0 .* be pickled"):
            alone.join()
        assert {(0, 0): 1, (0, 1): 1, (0, 2): 1} == dataset.visits().counts
