"""The engines that play the tests of this folder: all of them, Ray where it is installed."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

import pytest

SECONDS = 300
"""For one test, on the busiest machine."""


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
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an engine; tests share one Ray, on this machine.

    Under `make test-integrations` a missing Ray is an error.
    """
    missing = request.param == "ray" and find_spec("ray") is None
    if missing and os.environ.get("TDI_TEST_INTEGRATIONS") == "1":
        pytest.fail("needs ray: not installed")
    if missing:
        pytest.skip("needs ray: not installed")
    if request.param == "local":
        yield request.param
        return
    ray = importlib.import_module("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield request.param
    ray.shutdown()
