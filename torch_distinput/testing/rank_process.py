"""The inside of a rank process of `run_ranks`: wait for a job, run it in a group, answer, repeat.

Here stands what the parent and a rank say to each other: the parent sends a `Job`, the rank answers
each stage of it with an `Answer`: ready, loaded the function, ran it, left the process group.

    thread            does                                          shares
    main              reads jobs, runs them, answers                nothing
    end-with-parent   waits for the parent's end, ends the process  nothing
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from torch_distinput.data.batch.serialized import pickle_value

_LONGER_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A function to run by the ranks of a group, under the circumstances of the caller."""

    call: bytes
    world_size: int
    store_path: str
    timeout: float
    start_method: str | None
    path: list[str]
    directory: str
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A rank is through with a stage: with a pickled result, or with a pickled exception."""

    payload: bytes = b""
    failed: bool = False
    remote_traceback: str = ""
    at: float = field(default_factory=time.monotonic)


def serve(connection: Connection, rank: int, dump_path: str) -> None:
    """Serve jobs until there is none, or until the parent is gone."""
    _settle(dump_path)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection.send(Answer())
        while (job := connection.recv()) is not None:
            _work(connection, rank, job)


def _settle(dump_path: str) -> None:
    """Arrange that this process can be ended with all that it starts, and says where it was."""
    os.setpgid(0, 0)  # so that loader processes can be ended too
    watch = functools.partial(_end_with_parent, Path(dump_path).parent)
    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
    import resource  # noqa: PLC0415 - not on Windows, which has no ranks

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Fatal signals, and the SIGABRT that a late rank gets, leave all threads' stacks in this file.
    # Its descriptor is never closed: the handler writes to it.
    faulthandler.enable(os.open(dump_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    gc.freeze()  # what the fork server has preloaded is not to be collected after every job


def _end_with_parent(folder: Path) -> None:
    """Wait until the parent is gone, by a signal in the middle of a job, and do what it cannot."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _work(connection: Connection, rank: int, job: Job) -> None:
    _adopt(job, rank)
    try:
        call = cast(Callable[[], object], pickle.loads(job.call))  # noqa: S301  # our parent's
    except Exception as error:  # noqa: BLE001  # importing fn's module may raise anything
        connection.send(_failure(error))
        return
    connection.send(Answer())
    # The answer goes out before the group is left: the peers of a rank that failed see the group
    # break, and what they then say must come after the reason.
    connection.send(_attempt(functools.partial(_run, job, rank, call)))
    del call
    connection.send(_attempt(_leave))


def _attempt(stage: Callable[[], Answer]) -> Answer:
    try:
        return stage()
    except SystemExit:
        raise  # fn ends the rank: the parent reports the exit code
    except BaseException as error:  # noqa: BLE001  # pytest.fail() and the like are none of ours
        return _failure(error)


def _failure(error: BaseException) -> Answer:
    lines = traceback.format_exception(error)
    return Answer(payload=_pickled_error(error), failed=True, remote_traceback="".join(lines))


def _pickled_error(error: BaseException) -> bytes:
    """Pickle an exception, or give b"" if that cannot be done and undone."""
    try:
        pickled = pickle.dumps(error)
        # An exception whose __init__ takes other arguments than its args fails only here.
        pickle.loads(pickled)  # noqa: S301
    except Exception:  # noqa: BLE001  # the traceback is sent as text in any case
        return b""
    return pickled


def _adopt(job: Job, rank: int) -> None:
    """Take over the caller's circumstances; leave those of the job before."""
    os.chdir(job.directory)
    sys.path[:] = job.path
    os.environ.clear()
    os.environ.update(job.environment)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    # This process inherited "forkserver"; loader processes are to start as they do for the caller.
    multiprocessing.set_start_method(job.start_method, force=True)
    torch.set_num_threads(1)
    # The same in every run, and different on every rank: nothing may rely on generators in step.
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002  # the global generator is meant
    torch.manual_seed(rank)


def _run(job: Job, rank: int, call: Callable[[], object]) -> Answer:
    # The parent names who is late: no collective of another rank gives up before.
    limit = timedelta(seconds=job.timeout + _LONGER_SECONDS)
    dist.init_process_group(
        "gloo",
        store=FileStore(job.store_path, job.world_size),
        rank=rank,
        world_size=job.world_size,
        timeout=limit,
    )
    # A rank that fn lets go at once would break the group for those that still connect.
    dist.barrier()
    # By value: the shared memory behind multiprocessing's own tensors would end with the rank.
    return Answer(payload=pickle_value(call()))


def _leave() -> Answer:
    """Leave the group, after the last reference to whatever uses it is gone."""
    # A DistributedDataParallel module that is still alive can hang destroy_process_group().
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    return Answer()
