"""What all benchmarks share: turns, figures, the command line, and the start of ranks.

A *floor* is the least code that does the same work. Floor and case take turns in one process, so
that whatever else the machine does slows both, and a figure is the median over rounds of what one
turn says: usually the ratio of the two. With several ranks the slowest one counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

OURS = "torch_distinput"
ROUNDS = {"full": 5, "quick": 2, "tiny": 1}

Turn = tuple[float, float]
"""Seconds of the floor, and of the case that came after it."""

warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # StatefulDataLoader calls it

T = TypeVar("T")
Measure = Callable[[argparse.Namespace], list["Figure"]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number, and what it is to be compared with.

    Attributes:
        workload: what is done; figures of one workload have one unit and can be compared.
        case: who does it: ``torch_distinput``, perhaps with a variant, or the name of a peer.
        unit: ``ratio`` to the floor, ``ns``, ``us``, ``ms``, ``MB`` or ``ppm``.
        value: the median over rounds.
        low: the smallest of a round.
        high: the largest.
        floor: what the floor took in the same rounds; None where there is none.
        floor_unit: what that number is.
        target: ours shall not be above it; None for peers.
    """

    workload: str
    case: str
    unit: str
    value: float
    low: float
    high: float
    floor: float | None = None
    floor_unit: str = ""
    target: float | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's."""
        return self.case.startswith(OURS)

    @property
    def verdict(self) -> str:
        """Whether the target is met, where there is one."""
        if self.target is None:
            return ""
        return "met" if self.value <= self.target else "missed"


# ------------------------------------------------------------------------------ turns


def seconds(work: Callable[[], object]) -> float:
    """How long it takes; on several ranks, the slowest one."""
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    work()
    return slowest(time.perf_counter() - start)


