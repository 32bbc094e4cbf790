"""At ``iter()`` the workers compare what they are about to do, before any collective."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from torch_distinput.communicator import Communicator, named_workers
from torch_distinput.errors import MismatchError, PeerFailedError, PeerTimeoutError

Facts = Mapping[str, object]


def shake_hands(
    communicator: Communicator,
    topic: str,
    prepare: Callable[[], tuple[Facts, object]],
    *,
    name: str,
    timeout: float,
) -> list[Any]:
    """Compare facts that must be equal on all workers before they iterate the dataset ``name``.

    ``prepare`` makes this worker's facts, and a share: plain values that it has found out for all.
    If it raises, here it raises on, and the others hear of it at once instead of waiting.

    Returns:
        The shares of all workers, in worker order.

    Raises:
        MismatchError: the facts differ; names workers and difference.
        PeerFailedError: another worker could not prepare.
        PeerTimeoutError: another worker did not come within ``timeout`` seconds.
    """
    try:
        facts, share = prepare()
    except Exception as error:
        text = json.dumps({"failed": f"{type(error).__name__}: {error}"})
        communicator.exchange(topic, text, timeout=timeout)
        raise
    text = json.dumps({"facts": dict(facts), "share": share}, default=repr)
    shown = [json.loads(text) for text in _exchanged(communicator, topic, text, name, timeout)]
    _check_prepared(shown)
    _check_equal([worker["facts"] for worker in shown], name)
    return [worker["share"] for worker in shown]


def _exchanged(
    communicator: Communicator, topic: str, text: str, name: str, timeout: float
) -> list[str]:
    try:
        return communicator.exchange(topic, text, timeout=timeout)
    except PeerTimeoutError as error:
        msg = (
            f"Expected all {communicator.size} workers to iterate {name} within {timeout:g} s "
            f"({topic}), but {named_workers(error.workers)} did not come. Every worker must call "
            "iter() on the same datasets in the same order, and leave a loop at the same step "
            "(did this worker break out of its loop alone?); raise InputOptions.timeout if it is "
            "only slow."
        )
        raise PeerTimeoutError(msg, error.workers) from error


def _check_prepared(shown: list[dict[str, object]]) -> None:
    failed = {worker: said["failed"] for worker, said in enumerate(shown) if "failed" in said}
    if failed:
        words = "; ".join(f"worker {worker}: {text}" for worker, text in failed.items())
        msg = f"Expected all workers to open their data, but {words}"
        raise PeerFailedError(msg)


def _check_equal(shown: list[dict[str, object]], name: str) -> None:
    """Name the first fact that differs, and the workers that differ from worker 0."""
    for fact in dict.fromkeys(fact for facts in shown for fact in facts):
        values = [facts.get(fact) for facts in shown]
        odd = [worker for worker, value in enumerate(values) if value != values[0]]
        if odd:
            msg = (
                f"Expected the same {fact} on all workers when {name} is iterated, got "
                f"{values[0]!r} on worker 0 and {values[odd[0]]!r} on {named_workers(odd)}. "
                "Every worker must run the same code on the same data."
            )
            raise MismatchError(msg)
