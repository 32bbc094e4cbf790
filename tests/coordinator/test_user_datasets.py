"""What datasets of users do wrong on a worker: an error of the closure, and of nothing else."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from tests.coordinator.waiting import add


class WithoutData:
    """Its files are gone."""

    def __iter__(self):
        raise OSError("no such file")


class WithoutState:
    """Says that it has a state."""

    def __iter__(self):
        return iter([1, 2, 3])

    def state_dict(self):
        raise OSError("no state")

    def load_state_dict(self, state) -> None:
        pass


class OfContext:
    """Made on the worker, by its class."""

    def __init__(self, context) -> None:
        self.index = context.input_pipeline_id

    def __iter__(self):
        return iter([self.index])


def test_iter_that_raises_fails_the_closure(alone) -> None:
    dataset = alone.create_per_worker_dataset(WithoutData())
    alone.schedule(next, args=(iter(dataset),))
    with pytest.raises(tdi.SourceError, match=r"iter\(\) of dataset 0.*worker 0.*no such file"):
        alone.join()
    assert 1 == alone.schedule(add, args=(1,)).fetch()


def test_a_state_that_cannot_be_told_fails_the_closure(alone) -> None:
    dataset = alone.create_per_worker_dataset(WithoutState(), resume="state")
    alone.schedule(next, args=(iter(dataset),))
    with pytest.raises(OSError, match="no state"):
        alone.join()
    assert 1 == alone.schedule(add, args=(1,)).fetch()
    assert ({(0, 0): 1}, 0) == (dataset.visits().counts, dataset.visits().num_lost)


@pytest.mark.parametrize("iterator", [iter([1, 2]), (i for i in range(2))])
def test_an_iterator_is_refused(alone, iterator) -> None:
    """All handles would share it, and each element would be counted as another's."""
    with pytest.raises(TypeError, match=r"iterated again.*got an iterator.*Pass what it iterates"):
        alone.create_per_worker_dataset(iterator)


def test_a_class_makes_the_dataset_as_a_function_does(alone) -> None:
    dataset = alone.create_per_worker_dataset(OfContext)
    assert 0 == alone.schedule(next, args=(iter(dataset),)).fetch()
