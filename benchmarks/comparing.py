"""What got slower since figures were last kept.

Like is compared with like: a quick run with the quick run that was kept, a full one with the full
one. Where no quick run was kept there are only the figures of more data, of which ratios to the
floor are compared, and times are not. What another machine measured is not judged at all.

    kept     |----from=====to----|
    now                                     |----from=====to----|
                            |<- spreads ->| ^ slower: the median is beyond both
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from measuring import Figure, rounded

QUICK = "quick"
"""Where the results of quick runs are among those kept."""

Run = Mapping[str, Any]
"""A machine, and the rows of figures of each script."""

NOT_INSTALLED = "not installed"
"""The version of a package that is not there: its own cases are missing, all others are not."""

NOTHING: Run = {"machine": {}, "scripts": {}}
"""A run before the first one."""


@final
@dataclass(frozen=True, kw_only=True)
class Pair:
    """One figure then and now."""

    kept: Figure
    now: Figure

    @property
    def spread(self) -> float:
        """How far the rounds were apart, then and now together."""
        return self.kept.high - self.kept.low + self.now.high - self.now.low

    @property
    def is_slower(self) -> bool:
        """Whether it takes more than then, by more than the spread."""
        return self.now.value > self.kept.high + self.spread


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was compared, and what could not be.

    Attributes:
        pairs: figures that are there then and now, and alike.
        other_data: how many figures are times of less data than those kept.
        new: how many were not kept.
        gone: how many were kept, and are not measured any more by the same scripts.
        differences: what is not as it was on the machine; where there is one, nothing is judged.
    """

    pairs: tuple[Pair, ...]
    other_data: int
    new: int
    gone: int
    differences: tuple[str, ...]

    @property
    def slower(self) -> tuple[Pair, ...]:
        """What got slower; nothing on another machine."""
        return () if self.differences else tuple(pair for pair in self.pairs if pair.is_slower)

    def __str__(self) -> str:
        """The table of what got slower, then what was looked at."""
        ours = sum(pair.now.is_ours for pair in self.slower)
        found = f"{len(self.slower)} of {len(self.pairs)} figures got slower, {ours} of them ours."
        if self.differences:
            found = f"Kept on another machine, nothing is judged: {'; '.join(self.differences)}."
        left_out = {
            "are times of less data than was kept": self.other_data,
            "are new": self.new,
            "were kept and not measured": self.gone,
        }
        said = [f"{count} {what}." for what, count in left_out.items() if count]
        return "\n".join([*_table(self.slower), " ".join([found, *said])])


def compare(kept: Mapping[str, Any], now: Run, *, is_quick: bool) -> Comparison:
    """Compare a run with the last one of its kind.

    Args:
        kept: all results that were kept.
        now: what was measured, perhaps by some of the scripts.
        is_quick: whether it was a quick run.
    """
    is_alike = not is_quick or QUICK in kept
    before = kept[QUICK] if is_quick and is_alike else kept
    found, measured = _figures(before, now["scripts"]), _figures(now, now["scripts"])
    both = [name for name in measured if name in found]
    alike = [name for name in both if is_alike or measured[name].unit == "ratio"]
    return Comparison(
        pairs=tuple(Pair(kept=found[name], now=measured[name]) for name in alike),
        other_data=len(both) - len(alike),
        new=len(measured) - len(both),
        gone=len(found) - len(both),
        differences=_differences(before["machine"], now["machine"]),
    )


def join_kept(
    kept: Mapping[str, Any], now: Run, *, is_quick: bool, is_part: bool
) -> dict[str, Any]:
    """All results to keep, with those of a run in the place of the last one of its kind.

    Args:
        kept: all results so far.
        now: what was measured.
        is_quick: whether it was a quick run.
        is_part: whether some of the scripts ran; what the others measured stays.
    """
    before = kept.get(QUICK, NOTHING) if is_quick else kept
    run = dict(now)
    if is_part:
        run["machine"] = {**now["machine"], **before["machine"]}
        run["scripts"] = {**before["scripts"], **now["scripts"]}
    if is_quick:
        return {**kept, QUICK: run}
    return {**run, **{name: kept[name] for name in kept if name == QUICK}}


def _figures(run: Run, scripts: Mapping[str, Any]) -> dict[tuple[str, ...], Figure]:
    """The figures of some scripts; one in another unit is another one."""
    rows = [(script, Figure(**row)) for script in scripts for row in run["scripts"].get(script, [])]
    return {(script, one.workload, one.case, one.unit): one for script, one in rows}


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What both say of the machine, each in another way."""
    unknown = (None, NOT_INSTALLED)
    return tuple(
        f"{name} {fact}, now {now[name]}"
        for name, fact in before.items()
        if fact not in unknown and now.get(name) not in (*unknown, fact)
    )


def _table(pairs: tuple[Pair, ...]) -> list[str]:
    rows = [
        f"| {pair.now.workload} | {pair.now.case} | {rounded(pair.kept.value)} "
        f"| {rounded(pair.now.value)} | {rounded(pair.spread)} "
        f"| {'' if pair.now.unit == 'ratio' else pair.now.unit} |"
        for pair in pairs
    ]
    head = ["| slower: workload | case | kept | now | spread | |", "|---|---|---:|---:|---:|---|"]
    return [*head, *rows, ""] if rows else []
