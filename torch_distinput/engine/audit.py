"""Were all examples of an epoch delivered, each once? Asked at its end, if the user wants to know.

Every worker sums a hash of the ids that it delivered; at the end of the epoch the workers show each
other their sums, and what each has worked out of what should have come. Of a stream that all of
them read that is what each has read by itself, not what they told each other on the way: they
show that first, and it must be the same stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from torch_distinput.communicator import Gone, exchange, named_workers, nobody
from torch_distinput.errors import AuditError, PeerTimeoutError
from torch_distinput.plan.progress.checksum import IdSum, Reading, find_others, sum_ids

if TYPE_CHECKING:
    from torch_distinput.communicator import Communicator
    from torch_distinput.data.stream.chunk import Ids

T = TypeVar("T")
_HELD_ROWS = 1 << 16
"""Ids are summed many at a time: a call for each step would cost more than the sums."""

Expected = Callable[[], IdSum | None]
"""The sum of this worker's share of what should be delivered; None where that is not known."""


class Audit:
    """Sums what one worker delivers."""

    def __init__(
        self,
        communicator: Communicator,
        topic: str,
        *,
        timeout: float,
        gone: Gone = nobody,
        reading: Callable[[], Reading | None],
        expected: Expected,
    ) -> None:
        """Take the way to the other workers, and to what should have come."""
        self._communicator = communicator
        self._topic = topic
        self._timeout = timeout
        self._gone = gone
        self._reading = reading
        self._expected = expected
        self._sum = IdSum()
        self._held: list[Ids] = []
        self._num_held = 0

    def add(self, ids: Iterable[Ids]) -> None:
        """Count the examples of a step."""
        for some in ids:
            self._held.append(some)
            self._num_held += len(some)
        if self._num_held >= _HELD_ROWS:
            self._flush()

    def finish(self, num_examples: int) -> None:
        """Compare at the end of the epoch, on all workers.

        Args:
            num_examples: what the steps said they had, over all replicas in sync.

        Raises:
            AuditError: on all workers; names what is wrong, and what each of them delivered.
        """
        self._flush()
        share, reading = self._expected(), self._reading()
        text = json.dumps(
            [
                astuple(self._sum),
                None if share is None else astuple(share),
                None if reading is None else reading.digest,
                int(num_examples),
            ]
        )
        join = partial(self._communicator.join, self._topic, text, _add_sums)
        found = json.loads(self._meet(join))
        if reading is not None and found["others"]:
            self._refuse_readings(reading, found["first"], found["others"])
        expected = found["expected"]
        _compare(
            _read_sum(found["got"]),
            num_examples,
            None if expected is None else _read_sum(expected),
            found["counts"],
        )

    def _refuse_readings(self, own: Reading, first: int, others: list[int]) -> NoReturn:
        """Only where they differ the workers show each other where."""
        topic, text = f"{self._topic}, what was read", json.dumps(asdict(own))
        shown = self._meet(partial(exchange, self._communicator, topic, text))
        readings = [Reading(**json.loads(one)) for one in shown]
        like, other = readings[first], readings[others[0]]
        msg = (
            "The audit of this epoch expected one stream on all workers under "
            f"AutoShardPolicy.DATA, but {named_workers(others)} read another one than worker "
            f"{first}: {_name(other.find_difference(like), like.unit)} of worker {others[0]} is "
            f"not that of worker {first}; they read {other.count} and {like.count}. Examples were "
            "lost or came twice, so do not trust what was computed from it. Let nothing in the "
            "source depend on the rank, the process or the time, or deal out files (FILE)."
        )
        raise AuditError(msg)

    def _meet(self, meet: Callable[..., T]) -> T:
        try:
            return meet(timeout=self._timeout, gone=self._gone)
        except PeerTimeoutError as error:
            if not error.workers:  # it is the store that does not answer
                raise
            msg = (
                "The audit expected all workers at the end of the epoch within "
                f"{self._timeout:g} s, but {named_workers(error.workers)} did not come. Every "
                "worker must run an audited epoch to its end, or leave it at the same step (did "
                "one break out of its loop alone?)."
            )
            raise PeerTimeoutError(msg, error.workers) from error

    def _flush(self) -> None:
        held = [ids for ids in self._held if len(ids)]
        if held:
            self._sum += sum_ids(np.concatenate(held))
        self._held, self._num_held = [], 0


def _add_sums(texts: Sequence[str]) -> str:
    """What all workers together delivered, and what they should have.

    What each of them delivered only if a message may need it.
    """
    shown = [json.loads(text) for text in texts]
    counts = [delivered[0] for delivered, _, _, _ in shown]
    got = reduce(add, (_read_sum(delivered) for delivered, _, _, _ in shown))
    shares = [share for _, share, _, _ in shown]
    expected = None if None in shares else reduce(add, map(_read_sum, shares))
    first, others = find_others([digest for _, _, digest, _ in shown])
    is_right = expected in (None, got) and {number for *_, number in shown} == {got.count}
    return json.dumps(
        {
            "got": astuple(got),
            "expected": None if expected is None else astuple(expected),
            "first": first,
            "others": others,
            "counts": [] if is_right else counts,
        }
    )


def _read_sum(numbers: Any) -> IdSum:
    count, digest = numbers
    return IdSum(count=count, digest=digest)


def _name(numbers: range, unit: str) -> str:
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    return f"one of the {unit}s {numbers[0]} to {numbers[-1]}"


def _compare(
    total: IdSum, num_examples: int, expected: IdSum | None, counts: Sequence[int]
) -> None:
    wrong, cure = None, "Look for a sampler that repeats, or for data that changed meanwhile."
    if total.count != num_examples:
        wrong = f"steps with {num_examples} examples in sync, but the replicas got {total.count}"
        cure = "The data is not at fault: please report it, with the kind of the source."
    elif expected is not None and total.count != expected.count:
        what = "lost" if total.count < expected.count else "repeated"
        number = abs(expected.count - total.count)
        wrong = f"{expected.count} examples, but {number} were {what}: {total.count} came"
    elif expected is not None and total != expected:
        wrong = f"each of {expected.count} examples once, but some came twice and others not at all"
    if wrong is not None:
        parts = ", ".join(f"worker {worker}: {count}" for worker, count in enumerate(counts))
        msg = (
            f"The audit of this epoch expected {wrong} ({parts}). Do not trust what was computed "
            f"from it. {cure}"
        )
        raise AuditError(msg)
