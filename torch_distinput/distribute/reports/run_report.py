"""What a run's input took, of one rank or of all: a sentence, a table, numbers, a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from torch_distinput.distribute.reports.rank_times import RankTimes, sum_up
from torch_distinput.distribute.reports.verdict import InputVerdict, judge
from torch_distinput.errors import UsageError
from torch_distinput.meter import STATIONS, YOUR_STEP

if TYPE_CHECKING:
    from torch_distinput.distribute.reports.step_log import StepLog
    from torch_distinput.distribute.session import Session

_MOST_ROWS = 16
"""Ranks in a printed table: those that wait longest for their input."""
_CURE = (
    "Pass options=InputOptions(trace=True), or trace= the path of a file, to distribute_dataset on "
    "every rank, and call iter() first."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Where the time of steps went, from ``DistributedIterator.report`` and ``Strategy.report``.

    ``str()`` is the verdict in a sentence, and a table by rank and station.

    Attributes:
        verdict: what holds up the steps.
        ranks: the times of each rank, in order.
    """

    verdict: InputVerdict
    ranks: tuple[RankTimes, ...]

    def __str__(self) -> str:
        """The verdict, and under it the table in milliseconds."""
        shown = self._shown()
        rows = [_HEADINGS, *(row_of(times) for times in shown)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        left_out = len(self.ranks) - len(shown)
        wait = "1 more rank waits" if left_out == 1 else f"{left_out} more ranks wait"
        more = f"\n({wait} less for their input)" if left_out else ""
        return f"{self.verdict}\n\nMilliseconds of a step:\n" + "\n".join(lines) + more

    def scalars(self) -> dict[str, float]:
        """The numbers to log, by name, as for ``SummaryWriter.add_scalar`` or ``wandb.log``.

        - ``input/step_ms``: the median step of the ranks, in milliseconds.
        - ``input/<station>_share``: what part of a step goes to a station, from 0 to 1, on the rank
          where that is most.
        - ``input/bound_rank``: the rank of the verdict; -1 where it names none.
        """
        rank = self.verdict.rank
        numbers = {
            f"input/{station.replace(' ', '_')}_share": max(t.share(station) for t in self.ranks)
            for station in STATIONS
        }
        step = median(times.step for times in self.ranks)
        bound_rank = -1 if rank is None else rank
        return {"input/step_ms": step * 1e3, **numbers, "input/bound_rank": bound_rank}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page: the verdict, and the way of a step with its times per rank; opens offline.

        Of a report of all ranks, one of them saves it for all.
        """
        from torch_distinput.rendering.run_report import render_report  # noqa: PLC0415 - few ask

        page = render_report(
            str(self.verdict),
            stations=STATIONS,
            ranks=[(times.rank, _seconds(times)) for times in self._shown()],
            headings=_HEADINGS,
            rows=list(map(row_of, self.ranks)),
            bound=(self.verdict.rank, self.verdict.station),
        )
        Path(path).write_text(page, encoding="utf-8")

    def _shown(self) -> list[RankTimes]:
        """All ranks, or those that wait longest for their input, in order."""
        worst = sorted(self.ranks, key=lambda times: times.input_wait, reverse=True)[:_MOST_ROWS]
        return sorted(worst, key=lambda times: times.rank)


_HEADINGS = ("rank", "steps", "step", *STATIONS)


def row_of(times: RankTimes) -> tuple[str, ...]:
    """A rank's row of the table, in milliseconds."""
    seconds = (times.step, *_seconds(times))
    return (str(times.rank), str(times.num_steps), *(f"{value * 1e3:.1f}" for value in seconds))


def _seconds(times: RankTimes) -> tuple[float, ...]:
    """What a step spends at each station."""
    return (*(times.waits[station] for station in STATIONS if station != YOUR_STEP), times.own_step)


def report_log(session: Session, log: StepLog | None) -> RunReport:
    """The report of this rank."""
    if log is None:
        msg = f"Expected a dataset whose steps are measured, got one without. {_CURE}"
        raise UsageError(msg)
    return _report([_sum_up(session, log)])


def report_all(session: Session) -> RunReport:
    """The report of all ranks; each of them calls it."""
    own = None if session.step_log is None else _sum_up(session, session.step_log)
    found = session.communicator.gather_objects(own)
    silent = [rank for rank, times in enumerate(found) if times is None]
    if silent:
        who = f"rank {silent[0]}" if len(silent) == 1 else f"{len(silent)} ranks, {silent[0]} first"
        msg = f"Expected steps that are measured on all ranks, got none on {who}. {_CURE}"
        raise UsageError(msg)
    return _report(found)


def _report(ranks: Sequence[RankTimes]) -> RunReport:
    return RunReport(verdict=judge(ranks), ranks=tuple(ranks))


def _sum_up(session: Session, log: StepLog) -> RankTimes:
    has_device = any(device.type != "cpu" for device in session.devices)
    return sum_up(log, session.topology.worker_index, has_device=has_device)
