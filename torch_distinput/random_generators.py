"""The generators of torch, NumPy and Python that a process has once: forked, and seeded.

Who writes and reads what:

    thread                            writes                                   guarded by
    any that iterates a sampler, or   the generators of torch, NumPy, Python   "random generators"
    fetches examples to compare them
    simulated workers (threads)       the same                                 the same
    a closure that makes a module     the same                                 nothing: its process
                                                                               runs one at a time

Who needs a dataset of the user's at an epoch (``AtEpoch``), too, takes that first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from torch_distinput.threads import named_lock


@contextmanager
def forked_generators(patience: float = -1) -> Iterator[None]:
    """Put the generators of torch (the CPU's), NumPy and Python back after what is drawn here.

    Raises:
        TimeoutError: another thread has not given them back within ``patience`` seconds.
    """
    # They belong to the process: simulated workers, which are threads, take turns.
    lock = named_lock("random generators")
    if not lock.acquire(timeout=patience):
        msg = f"another thread has had the random generators for {patience} s"
        raise TimeoutError(msg)
    try:
        with put_back_generators():
            yield
    finally:
        lock.release()


@contextmanager
def put_back_generators() -> Iterator[None]:
    """The same without a turn, around code that may itself need one."""
    with torch.random.fork_rng(devices=[]):
        python_state = random.getstate()
        numpy_state = np.random.get_state()  # noqa: NPY002 - samplers draw from it
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def seeded_generators(key: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Seed them alike on all ranks, and put them back after what is drawn here."""
    with forked_generators():
        seed_generators(key)
        yield


def seed_generators(key: tuple[int, int]) -> None:
    """Seed the generators of torch (the CPU's), NumPy and Python."""
    words = np.random.SeedSequence(key).generate_state(3, dtype=np.uint32).tolist()
    # Not torch.manual_seed, which seeds those of accelerators too: nobody puts them back.
    torch.default_generator.manual_seed(words[0])
    np.random.seed(words[1])  # noqa: NPY002
    random.seed(words[2])
