"""Closures on workers and parameters on servers, beside bare calls of Ray actors.

    python benchmarks/coordinator.py [--quick] [--json] [--rounds 5]

The floor of *closures* hands a function to Ray actors: each gets the next call when it has answered
the one before, so that a call can be given to another actor if one dies. The same function goes to
the workers of both engines; it adds one, or it sleeps 5 ms, as if it waited for a device. Peers are
Ray's ActorPool, and all calls sent to the actors at once. The *overhead* is what a closure takes
longer than a bare call. The floor of *pull* and *push* is an actor that calls another one, which
holds the parameters: it copies what it gets into its module, and the other one applies what it gets
with the same optimizer. *Dense* is one parameter of 64 MB; *rows* are 8,192 rows of an embedding of
262,144, each of 64 float32. Floors are given in closures a second and GB/s. Without Ray there are
no figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bare_ray import (
    BareServer,
    BareWorker,
    Exchange,
    one_at_a_time,
    own_ray,
    pooled,
    sent_ahead,
    started,
)
from measuring import OURS, Figure, Turn, command_line, figure, run, take_turns

from torch_distinput.coordinator import (
    ClusterCoordinator,
    LocalEngine,
    Parameters,
    ParameterServerStrategy,
    RayEngine,
)

ENGINES: dict[str, Callable[[], Any]] = {"local": LocalEngine, "ray": RayEngine}
TARGET = 1.3
SLEEP_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much there is to do."""

    closures: int
    sleeping: int
    workers: tuple[int, ...]
    side: int  # of the dense parameter
    rows: int  # of the embedding
    batch_rows: int
    exchanges: int


