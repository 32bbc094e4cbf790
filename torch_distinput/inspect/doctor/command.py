"""``torch-distinput doctor train.py``: runs a script, and says what its loaders do."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch_distinput.inspect.doctor.explanation import Explanation
from torch_distinput.inspect.doctor.watching.loader_watch import (
    EnoughSeenError,
    LoaderWatch,
    watching,
)
from torch_distinput.inspect.doctor.watching.record_folder import RecordFolder, guarded
from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.seen_verdicts import explain_records


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a script came to its end."""

    outcome: str
    status: int


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Tell the command line what ``doctor`` takes."""
    parser.description = (
        "Runs a script with its DataLoaders observed, alone or under torchrun (torchrun ... -m "
        "torch_distinput doctor train.py), and says what they repeat, drop, read several times, "
        "and how long the script waits for them."
    )
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N",
        help="stop when a loader has delivered so many batches on this rank (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER",
        help="where ranks leave what they saw: a shared folder, if there are several machines",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS",
        help="end a rank that fetches nothing for so long after others have ended (%(default)s)",
    )  # fmt: skip
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT", help="what Python would be started with")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments"
    )
    parser.set_defaults(run=run_doctor)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Run the script, report on rank 0, and return the script's exit status.

    Raises:
        ValueError: for counts that are none.
    """
    if arguments.steps < 1 or arguments.patience <= 0:
        msg = (
            f"Expected --steps of 1 or more and --patience above 0, got {arguments.steps} and "
            f"{arguments.patience}. Leave them out for 50 steps and 60 seconds."
        )
        raise ValueError(msg)
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    watch = LoaderWatch(num_ranks=num_ranks, steps=arguments.steps)
    folder = None
    with ExitStack() as stack:
        stack.enter_context(watching(watch))
        if num_ranks > 1:
            path = arguments.records or _path_of_job()
            folder = RecordFolder(path, rank=rank, num_ranks=num_ranks, patience=arguments.patience)
            outcome = "waits for ranks that have ended"

            def give_up() -> None:
                _finish(folder, _record(watch, rank, num_ranks, outcome))

            stack.enter_context(
                guarded(folder, last_moment=lambda: watch.last_moment, give_up=give_up)
            )
        ended = _run_script(arguments, watch)
    _finish(folder, _record(watch, rank, num_ranks, ended.outcome))
    return ended.status


def _run_script(arguments: argparse.Namespace, watch: LoaderWatch) -> Ended:
    """Run it as Python would: as ``__main__``, with its own arguments."""
    script = arguments.script
    sys.argv = [script, *arguments.arguments]
    try:
        if arguments.is_module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    except EnoughSeenError:
        pass
    except SystemExit as end:
        if not watch.has_seen_enough:
            return _of_exit(end)
    except BaseException as error:  # noqa: BLE001 - the report comes also then
        if not watch.has_seen_enough:
            traceback.print_exc()
            return Ended(outcome=f"raised {type(error).__name__}: {error}"[:200], status=1)
    if watch.has_seen_enough:
        return Ended(outcome=f"stopped after {arguments.steps} steps, as asked", status=0)
    return Ended(outcome="came to its end", status=0)


def _of_exit(end: SystemExit) -> Ended:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)  # noqa: T201 - as Python does
        return Ended(outcome=f"exited: {end.code}"[:200], status=1)
    return Ended(outcome=f"exited with status {end.code or 0}", status=end.code or 0)


def _record(watch: LoaderWatch, rank: int, num_ranks: int, outcome: str) -> RankRecord:
    return RankRecord(rank=rank, num_ranks=num_ranks, outcome=outcome, loaders=watch.records())


def _finish(folder: RecordFolder | None, record: RankRecord) -> None:
    """Bring the ranks together; the first of them reports."""
    if folder is None:
        print(write_report([record]))  # noqa: T201 - a command's result
        return
    folder.leave(record)
    if record.rank:
        folder.wait_for_report()
        return
    print(write_report(folder.wait_for_records()), flush=True)  # noqa: T201
    folder.mark_reported()


def write_report(records: list[RankRecord]) -> str:
    """Return what is printed of all ranks."""
    explained: list[Explanation] = explain_records(records)
    parts = ["", "torch-distinput doctor", *_outcomes(records)]
    for explanation in explained:
        parts += ["", str(explanation)]
    if not explained:
        parts += ["", "No DataLoader delivered a batch in these processes."]
    return "\n".join(parts)


def _outcomes(records: list[RankRecord]) -> list[str]:
    """One line for ranks that ended alike, and for those of which there is no record."""
    num_ranks = records[0].num_ranks if records else 0
    if num_ranks == 1:
        return [f"The script {records[0].outcome}."]
    found: dict[str, list[int]] = {}
    for record in records:
        found.setdefault(record.outcome, []).append(record.rank)
    missing = sorted(set(range(num_ranks)) - {record.rank for record in records})
    if missing:
        found["left no record (killed, or on a machine without the same --records)"] = missing
    return [
        f"Rank{'s' * (len(ranks) > 1)} {_list(ranks)}: {outcome}."
        for outcome, ranks in found.items()
    ]


def _list(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _path_of_job() -> Path:
    """A folder that the ranks of this job on this machine agree on without talking."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    job = "-".join(os.environ.get(name, "") for name in names)
    user = os.environ.get("USER", "") or str(getattr(os, "getuid", int)())
    return Path(tempfile.gettempdir()) / f"torch-distinput-doctor-{user}-{os.getppid()}-{job}"
