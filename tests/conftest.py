"""What all tests share: how many cases to try, and which machines a test is for."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from tests.fast_paths import NAMES, switched
from torch_distinput.testing import rank_pool

LONG = os.environ.get("TDI_TEST_LONG") == "1"
WITH_FRAMEWORKS = os.environ.get("TDI_TEST_INTEGRATIONS") == "1"
"""Whether this is `make test-integrations`, where a framework that is missing is an error."""

settings.register_profile(
    "project",
    deadline=None,  # two noisy cores: time is never asserted
    max_examples=1000 if LONG else 36,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("project")
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=NAMES if LONG else NAMES[:1])
def paths(request: pytest.FixtureRequest) -> Iterator[str]:
    """For test files that use it: all their tests with every fast path, or also with none.

    That each path changes nothing is tested by itself, in distribute/test_fast_paths.py.
    """
    with switched(request.param):
        yield request.param


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay until the end: nobody is to look for garbage among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class HangWatch:
    """A hang prints every thread's stack instead of nothing.

    pytest's own watch (faulthandler_timeout) starts a thread for each test and waits for its end,
    which on busy cores takes longer than most tests do. This one begins anew each ten seconds. The
    watchdogs of multi-process tests are shorter, and name the rank; so is the limit of a script, of
    which the slowest takes minutes on busy cores without being stuck.
    """

    SECONDS, PACE = 1000.0 if LONG else 550.0, 10.0

    def __init__(self) -> None:
        self.began = -math.inf

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Begin anew if it is time."""
        if time.monotonic() - self.began > self.PACE:
            self.began = time.monotonic()
            output = item.config.stash[fault_handler_stderr_fd_key]
            faulthandler.dump_traceback_later(self.SECONDS, file=output)

    def pytest_sessionfinish(self) -> None:
        """Leave nothing to watch."""
        faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    """In each process that runs tests."""
    # A shell has what runs in its background ignore SIGINT; all that tests start would inherit it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whoever starts the fork server first, all others use it.
    rank_pool._PRELOAD += [name for name in PRELOADED if name not in rank_pool._PRELOAD]
    multiprocessing.set_forkserver_preload(rank_pool._PRELOAD)
    for name, value in BUSY_MACHINE.items():
        os.environ.setdefault(name, value)
    config.pluginmanager.register(HangWatch())


PRELOADED = [
    *("pytest", "hypothesis.strategies", "tests.fast_paths", "tests.torchrun"),
    *("torch_distinput.coordinator", "torchdata.stateful_dataloader"),
]
"""What files of tests import, beside what ranks need: each new rank, server or loader process that
is forked would import it by itself, which takes it longer than most of them live."""

BUSY_MACHINE = {
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}
"""For each Ray that tests or their scripts start: others may keep the cores busy for longer than
the 30 seconds within which its server must be there, and fill the memory, for which Ray would kill
our processes. Ray's workers are nice (15) otherwise: beside four busy processes on two cores they
do not get through their imports in minutes."""


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """The one Ray of a process that runs tests, on this machine; only where it is installed."""
    module = importlib.import_module("ray")
    module.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield module
    module.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The three rules by which a test is skipped."""
    no_gpu = pytest.mark.skip(reason="needs CUDA")
    not_long = pytest.mark.skip(reason="only in `make test-long`")
    not_here = pytest.mark.skip(reason="takes long: played by `make test-integrations`")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(not_long)
        if item.get_closest_marker("with_frameworks") and not (LONG or WITH_FRAMEWORKS):
            item.add_marker(not_here)
