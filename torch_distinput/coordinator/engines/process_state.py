"""How a process of the coordinator begins: with random numbers of its own, and one thread a core.

Both engines begin theirs so. A copy of the fork server has the generators of the fork server, and
torch seeds each new process alike: workers would all shuffle in the same way, and a restarted one
as before.
"""

from __future__ import annotations

import io
import os
import random
import sys

import numpy as np
import torch


def begin_process() -> None:
    """Set what a process has once; to be called before anything of the user's runs."""
    random.seed()
    np.random.seed()  # noqa: NPY002 - the global generator is meant
    torch.seed()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun does: there are other processes on the machine
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a process has said survives its kill
