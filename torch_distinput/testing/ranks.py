"""Real gloo ranks for tests: one function, run by several processes of this machine.

The processes are started once and serve job after job, so that a test costs tens of milliseconds.
Every job runs under a watchdog. Whatever goes wrong in a job, the next one gets new processes.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch_distinput.errors import PEER_ERRORS
from torch_distinput.options import check_count
from torch_distinput.testing.rank_pool import RankError, RankOutcome, RankPool
from torch_distinput.threads import call_in_child, release_at_exit

if TYPE_CHECKING:
    from torch_distinput.distribute.strategy import Strategy

__all__ = ["RankError", "RankOutcome", "run_ranks", "run_ranks_outcomes"]

Result = TypeVar("Result")

_pool = RankPool()


def run_ranks(
    fn: Callable[[Strategy], Result],
    num_workers: int,
    *,
    replicas_per_worker: int = 1,
    timeout: float = 60.0,
) -> list[Result]:
    """Run ``fn(strategy)`` in ``num_workers`` processes that form a gloo process group.

    Each rank gets a ``MultiWorkerMirroredStrategy`` over that group with ``replicas_per_worker``
    virtual CPU replicas. Environment, working directory and ``sys.path`` are the caller's, torch
    runs on one thread, and the random generators of Python, numpy and torch are seeded with the
    number of the rank. Results come back by ``pickle``.

    Args:
        fn: A function at the level of a module, or a ``functools.partial`` of one.
        num_workers: How many processes.
        replicas_per_worker: How many replicas each of them has.
        timeout: Seconds for ``fn``, counted from when all ranks have loaded it.

    Returns:
        What ``fn`` returned, in worker order.

    Raises:
        RankError: If ``fn`` raised or a rank died: for the first that did.
        TimeoutError: If ranks were still busy when the time was up: which, and what they did.
        TypeError: If ``fn`` cannot be sent to another process.
        ValueError: If a count is below 1, or ``timeout`` is not above 0.
    """
    outcomes = _run(fn, num_workers, replicas_per_worker, timeout)
    failed = _by_cause([outcome for outcome in outcomes if outcome.error is not None])
    if failed:
        raise _blame(failed, num_workers) from _original(failed[0])
    return [outcome.result for outcome in _by_worker(outcomes)]


def run_ranks_outcomes(
    fn: Callable[[Strategy], object],
    num_workers: int,
    *,
    replicas_per_worker: int = 1,
    timeout: float = 60.0,
) -> list[RankOutcome]:
    """Do what :func:`run_ranks` does, and return how it ended on each rank, in worker order.

    For tests in which ranks are meant to fail: one that dies does not hide what the others saw.
    These have until ``timeout`` to answer. The arguments are those of :func:`run_ranks`.

    Raises:
        TypeError: If ``fn`` cannot be sent to another process.
        ValueError: If a count is below 1, or ``timeout`` is not above 0.
    """
    return _by_worker(_run(fn, num_workers, replicas_per_worker, timeout))


def _run(
    fn: Callable[[Strategy], object], num_workers: int, replicas_per_worker: int, timeout: float
) -> list[RankOutcome]:
    for name, value in (("num_workers", num_workers), ("replicas_per_worker", replicas_per_worker)):
        check_count(name, value, minimum=1)
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {timeout!r}.")
    try:
        call = pickle.dumps(functools.partial(_with_strategy, fn, replicas_per_worker))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "fn must be a function at the level of a module, or a functools.partial of one with "
            f"arguments that pickle, so that it can be sent to the ranks; got {fn!r} ({error})."
        ) from error
    release_at_exit(_pool.close)  # before multiprocessing's own, which would wait for the ranks
    call_in_child(_pool, RankPool.forget)
    return _pool.run(call, num_workers, timeout)


def _with_strategy(fn: Callable[[Strategy], Result], num_replicas: int) -> Result:
    """Run on the rank, inside its process group."""
    import torch_distinput as tdi  # noqa: PLC0415  # the package imports this folder

    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"] * num_replicas)
    try:
        return fn(strategy)
    except BaseException as error:  # as at the end of a script that it ends
        strategy._session.heartbeat.close(error)  # noqa: SLF001 - not for users
        raise


def _by_cause(failed: Sequence[RankOutcome]) -> list[RankOutcome]:
    """Errors about another worker come after the error that they are about."""
    return sorted(failed, key=lambda outcome: isinstance(outcome.error, PEER_ERRORS))


def _by_worker(outcomes: Sequence[RankOutcome]) -> list[RankOutcome]:
    return sorted(outcomes, key=lambda outcome: outcome.worker)


def _blame(failed: Sequence[RankOutcome], num_workers: int) -> Exception:
    """Make one exception for all that failed, in order of time: the first is to blame."""
    first = failed[0]
    said = [_describe(outcome, num_workers) for outcome in failed]
    if first.late:  # the late come last: nobody failed before
        return TimeoutError("\n\n".join(said))
    message = "\nthen ".join(line.partition("\n")[0] for line in said)
    if first.remote_traceback:
        message += f"\n\nOn worker {first.worker}:\n{first.remote_traceback}"
    return RankError(
        message,
        worker=first.worker,
        exitcode=first.exitcode,
        remote_traceback=first.remote_traceback,
    )


def _describe(outcome: RankOutcome, num_workers: int) -> str:
    if outcome.late or isinstance(outcome.error, RankError):
        return str(outcome.error)
    error = f"{type(outcome.error).__name__}: {outcome.error}"
    return f"worker {outcome.worker} of {num_workers} raised {error}"


def _original(outcome: RankOutcome) -> BaseException | None:
    ours = outcome.late or isinstance(outcome.error, RankError)
    return None if ours else outcome.error
