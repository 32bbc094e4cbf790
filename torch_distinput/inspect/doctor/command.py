"""``torch-distinput doctor train.py``: runs a script, and says what its loaders do."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch_distinput.inspect.doctor.watching.loader_watch import (
    EnoughSeenError,
    LoaderWatch,
)
from torch_distinput.inspect.doctor.watching.session import DoctorSession
from torch_distinput.rendering.units import show_count


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
        "--steps", type=_count, default=50, metavar="N",
        help="stop when a loader has delivered so many batches on this rank (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--records", type=_folder, metavar="FOLDER",
        help="where ranks leave what they saw: a shared folder, if there are several machines",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=_seconds, default=60.0, metavar="SECONDS",
        help="end a rank that fetches nothing for so long after others have ended (%(default)s)",
    )  # fmt: skip
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT", help="what Python would be started with")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments"
    )
    parser.set_defaults(run=run_doctor)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"expected a number of steps, 1 or more, got {text!r}; leave it out for 50"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _folder(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        msg = f"expected a folder, or a path where one can be made, got {text!r} ({error})"
        raise argparse.ArgumentTypeError(msg) from error
    return folder


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        msg = f"expected seconds, more than 0, got {text!r}; leave it out for 60"
        raise argparse.ArgumentTypeError(msg)
    return seconds


def run_doctor(arguments: argparse.Namespace) -> int:
    """Run the script, report on rank 0, and return the script's exit status."""
    session = DoctorSession(
        rank=int(os.environ.get("RANK", "0")),
        num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
        steps=arguments.steps,
        patience=arguments.patience,
        folder=arguments.records or _path_of_job(),
    )
    with session.watched():
        ended = _run_script(arguments, session.watch)
    session.finish(ended.outcome)
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
            return _of_error(error)
    if watch.has_seen_enough:
        steps = show_count(arguments.steps, "step")
        return Ended(outcome=f"stopped after {steps}, as asked", status=0)
    return Ended(outcome="ran to the end", status=0)


def _of_exit(end: SystemExit) -> Ended:
    if end.code is not None and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)  # noqa: T201 - as Python does
        return Ended(outcome=f"exited: {end.code}"[:200], status=1)
    return Ended(outcome=f"exited with status {end.code or 0}", status=end.code or 0)


def _of_error(error: BaseException) -> Ended:
    message = f": {error}" if str(error) else ""
    # What a shell is told of a Python that Ctrl-C has ended: 128 and the number of SIGINT.
    status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return Ended(outcome=f"raised {type(error).__name__}{message}"[:200], status=status)


def _path_of_job() -> Path:
    """A folder that the ranks of this job on this machine agree on without talking."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    job = "-".join(os.environ.get(name, "") for name in names)
    user = os.environ.get("USER", "") or str(getattr(os, "getuid", int)())
    return Path(tempfile.gettempdir()) / f"torch-distinput-doctor-{user}-{os.getppid()}-{job}"
