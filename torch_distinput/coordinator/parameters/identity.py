"""Whose pulls and pushes these are: the worker whose process this is, or nobody's."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who pulls and pushes.

    Attributes:
        worker: the worker's name; None in a process that is no worker, as the coordinator's.
        nonce: differs between a worker's process and the one that replaced it.
    """

    worker: str | None
    nonce: str


def token_prefix(worker: str | None) -> str:
    """How the tokens of a worker's pushes begin."""
    return f"{worker}\n"


_workers: dict[int, str] = {}
"""The worker of this process, by the process: a forked child is not its parent."""
_nonces: dict[int, str] = {}


def set_worker(name: str) -> None:
    """Say that this process is a worker's."""
    _workers[os.getpid()] = name


def current_caller() -> Caller:
    """Who this is."""
    nonce = _nonces.setdefault(os.getpid(), uuid.uuid4().hex)
    return Caller(worker=_workers.get(os.getpid()), nonce=nonce)
