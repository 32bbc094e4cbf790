"""The processes behind `run_ranks`, seen from outside: start, hand out jobs, watch, end."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from torch_distinput.errors import make_system_error
from torch_distinput.testing import rank_process
from torch_distinput.testing.rank_process import Answer, Job

_PRELOAD = [
    *("torch", "torch.distributed", "torch._dynamo"),
    *("torch_distinput.distribute.strategies", "torch_distinput.cluster.launch"),
    rank_process.__name__,
]
_START_SECONDS = 120.0  # to start the processes and to import fn's module: not fn's own time
_GRACE_SECONDS = 5.0  # for a rank that was told to end
_LAST_SECONDS = 30.0  # for one that a signal ends, or has ended: at once, if a core is free
_STILLBORN = (
    "exit code {}. Its own output says why. A script that calls run_ranks needs "
    "if __name__ == '__main__':, because each rank imports it.\n{}"
)

_Answers = dict[int, Answer | None]
"""What the ranks said: None for one that died, no entry for one that is late."""


class RankError(RuntimeError):
    """A rank failed or died. The original exception, where it could be pickled, is the cause."""

    def __init__(
        self, message: str, *, worker: int, exitcode: int | None = None, remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.exitcode = exitcode
        self.remote_traceback = remote_traceback


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """How a job ended on one rank."""

    worker: int
    """The rank, which is its worker index."""
    result: Any = None
    """What the function returned."""
    error: BaseException | None = None
    """What it raised. A `RankError` if that does not pickle or the rank died, a `TimeoutError` if
    the rank was late."""
    exitcode: int | None = None
    """The exit code of a rank that died, for instance -9 (SIGKILL)."""
    remote_traceback: str = ""
    """The traceback on the rank; if it was late, what its threads were doing."""
    late: bool = False
    """Whether the rank was still busy when the time was up."""


class _Rank:
    """The parent's end of one rank process."""

    def __init__(self, index: int, folder: Path) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            cure = "Test with torch_distinput.testing.simulate, whose workers are threads."
            raise make_system_error("run_ranks", "a fork server", cure)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.index = index
        self._dump = folder / f"rank-{index}"
        self._connection, theirs = context.Pipe()
        # Not a daemon: those may not have children, and fn may start loader processes.
        self._process = context.Process(
            target=rank_process.serve,
            args=(theirs, index, str(self._dump)),
            name=f"rank-{index}",
            daemon=False,
        )
        self._process.start()
        theirs.close()

    @property
    def signs(self) -> tuple[Connection, int]:
        """What becomes ready when the rank answers or dies."""
        return self._connection, self._process.sentinel

    def is_idle(self) -> bool:
        """Whether the rank lives; its end of the pipe closes before its exit code is known."""
        return self._process.is_alive() and not self._connection.poll()

    def send(self, job: Job | None) -> None:
        with suppress(OSError):  # it is dead: seen when its answer is awaited
            self._connection.send(job)

    def receive(self) -> Answer | None:
        """Take the answer that has come; None means that the rank is dead."""
        try:
            return cast(Answer, self._connection.recv()) if self._connection.poll() else None
        except (EOFError, OSError):
            return None

    def abort(self) -> None:
        """End a rank that is late, in the way that makes it write down what it was doing."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGABRT)

    def last_words(self) -> tuple[int | None, str]:
        """Wait for the end of the rank: its exit code, and the stacks if a signal ended it."""
        self._process.join(_LAST_SECONDS)
        text = self._dump.read_text(errors="replace") if self._dump.exists() else ""
        return self._process.exitcode, text.partition("\nExtension modules:")[0].strip()

    def end(self, grace: float) -> None:
        """Leave nothing of the rank: neither the process nor any that it started."""
        self._process.join(grace)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()

    @property
    def _pid(self) -> int:
        return cast(int, self._process.pid)


class RankPool:
    """The ranks of this process: started when needed, used again, new ones after a failure."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Own no rank: the state at the start, and in a fork of this process."""
        self._lock = threading.Lock()
        self._ranks: list[_Rank] = []
        self._folder = ""
        self._job_numbers = itertools.count()

    def run(self, call: bytes, num_workers: int, timeout: float) -> list[RankOutcome]:
        """Run one job; the outcomes in order of time, the late last."""
        well = False
        with self._lock:
            try:
                ranks = self._started(num_workers)
                job = self._job(call, num_workers, timeout)
                outcomes = _outcomes(ranks, _answers(ranks, job), timeout)
                well = all(outcome.error is None for outcome in outcomes)
            finally:
                if not well:
                    self._end(grace=0)
        return outcomes

    def close(self) -> None:
        """End all ranks."""
        with self._lock:
            for rank in self._ranks:
                rank.send(None)
            self._end(_GRACE_SECONDS)

    def _started(self, num_workers: int) -> list[_Rank]:
        if not all(rank.is_idle() for rank in self._ranks):
            self._end(grace=0)  # something else ended an idle rank
        self._folder = self._folder or tempfile.mkdtemp(prefix="run-ranks-")
        missing = range(len(self._ranks), num_workers)
        self._ranks += [_Rank(index, Path(self._folder)) for index in missing]
        new = self._ranks[missing.start :]
        _require("start", new, _collect(new, time.monotonic() + _START_SECONDS))
        return self._ranks[:num_workers]

    def _job(self, call: bytes, num_workers: int, timeout: float) -> Job:
        return Job(
            call=call,
            world_size=num_workers,
            # A file that no job had before. Not a TCPStore: it asks the name service for the name
            # of every peer, which takes 5 s where no name service answers.
            store_path=str(Path(self._folder) / f"store-{next(self._job_numbers)}"),
            timeout=timeout,
            start_method=multiprocessing.get_start_method(allow_none=True),
            path=sys.path,
            directory=str(Path.cwd()),
            environment=dict(os.environ),
        )

    def _end(self, grace: float) -> None:
        for rank in self._ranks:
            rank.end(grace)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ranks, self._folder = [], ""


