"""At ``iter()`` the workers compare what they are about to do, before any collective.

Each shows two lines: what it has to say, and its facts. One of the workers compares them
(``compare_shown``) and all read its verdict, which is short: shares, or what is wrong and with
whom.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.peers import Peers
from torch_distinput.cluster.liveness.status import Activity
from torch_distinput.communicator import Meeting, named_workers
from torch_distinput.errors import MismatchError, PeerFailedError, PeerTimeoutError, refer
from torch_distinput.plan.progress.state import SAMPLER_CURE

K = TypeVar("K")
Facts = Mapping[str, object]
NOT_KNOWN = "not known"
"""The value of a fact that a worker does not know: it is not compared with that of others."""

LEFT_AT = "step at which the epoch before was left"
"""What tells of a worker that broke out of its loop alone."""
EPOCH, POSITION, ORDER = "epoch", "position", "order from "
EXAMPLE = "fingerprint of example 0"
PLACE = "place to read on from"
"""What partners do not compare: workers tell each other of it in time, each row of a mesh apart."""
_STATE_CURE = (
    "Was a state loaded on some ranks only? Call load_state_dict() on all ranks, with the same "
    "state."
)
_CURES = {
    LEFT_AT: (
        "Did one rank leave its loop, or load a state, alone? Leave a loop on all ranks at the "
        "same step, and call load_state_dict() on all of them."
    ),
    EPOCH: (
        "Was a state loaded, or an epoch set, on some ranks only? Call load_state_dict() and "
        "set_epoch() on all ranks, with the same value."
    ),
    POSITION: _STATE_CURE,
    PLACE: _STATE_CURE,
    ORDER: SAMPLER_CURE,
    EXAMPLE: (
        "Has each rank files of its own, of the same names and sizes? Then the others' examples "
        "would be lost: pass all files on all ranks. For data that differs between ranks on "
        'purpose, use distribute_datasets_from_function, or auto_shard_policy="off".'
    ),
}
"""By how a fact begins."""
_CURE = (
    "Every worker must run the same code on the same data, which must not have been split by rank "
    "before, nor shuffled by random numbers that are not seeded alike."
)


def shake_hands(
    meeting: Meeting,
    topic: str,
    prepare: Callable[[], tuple[Facts, object]],
    *,
    heartbeat: Heartbeat,
    name: str,
    timeout: float,
    numbers: Sequence[int] | None = None,
) -> list[Any]:
    """Compare facts that must be equal on all workers before they iterate the dataset ``name``.

    ``prepare`` makes this worker's facts, and a share: plain values that it has found out for all.
    If it raises, here it raises on, and the others hear of it at once instead of waiting.
    ``numbers``: those of the ranks that meet, as the heartbeat knows them, if they are partners;
    None for workers, who are numbered as they are.

    Returns:
        The shares of all workers, in worker order.

    Raises:
        MismatchError: the facts differ; names workers and difference.
        PeerFailedError: another worker could not prepare, or is gone.
        PeerTimeoutError: another worker did not come within ``timeout`` seconds.
    """
    peers = heartbeat.peers
    peers.begin(topic)
    who = range(meeting.size) if numbers is None else numbers
    gone = partial(peers.gone, timeout, among=who)
    heartbeat.outside = Activity("opening its data for", topic, None, time.monotonic())
    try:
        facts, share = prepare()
    except Exception as error:
        text = json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n"
        meeting.join(topic, text, compare_shown, timeout=timeout, gone=gone)
        raise
    said = json.dumps({"share": share, "delivered": heartbeat.stop.delivered}, default=repr)
    compared = {key: fact for key, fact in facts.items() if numbers is None or key != PLACE}
    text = said + "\n" + json.dumps(compared, default=repr)
    now = time.monotonic()
    heartbeat.outside = Activity(
        "waiting for the others at the start of", topic, None, now, timeout
    )
    try:
        joined = meeting.join(topic, text, compare_shown, timeout=timeout, gone=gone)
    except PeerTimeoutError as error:
        if not error.workers:  # it is the store that does not answer
            raise
        late = [who[worker] for worker in error.workers]
        what = f"iterate {name} within {timeout:g} s ({topic})"
        raise _make_late_error(error, peers, late, what) from error
    peers.survive()
    heartbeat.outside = Activity("before the first step of", topic, None, time.monotonic())
    verdict = json.loads(joined)
    _check_prepared(verdict, [named_workers([number], peers.names) for number in who])
    _check_equal(verdict, name, peers.names and [peers.names[number] for number in who])
    # Partners count as the first of them, which by now counts as its fellow workers do: the most
    # of some partners need not be the most of all.
    heartbeat.stop.catch_up(verdict["most" if numbers is None else "first"])
    shares: list[Any] = verdict["shares"]
    return shares or [None] * meeting.size


def compare_shown(texts: Sequence[str]) -> str:
    """The verdict over what the workers have shown.

    Each different line is parsed once: as a rule all facts are alike.
    """
    pairs = [text.split("\n") for text in texts]
    read = {line: json.loads(line) for line in {line for pair in pairs for line in pair if line}}
    said = [read[line] for line, _ in pairs]
    failed = [[worker, words["failed"]] for worker, words in enumerate(said) if "failed" in words]
    if failed:
        return json.dumps({"failed": failed})
    if len({line for _, line in pairs}) > 1:
        difference = first_odd_fact([read[line] for _, line in pairs])
        if difference is not None:
            return json.dumps({"difference": difference})
    shares = [words["share"] for words in said]
    delivered = [words["delivered"] for words in said]
    has_shares = any(share is not None for share in shares)
    return json.dumps(
        {
            "shares": shares if has_shares else None,
            "most": max(delivered),
            "first": delivered[0],
        },
        separators=(",", ":"),
    )


def _make_late_error(
    error: PeerTimeoutError, peers: Peers, late: list[int], what: str
) -> PeerTimeoutError:
    msg = (
        f"Expected all workers to {what}, but {named_workers(late, peers.names)} did not come "
        f"({peers.describe(late)}). Every worker must call iter() on the same datasets in the "
        "same order, and leave a loop at the same step (did this worker break out of its loop "
        "alone?); raise InputOptions.timeout if it is only slow, for example in an evaluation."
    )
    error = PeerTimeoutError(msg, error.workers)
    return refer(error, "docs/errors.md#a-rank-that-does-not-come")


def _check_prepared(verdict: dict[str, Any], names: Sequence[str]) -> None:
    if "failed" in verdict:
        failed = [f"{names[worker]}: {words}" for worker, words in verdict["failed"]]
        msg = f"Expected all workers to open their data, but {'; '.join(failed)}"
        raise PeerFailedError(msg)


def first_odd_fact(
    shown: Sequence[Mapping[K, object]],
) -> tuple[K, object, object, int, list[int]] | None:
    """The first fact that differs: the first value and another, and the workers that have them."""
    for fact in dict.fromkeys(fact for facts in shown for fact in facts):
        values = {worker: facts.get(fact) for worker, facts in enumerate(shown)}
        known = {worker: value for worker, value in values.items() if value != NOT_KNOWN}
        first = next(iter(known), 0)
        odd = [worker for worker, value in known.items() if value != known[first]]
        if odd:
            return fact, values[first], values[odd[0]], first, odd
    return None


def _check_equal(verdict: dict[str, Any], name: str, names: Sequence[str] | None) -> None:
    """Name the first fact that differs, and the workers that differ from the first one."""
    if "difference" in verdict:
        fact, expected, other, first, odd = verdict["difference"]
        cure = next((cure for start, cure in _CURES.items() if fact.startswith(start)), _CURE)
        msg = (
            f"Expected the same {fact} on all workers when {name} is iterated, got "
            f"{expected!r} on {named_workers([first], names)} and {other!r} on "
            f"{named_workers(odd, names)}. {cure}"
        )
        raise MismatchError(msg)
