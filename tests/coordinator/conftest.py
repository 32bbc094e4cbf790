"""The engines that play the tests of this folder: all of them, Ray where it is installed."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import FrameType

import pytest

from tests.conftest import LONG, WITH_FRAMEWORKS
from tests.coordinator.engines import new_engine
from tests.coordinator.simulated_engine import SimulatedEngine, SimulatedObject
from tests.coordinator.waiting import Waits
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.coordinator.engines import child_process
from torch_distinput.coordinator.engines.engine import Engine
from torch_distinput.coordinator.parameters import identity
from torch_distinput.coordinator.parameters import parameters as parameters_module
from torch_distinput.testing import rank_pool

child_process._PRELOAD = rank_pool._PRELOAD  # one fork server for all that tests start

SECONDS = 900 if LONG else 300
"""For one test, on the busiest machine: 50 actors of Ray that are started again take minutes."""


@pytest.fixture(scope="session", autouse=True)
def imported_pickler() -> None:
    """Lambdas of tests are pickled by cloudpickle or, where that is missing, by Ray's copy of it.

    Ours takes the latter where Ray is imported anyway, which must not depend on other tests.
    """
    if find_spec("cloudpickle") is None and find_spec("ray") is not None:
        importlib.import_module("ray")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """What waits for a process for ever fails."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test has not ended within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine, whose Ray is there.

    Under `make test-integrations` a missing Ray is an error.
    """
    missing = request.param == "ray" and find_spec("ray") is None
    if missing and WITH_FRAMEWORKS:
        pytest.fail("needs ray: not installed")
    if missing:
        pytest.skip("needs ray: not installed")
    if request.param == "local":
        return request.param
    request.getfixturevalue("ray")
    return request.param


@pytest.fixture(scope="module")
def started(engine: str) -> Iterator[Engine]:
    """An engine that starts processes, which all tests of a file share."""
    made = new_engine(engine)
    yield made
    made.close()


@pytest.fixture
def simulated() -> Iterator[SimulatedEngine]:
    """An engine whose processes are pretended."""
    yield SimulatedEngine()
    # Workers in this process say that it is theirs, and what they keep would end with theirs.
    identity._workers.clear()
    parameters_module._clients.clear()
    SimulatedObject.known.clear()


@pytest.fixture
def strategy(simulated: SimulatedEngine) -> Iterator[ParameterServerStrategy]:
    """Two pretended workers."""
    with ParameterServerStrategy(2, 0, simulated, devices=["cpu"]) as made:
        yield made


@pytest.fixture
def coordinator(strategy: ParameterServerStrategy) -> ClusterCoordinator:
    """Of two pretended workers."""
    return ClusterCoordinator(strategy)


@pytest.fixture
def alone(simulated: SimulatedEngine) -> Iterator[ClusterCoordinator]:
    """The coordinator of a single pretended worker, on which closures run in order."""
    with ParameterServerStrategy(1, 0, simulated, devices=["cpu"]) as made:
        yield ClusterCoordinator(made)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of a test."""
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def waits(coordinator: ClusterCoordinator) -> Waits:
    """Who waits for the coordinator's queue."""
    return Waits(coordinator)