def _answers(ranks: Sequence[_Rank], job: Job) -> _Answers:
    """Have the ranks run one job."""
    for rank in ranks:
        rank.send(job)
    loaded = _collect(ranks, time.monotonic() + _START_SECONDS)
    _require("load fn, which has to be in a module that others can import", ranks, loaded)
    deadline = time.monotonic() + job.timeout
    answers = _collect(ranks, deadline)
    if any(_went_wrong(answers.get(rank.index)) for rank in ranks):
        return answers
    left = _collect(ranks, deadline)
    return {i: answer if _went_wrong(answer) else answers[i] for i, answer in left.items()}


def _collect(ranks: Sequence[_Rank], deadline: float) -> _Answers:
    """Take one answer from each rank until the deadline."""
    answers: _Answers = {}
    while pending := {rank.index: rank for rank in ranks if rank.index not in answers}:
        signs = [sign for rank in pending.values() for sign in rank.signs]
        ready = wait(signs, max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        answers |= {
            i: rank.receive() for i, rank in pending.items() if not {*rank.signs}.isdisjoint(ready)
        }
    return answers


def _went_wrong(answer: Answer | None) -> bool:
    return answer is None or answer.failed


def _require(stage: str, ranks: Sequence[_Rank], answers: _Answers) -> None:
    """Raise for the first rank that did not get through a stage before fn."""
    for rank in ranks:
        answer = answers.get(rank.index)
        if answer is not None and not answer.failed:
            continue
        if rank.index not in answers:
            rank.abort()
        said = answer.remote_traceback if answer else _STILLBORN.format(*rank.last_words())
        raise RankError(
            f"worker {rank.index} could not {stage}.\n{said}",
            worker=rank.index,
            remote_traceback=said,
        )


def _outcomes(ranks: Sequence[_Rank], answers: _Answers, timeout: float) -> list[RankOutcome]:
    late = [rank for rank in ranks if rank.index not in answers]
    for rank in late:  # all at once: the end of one is not to wake up another
        rank.abort()
    said = {i: _outcome(ranks[i], answer, len(ranks)) for i, answer in answers.items()}
    in_order = sorted(said, key=lambda i: _time(answers[i], said[i].exitcode))
    return [said[i] for i in in_order] + [_late(rank, len(ranks), timeout) for rank in late]


def _time(answer: Answer | None, exitcode: int | None) -> float:
    """When a rank was through with fn, by the clock that all processes share.

    Nobody knows when a rank died. It comes first, since its peers fail of it. An abort comes last:
    gloo aborts a rank when a peer has left in the middle of an operation.
    """
    if answer is not None:
        return answer.at
    return math.inf if exitcode == -signal.SIGABRT else -math.inf


def _outcome(rank: _Rank, answer: Answer | None, num_workers: int) -> RankOutcome:
    if answer is None:
        return _dead(rank, num_workers)
    if not answer.failed:
        result = pickle.loads(answer.payload)  # noqa: S301  # made by our own rank
        return RankOutcome(worker=rank.index, result=result)
    said = answer.remote_traceback
    error: BaseException = RankError(
        f"worker {rank.index} of {num_workers} raised {said.splitlines()[-1]}",
        worker=rank.index,
        remote_traceback=said,
    )
    if answer.payload:
        error = pickle.loads(answer.payload)  # noqa: S301  # made by our own rank
    return RankOutcome(worker=rank.index, error=error, remote_traceback=said)


def _dead(rank: _Rank, num_workers: int) -> RankOutcome:
    exitcode, stacks = rank.last_words()
    signal_name = f" ({signal.Signals(-exitcode).name})" if exitcode and exitcode < 0 else ""
    error = RankError(
        f"worker {rank.index} of {num_workers} died with exit code {exitcode}{signal_name} in the "
        "middle of the job.",
        worker=rank.index,
        exitcode=exitcode,
        remote_traceback=stacks,
    )
    return RankOutcome(worker=rank.index, error=error, exitcode=exitcode, remote_traceback=stacks)


def _late(rank: _Rank, num_workers: int, timeout: float) -> RankOutcome:
    _, stacks = rank.last_words()
    error = TimeoutError(
        f"worker {rank.index} of {num_workers} had not answered after {timeout:g} s. It was here:\n"
        f"{stacks}"
    )
    return RankOutcome(worker=rank.index, error=error, remote_traceback=stacks, late=True)
