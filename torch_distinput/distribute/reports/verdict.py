"""Which rank holds up the steps, and at which station: one rule, on numbers alone.

1. Fewer than 5 steps on some rank: unknown.
2. The rank that waits longest for its own input (source, decode, collate and copy; not for other
   ranks). If that is 10 % of its step or more, the run is input-bound on that rank, at the station
   for which it waits longest. The others wait for it in the agreement, or in their own step (as in
   an all-reduce), if they spend at least half of its wait there, beyond what it spends there
   itself.
3. Else the rank that waits longest for the agreement. If that is 10 % of its step or more, it waits
   for other ranks.
4. Else the run is bound by your step; on the rank whose step is longest, if it is longer than the
   median of the others by 10 % of its step or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from torch_distinput.distribute.reports.rank_times import RankTimes
from torch_distinput.meter import AGREEMENT, INPUT_STATIONS, YOUR_STEP

_MIN_STEPS = 5
_LEAST_SHARE = 0.1
"""Of a step: what is less is no reason to change anything."""
_SAID_SHARE = 0.01

Bound = Literal["input", "agreement", "your step", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputVerdict:
    """What holds up the steps, from :class:`RunReport`; ``str()`` says it in a sentence.

    Attributes:
        bound: ``"input"``: a rank waits for its input. ``"agreement"``: it waits for other ranks'
            steps. ``"your step"``: no rank waits long for either. ``"unknown"``: too few steps.
        rank: of which rank it is true most of all; None where none stands out.
        station: where.
        share: what part of its step that takes, from 0 to 1.
        input_share: what part of it waits for the rank's own input, at whatever station.
        ranks: all ranks of which it is true.
        others_wait_in: where the other ranks wait for it: ``"agreement"``, ``"your step"``, or
            None: nowhere that can be seen.
        num_ranks: ranks there are.
        has_device: the share is of the host's time, and so the most that it can be of the device's.
    """

    bound: Bound
    rank: int | None = None
    station: str | None = None
    share: float = 0.0
    input_share: float = 0.0
    ranks: tuple[int, ...] = ()
    others_wait_in: str | None = None
    num_ranks: int = 1
    has_device: bool = False

    def __str__(self) -> str:
        """Say it in a sentence or two."""
        if self.bound == "unknown":
            return (
                f"Not known yet: a verdict needs {_MIN_STEPS} steps beside the first and the last "
                "one, of every rank."
            )
        said = {"input": self._say_input, "agreement": self._say_agreement}
        return said.get(self.bound, self._say_own)() + (_ASYNCHRONOUS if self.has_device else "")

    def _say_input(self) -> str:
        others = ""
        if self.others_wait_in is not None:
            others = f"; the others wait for it in {_PLACES[self.others_wait_in]}"
        more = self.input_share - self.share
        all_input = f", and {more:.0%} for the rest of its input" if more >= _SAID_SHARE else ""
        many = f" ({len(self.ranks)} of {self.num_ranks} ranks are)" if len(self.ranks) > 1 else ""
        return (
            f"Input-bound on rank {self.rank}{many}: {self.share:.0%} of its step waits for "
            f"{_STATION_NAMES[self.station or '']}{all_input}{others}."
        )

    def _say_agreement(self) -> str:
        return (
            f"Bound by the agreement: {self.share:.0%} of the step of rank {self.rank} waits until "
            "all ranks have agreed on it, and not for its own input."
        )

    def _say_own(self) -> str:
        said = f"Not input-bound: no rank waits {_LEAST_SHARE:.0%} of its step for its input"
        if self.rank is None:
            return f"{said}."
        return f"{said}; your own step is longest on rank {self.rank}, by {self.share:.0%} of it."


_STATION_NAMES = {
    "source": "the source",
    "decode": "decoding",
    "collate": "collating",
    "copy": "the copy to the device",
}
_PLACES = {AGREEMENT: "the agreement", YOUR_STEP: "their own step, as in an all-reduce"}
_ASYNCHRONOUS = (
    " These are times of the host; a device that still has work queued waits less, or not at all."
)


def judge(ranks: Sequence[RankTimes]) -> InputVerdict:
    """Judge the times of all ranks, by the rule above."""
    facts = {"num_ranks": len(ranks), "has_device": any(times.has_device for times in ranks)}
    if not ranks or min(times.num_steps for times in ranks) < _MIN_STEPS:
        return InputVerdict(bound="unknown", **facts)  # type: ignore[arg-type]
    bound = _find_input(ranks) or _find_agreement(ranks) or _find_own(ranks)
    return InputVerdict(**bound, **facts)  # type: ignore[arg-type]


def _find_input(ranks: Sequence[RankTimes]) -> dict[str, object] | None:
    worst = max(ranks, key=lambda times: times.input_wait)
    share = worst.input_wait / worst.step if worst.step else 0.0
    if share < _LEAST_SHARE:
        return None
    bound = tuple(t.rank for t in ranks if t.step and t.input_wait / t.step >= _LEAST_SHARE)
    station = max(INPUT_STATIONS, key=lambda name: worst.waits[name])
    return {
        "bound": "input", "rank": worst.rank, "station": station, "share": worst.share(station),
        "input_share": share, "ranks": bound,
        "others_wait_in": _where_others_wait(worst, [t for t in ranks if t.rank not in bound]),
    }  # fmt: skip


def _where_others_wait(worst: RankTimes, others: Sequence[RankTimes]) -> str | None:
    if not others:
        return None
    enough = worst.input_wait / 2
    agreement = median(times.waits[AGREEMENT] for times in others)
    if agreement - worst.waits[AGREEMENT] >= enough:
        return AGREEMENT
    longer = median(times.own_step for times in others) - worst.own_step
    return YOUR_STEP if longer >= enough else None


def _find_agreement(ranks: Sequence[RankTimes]) -> dict[str, object] | None:
    worst = max(ranks, key=lambda times: times.waits[AGREEMENT])
    if worst.share(AGREEMENT) < _LEAST_SHARE:
        return None
    bound = tuple(times.rank for times in ranks if times.share(AGREEMENT) >= _LEAST_SHARE)
    share = worst.share(AGREEMENT)
    return {
        "bound": "agreement", "rank": worst.rank, "station": AGREEMENT, "share": share,
        "ranks": bound,
    }  # fmt: skip


def _find_own(ranks: Sequence[RankTimes]) -> dict[str, object]:
    slowest = max(ranks, key=lambda times: times.own_step)
    others = [times.own_step for times in ranks if times is not slowest]
    longer = slowest.own_step - median(others) if others else 0.0
    if not slowest.step or longer / slowest.step < _LEAST_SHARE:
        return {"bound": YOUR_STEP, "station": YOUR_STEP}
    return {
        "bound": YOUR_STEP, "rank": slowest.rank, "station": YOUR_STEP,
        "share": longer / slowest.step, "ranks": (slowest.rank,),
    }  # fmt: skip
