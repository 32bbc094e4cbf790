"""Jobs of several ranks, played one after the other, and what the doctor says of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

from torch_distinput import Explanation, Finding
from torch_distinput.inspect.doctor.watching.loader_watch import (
    EnoughSeenError,
    LoaderWatch,
    watching,
)
from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.seen_verdicts import explain_records

Script = Callable[[int, int], object]
"""What a rank plays, given its rank and the number of ranks."""


def findings(script: Script, num_ranks: int, steps: int = 1000) -> list[Finding]:
    """What the doctor finds in a job."""
    return [finding for one in said(script, num_ranks, steps) for finding in one.findings]


def said(script: Script, num_ranks: int, steps: int = 1000) -> list[Explanation]:
    """What the doctor says of each loader of a job."""
    records = []
    for rank in range(num_ranks):
        watch = LoaderWatch(num_ranks=num_ranks, steps=steps)
        torch.manual_seed(100 * rank)
        with watching(watch), suppress(EnoughSeenError):
            script(rank, num_ranks)
        loaders = watch.records()
        records.append(
            RankRecord(
                rank=rank, num_ranks=num_ranks, outcome="", was_stopped=False, loaders=loaders
            )
        )
    return explain_records(records)
