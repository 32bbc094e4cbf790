"""Calls to objects in other processes by the coordinator's engines, beside bare calls of Ray.

    python benchmarks/engine_calls.py [--quick] [--json] [--rounds 5]

The floor is a method of a plain Ray actor that does the same. Calls are made one after another, as
a thread of the coordinator makes them. Arrays are read where they arrive, and so is the answer;
Ray shares one copy of an array with all who get it, which must not be written to, while our engines
give each its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from bare_ray import own_ray
from measuring import (
    OURS,
    Figure,
    command_line,
    figure,
    is_installed,
    ratios,
    repeated,
    run,
    seconds,
    take_turns,
)

from torch_distinput.coordinator.engines.engine import Engine
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.engines.ray import RayEngine

TARGET = 1.3
CALLS = {"full": 500, "quick": 200, "tiny": 5}
MEGABYTES = {"full": 100, "quick": 50, "tiny": 1}


class Echo:
    """What stands in the other process."""

    def add(self, number: int) -> int:
        """Return a little."""
        return number + 1

    def total(self, array: np.ndarray[Any, Any]) -> int:
        """Take much."""
        return int(array[:: 1 << 9].sum())

    def ones(self, size: int) -> np.ndarray[Any, Any]:
        """Return much."""
        return np.ones(size)

    def pid(self) -> int:
        """Say which process it is."""
        return os.getpid()


Call = Callable[..., Any]
"""Calls a method, by its name, with arguments."""


@contextmanager
def bare_ray() -> Iterator[Call]:
    """A plain actor of Ray."""
    import ray

    actor: Any = ray.remote(Echo).options(num_cpus=0, max_concurrency=4).remote()
    yield lambda method, *args: ray.get(getattr(actor, method).remote(*args))
    ray.kill(actor)


@contextmanager
def started_by(make_engine: Callable[[], Engine]) -> Iterator[Call]:
    """An object of an engine of ours."""
    engine = make_engine()
    try:
        yield engine.start("worker 0", Echo, restarts=False).call
    finally:
        engine.close()


def start_seconds(make_engine: Callable[[], Engine]) -> float:
    """From the start of a process to its first answer, where others have been started before."""
    engine = make_engine()
    try:
        engine.start("worker 0", Echo, restarts=False).call("pid")
        return seconds(lambda: engine.start("worker 1", Echo, restarts=False).call("pid"))
    finally:
        engine.close()


def measure_calls(calls: Mapping[str, Call], arguments: argparse.Namespace) -> list[Figure]:
    """The time of small calls and of arrays there and back; the first of the cases is the floor."""
    size = 1_000_000 * MEGABYTES[arguments.size] // 8
    array, count = np.ones(size), CALLS[arguments.size]
    workloads: dict[str, tuple[int, str, Callable[[Call], Callable[[], Any]]]] = {
        "small calls": (count, "call", lambda call: repeated(partial(call, "add", 1), count)),
        "arrays sent": (1, "array", lambda call: partial(call, "total", array)),
        "arrays returned": (1, "array", lambda call: partial(call, "ones", size)),
    }
    floor, *others = calls
    figures = []
    for name, (number, per, work) in workloads.items():
        cases = {case: work(calls[case]) for case in others}
        turns = take_turns(work(calls[floor]), cases, arguments.rounds)
        figures += ratios(name, turns, target=TARGET, count=number, per=per)
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Start of a process, small calls, large arrays."""
    if not is_installed("bare Ray", "ray"):
        return []
    engines: dict[str, Callable[[], Engine]] = {"local": LocalEngine, "ray": RayEngine}
    with ExitStack() as stack:
        stack.enter_context(own_ray())
        starts = {
            name: [1000 * start_seconds(engine) for _ in range(arguments.rounds)]
            for name, engine in engines.items()
        }
        calls = {"bare Ray": stack.enter_context(bare_ray())}
        for name, engine in engines.items():
            calls[f"{OURS}, {name}"] = stack.enter_context(started_by(engine))
        figures = measure_calls(calls, arguments)
    return [
        figure("start of a process", f"{OURS}, {name}", "ms", values)
        for name, values in starts.items()
    ] + figures


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
