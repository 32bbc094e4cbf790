"""Scheduling, joining and fetching, over processes that are pretended."""

from __future__ import annotations

import pytest

from tests.coordinator.simulated_engine import SimulatedEngine
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy


@pytest.fixture
def simulated() -> SimulatedEngine:
    return SimulatedEngine()


@pytest.fixture
def coordinator(simulated):
    with ParameterServerStrategy(2, 0, simulated, devices=["cpu"]) as strategy:
        yield ClusterCoordinator(strategy)


def add(a, b=0):
    return a + b


def fail(text):
    raise ValueError(text)


def test_a_value_is_fetched(coordinator) -> None:
    value = coordinator.schedule(add, args=(1,), kwargs={"b": 2})
    assert 3 == value.fetch()


def test_all_closures_run_once(coordinator) -> None:
    values = [coordinator.schedule(add, args=(i,)) for i in range(100)]
    coordinator.join()
    assert list(range(100)) == coordinator.fetch(values)
    assert coordinator.done()
    assert 100 == coordinator.stats().done


def test_an_error_surfaces_once(coordinator) -> None:
    coordinator.schedule(fail, args=("oh",))
    with pytest.raises(ValueError, match="oh") as caught:
        coordinator.join()
    assert "closure 0 (fail) on worker" in str(caught.value.__cause__)
    coordinator.join()
    assert 3 == coordinator.schedule(add, args=(3,)).fetch()
