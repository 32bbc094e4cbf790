"""simulate: what a run leaves in memory while it goes on."""

from __future__ import annotations

from functools import partial

import torch

from torch_distinput.testing import simulate


def kept_after(num_steps, strategy):
    for _ in range(num_steps):
        strategy.reduce("sum", torch.zeros(1000))
    strategy._session.communicator.join("all are here", "", "".join, timeout=60)
    wire = strategy._session.communicator._wire
    with wire.changed:
        return sum(len(value) for shown in wire.shown.values() for value in shown.values())


def test_a_long_run_keeps_no_more_than_a_short_one() -> None:
    """What all workers have read is let go."""
    for num_steps in (1, 50):
        kept = simulate(partial(kept_after, num_steps), num_workers=2)
        assert max(kept) < 1000