SIZES = {
    "full": Size(
        closures=1000, sleeping=200, workers=(1, 2, 4, 8), side=4096, rows=1 << 18,
        batch_rows=1 << 13, exchanges=10,
    ),
    "quick": Size(
        closures=300, sleeping=50, workers=(1, 2, 4, 8), side=4096, rows=1 << 18,
        batch_rows=1 << 13, exchanges=4,
    ),
    "tiny": Size(
        closures=20, sleeping=4, workers=(2,), side=64, rows=512, batch_rows=32, exchanges=2
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------ closures


def add_one(number: int) -> int:
    """Nothing to speak of."""
    return number + 1


def sleep(number: int) -> int:
    """Wait as if for a device."""
    time.sleep(SLEEP_SECONDS)
    return number


def scheduled(
    coordinator: ClusterCoordinator, fn: Callable[[int], int], number: int
) -> list[int]:
    """Ours."""
    values = [coordinator.schedule(fn, (value,)) for value in range(number)]
    results: list[int] = coordinator.fetch(values)
    return results


def of_closures(ray: Any, size: Size, rounds: int) -> Iterator[Figure]:
    """Functions without work and with some, on more and more workers."""
    for num_workers in size.workers:
        plural = "worker" if num_workers == 1 else "workers"
        with ExitStack() as stack:
            actors = stack.enter_context(started(ray, BareWorker, num_workers))
            coordinators = {
                f"{OURS}, {name}": stack.enter_context(coordinated(make(), num_workers, 0))
                for name, make in ENGINES.items()
            }
            for name, fn, number in (
                ("closures", add_one, size.closures),
                ("closures of 5 ms", sleep, size.sleeping * num_workers),
            ):
                floor = partial(one_at_a_time, ray, actors, fn, number)
                cases: dict[str, Callable[[], Any]] = {
                    case: partial(scheduled, coordinator, fn, number)
                    for case, coordinator in coordinators.items()
                }
                if fn is add_one:
                    cases["Ray, ActorPool"] = partial(pooled, ray, actors, fn, number)
                    cases["Ray, all sent ahead"] = partial(sent_ahead, ray, actors, fn, number)
                turns = take_turns(floor, cases, rounds)
                yield from compared(
                    f"{name}, {num_workers} {plural}", turns, number, "closures a second"
                )
                if fn is add_one:
                    yield from overheads(f"overhead, {num_workers} {plural}", turns, number)


def overheads(
    workload: str, turns: dict[str, list[Turn]], number: int
) -> Iterator[Figure]:
    """What a closure takes beyond a bare call."""
    for case, rounds in turns.items():
        if case.startswith(OURS):
            values = [1e6 * (own - floor) / number for floor, own in rounds]
            yield figure(workload, case, "us", values)


# ------------------------------------------------------------------------------ parameters


def exchange(parameters: Parameters, work: Exchange) -> tuple[float, float]:
    """Seconds of pulls and of pushes, in a closure."""
    pulling = pushing = 0.0
    parameters.pull()  # the first one brings everything
    parameters.push(dict.fromkeys(["weight"], next(work.gradients())))
    for gradient in work.gradients():
        start = time.perf_counter()
        parameters.pull()
        middle = time.perf_counter()
        parameters.push({"weight": gradient})
        pulling += middle - start
        pushing += time.perf_counter() - middle
    return pulling, pushing


def of_parameters(ray: Any, size: Size, rounds: int) -> Iterator[Figure]:
    """A dense parameter, and rows of an embedding."""
    for name, work in (
        ("dense", Exchange(shape=(size.side, size.side), batch_rows=None, times=size.exchanges)),
        ("rows", Exchange(shape=(size.rows, 64), batch_rows=size.batch_rows, times=size.exchanges)),
    ):
        with ExitStack() as stack:
            (worker,) = stack.enter_context(started(ray, BareWorker, 1))
            (server,) = stack.enter_context(started(ray, BareServer, 1, work))

            def bare(worker: Any = worker, server: Any = server, work: Exchange = work) -> Any:
                return ray.get(worker.exchange.remote(server, work))

            cases: dict[str, Callable[[], Any]] = {}
            for engine, make in ENGINES.items():
                coordinator = stack.enter_context(coordinated(make(), 1, 1))
                parameters = coordinator.strategy.create_parameters(
                    work.make_model, work.make_optimizer
                )
                cases[f"{OURS}, {engine}"] = partial(fetched, coordinator, parameters, work)
            both: Any = take_turns(bare, cases, rounds, clock=lambda done: done())
        for index, direction in enumerate(("pull", "push")):
            turns = {
                case: [(floor[index], own[index]) for floor, own in pairs]
                for case, pairs in both.items()
            }
            yield from compared(f"{direction}, {name}", turns, work.num_bytes / 1e9, "GB/s")


def fetched(
    coordinator: ClusterCoordinator, parameters: Parameters, work: Exchange
) -> tuple[float, float]:
    """What the closure has measured."""
    seconds: tuple[float, float] = coordinator.schedule(exchange, (parameters, work)).fetch()
    return seconds


# ------------------------------------------------------------------------------ all together


@contextmanager
def coordinated(engine: Any, num_workers: int, num_servers: int) -> Iterator[ClusterCoordinator]:
    """A coordinator whose workers are all there."""
    with ParameterServerStrategy(num_workers, num_servers, engine) as strategy:
        coordinator = ClusterCoordinator(strategy)
        seen: set[int] = set()
        while len(seen) < num_workers:
            asked = [coordinator.schedule(process_id) for _ in range(num_workers)]
            seen.update(coordinator.fetch(asked))
        yield coordinator


def process_id() -> int:
    """Of the worker, which takes long enough for the others to come in."""
    time.sleep(SLEEP_SECONDS)
    return import_module("os").getpid()  # type: ignore[no-any-return]


def compared(
    workload: str, turns: dict[str, list[Turn]], count: float, per_second: str
) -> Iterator[Figure]:
    """Ratios to the floor, of which is said how much it does in a second."""
    for case, rounds in turns.items():
        yield figure(
            workload, case, "ratio", [own / floor for floor, own in rounds],
            floor=count / statistics.median(floor for floor, _ in rounds), floor_unit=per_second,
            target=TARGET if case.startswith(OURS) else None,
        )  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Everything, where Ray is installed."""
    if find_spec("ray") is None:
        print("Ray is not here (pip install '.[ray]'): no floor, no figures.", file=sys.stderr)
        return []
    size = SIZES[arguments.size]
    with own_ray() as ray:
        figures = [*of_closures(ray, size, arguments.rounds)]
        return [*figures, *of_parameters(ray, size, arguments.rounds)]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