def slowest(passed: float) -> float:
    """The largest number of any rank."""
    largest = torch.tensor(passed, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def take_turns(
    floor: Callable[[], Any],
    cases: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    clock: Callable[[Callable[[], Any]], float] = seconds,
) -> dict[str, list[Turn]]:
    """Measure each case with a floor right before it, round after round, once all are warm."""
    for work in (floor, *cases.values()):
        work()
    turns: dict[str, list[Turn]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, work in cases.items():
            turns[name].append((clock(floor), clock(work)))
    return turns


def repeated(work: Callable[[], object], times: int) -> Callable[[], None]:
    """Do what is too short to be measured many times."""

    def loop() -> None:
        for _ in range(times):
            work()

    return loop


def figure(workload: str, case: str, unit: str, values: Sequence[float], **keywords: Any) -> Figure:
    """Make the figure of the values of all rounds."""
    low, value, high = min(values), statistics.median(values), max(values)
    return Figure(
        workload=workload, case=case, unit=unit, value=value, low=low, high=high, **keywords
    )


def ratios(
    workload: str,
    turns: Mapping[str, Sequence[Turn]],
    *,
    target: float | None,
    count: int,
    per: str = "example",
) -> list[Figure]:
    """A figure for each case, which handed out ``count`` things in a turn; the target is ours."""
    return [
        figure(
            workload, name, "ratio", [case / floor for floor, case in rounds],
            floor=1e6 * statistics.median(floor for floor, _ in rounds) / count,
            floor_unit=f"us per {per}", target=target if name.startswith(OURS) else None,
        )
        for name, rounds in turns.items()
    ]  # fmt: skip


def is_installed(case: str, package: str | None) -> bool:
    """Whether a case can be measured; one whose package is missing is left out, and said so."""
    if package is None or find_spec(package) is not None:
        return True
    print(f"{case} is left out: {package} is not installed", file=sys.stderr)
    return False


def installed(peers: Mapping[str, Callable[..., T]], *arguments: Any) -> dict[str, T]:
    """Make each peer; one whose package is missing is left out, and that is said."""
    made = {}
    for name, make in peers.items():
        try:
            made[name] = make(*arguments)
        except ModuleNotFoundError as missing:
            print(f"{name} is left out: {missing.name} is not installed", file=sys.stderr)
    return made


# ------------------------------------------------------------------------------ memory


def forget_peak() -> float:
    """Start a new peak of this process's memory, and return what it holds now, in MB."""
    with contextlib.suppress(OSError):  # where it is not allowed, the peak is that of all before
        Path("/proc/self/clear_refs").write_text("5")
    return _memory_mb("VmRSS")


def peak_mb() -> float:
    """The most that it has held since."""
    return _memory_mb("VmHWM")


def private_mb() -> float:
    """What it holds now that is no file's, so that no other process can share it."""
    return _memory_mb("RssAnon")


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


# ------------------------------------------------------------------------------ command line


def command_line(doc: str | None, *, rounds: Mapping[str, int] = ROUNDS) -> argparse.ArgumentParser:
    """The options that every script has; how many rounds there are depends on the size."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as a JSON list")
    parser.add_argument("--rounds", type=int, help="how often floor and case take turns")
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "less data, fewer rounds"), ("tiny", "only to see that it runs")):
        size.add_argument(
            f"--{name}", dest="size", action="store_const", const=name, default="full", help=text
        )
    parser.set_defaults(rounds_of_size=rounds)
    parser.add_argument("--write-to", help=argparse.SUPPRESS)  # makes this process a rank
    return parser


def run(
    measure: Measure,
    arguments: argparse.Namespace,
    *,
    num_ranks: Iterable[int] = (1,),
    options: Sequence[str] = (),
) -> None:
    """Measure with each number of ranks, and print; ``options`` are for the ranks besides."""
    torch.set_num_threads(1)
    if arguments.rounds is None:
        arguments.rounds = arguments.rounds_of_size[arguments.size]
    if arguments.write_to is not None:
        _measure_as_rank(measure, arguments)
        return
    figures: list[Figure] = []
    for number in num_ranks:
        figures += measure(arguments) if number == 1 else _start_ranks(number, options)
    rows = [asdict(one) for one in figures]
    print(json.dumps(rows, indent=1) if arguments.json else table(figures))


def _measure_as_rank(measure: Measure, arguments: argparse.Namespace) -> None:
    """One rank of several; the first one writes what was measured."""
    import torch_distinput as tdi

    tdi.init_distributed()
    figures = measure(arguments)
    if dist.get_rank() == 0:
        Path(arguments.write_to).write_text(json.dumps([asdict(one) for one in figures]))
    dist.destroy_process_group()


def _start_ranks(number: int, options: Sequence[str]) -> list[Figure]:
    """Run this script once more, under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={number}", *sys.argv, *options, f"--write-to={file}",
            ],
            check=True,
            stdout=sys.stderr,  # standard output is for figures alone
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return [Figure(**row) for row in json.loads(file.read_text())]


def ranks_named() -> str:
    """How many ranks measure, as a part of a workload's name."""
    number = dist.get_world_size() if dist.is_initialized() else 1
    return "1 rank" if number == 1 else f"{number} ranks"


# ------------------------------------------------------------------------------ showing


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table."""
    lines = [
        "| workload | case | figure | from | to | floor | target | |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for one in figures:
        floor = "" if one.floor is None else _with_unit(one.floor, one.floor_unit)
        target = "" if one.target is None else f"{one.target:g}"
        unit = "" if one.unit == "ratio" else f" {one.unit}"
        case = f"**{one.case}**" if one.is_ours else one.case
        lines.append(
            f"| {one.workload} | {case} | {rounded(one.value)}{unit} | {rounded(one.low)} "
            f"| {rounded(one.high)} | {floor} | {target} | {one.verdict} |"
        )
    return "\n".join(lines)


def rounded(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _with_unit(value: float, unit: str) -> str:
    if unit.startswith("us") and value >= 10_000:
        value, unit = value / 1000, f"ms{unit[2:]}"
    return f"{rounded(value)} {unit}"
