"""What preprocessing.py works on, and clocks that stand still while strings are made."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from measuring import OURS, Figure, figure, seconds, take_turns

ROWS = 8192
_GOLDEN = 0x9E3779B97F4A7C15


class Size(NamedTuple):
    """How much there is."""

    batches: int
    tokens: int
    tokens_of_file: int


SIZES = {
    "full": Size(32, 100_000, 3_000_000),
    "quick": Size(8, 100_000, 1_000_000),
    "tiny": Size(1, 1000, 2000),
}

Clocked = Callable[[], float]
"""Works, and returns how many seconds that took."""
Begin = Callable[[], Callable[[Any], object]]
"""Makes what takes one batch after the other."""


class Vocabulary:
    """Distinct tokens of 8 to 16 bytes."""

    def __init__(self, count: int) -> None:
        self.tokens = [
            f"{i:x}-{(i + 1) * _GOLDEN % (1 << 64):016x}"[: 8 + i % 9] for i in range(count)
        ]
        self._text = "".join(self.tokens)
        self._ends = np.cumsum([0, *map(len, self.tokens)])

    def batches(self, places: np.ndarray) -> Iterator[list[str]]:
        """New strings; a place below 0 is none of the tokens."""
        for first in range(0, len(places), ROWS):
            chosen = places[first : first + ROWS]
            starts, ends = self._ends[chosen].tolist(), self._ends[chosen + 1].tolist()
            yield [
                self._text[start:end] if place >= 0 else f"none {place}"
                for place, start, end in zip(chosen.tolist(), starts, ends, strict=True)
            ]


def zipf(size: Size) -> np.ndarray:
    """Places of tokens, the first ones most often."""
    chances = 1 / np.arange(1, size.tokens + 1)
    return np.random.default_rng(1).choice(
        size.tokens, size.batches * ROWS, p=chances / chances.sum()
    )


def uniform(size: Size, num_tokens: int) -> np.ndarray:
    """Places of tokens, one as often as the other."""
    return np.random.default_rng(2).integers(num_tokens, size=size.batches * ROWS)


def with_others(places: np.ndarray) -> np.ndarray:
    """The places, and in 1 of 100 instead a string that is none of the tokens."""
    return np.where(np.random.default_rng(4).random(len(places)) < 0.01, -1 - places, places)


def whole(work: Callable[[Any], object], make: Callable[[], Any]) -> Clocked:
    """Work on all at once, which is made anew for it."""

    def turn() -> float:
        made = make()
        return seconds(lambda: work(made))

    return turn


def one_by_one(
    begin: Begin,
    batches: Callable[[], Iterable[Any]],
    end: Callable[[Any], object] = lambda work: None,  # noqa: ARG005
) -> Clocked:
    """Work on batches, of which each is made right before its turn, and bring it to its end."""

    def turn() -> float:
        work, passed = begin(), 0.0
        for batch in batches():
            start = time.perf_counter()
            work(batch)
            passed += time.perf_counter() - start
        return passed + seconds(lambda: end(work))

    return turn


def compared(
    workload: str,
    floor: Clocked,
    cases: Mapping[str, Clocked],
    rounds: int,
    *,
    count: int,
    per: str,
    target: float | None,
) -> list[Figure]:
    """Nanoseconds for each of ``count`` things."""
    turns = take_turns(floor, cases, rounds, clock=lambda turn: turn())
    return [
        figure(
            workload, name, "ns", [1e9 * case / count for _, case in taken],
            floor=1e9 * statistics.median(floor for floor, _ in taken) / count,
            floor_unit=f"ns per {per}", target=target if name == OURS else None,
        )
        for name, taken in turns.items()
    ]  # fmt: skip
