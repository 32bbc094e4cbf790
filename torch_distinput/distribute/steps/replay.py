"""One step of all replicas, read again on one rank alone."""

from __future__ import annotations

from torch_distinput.engine.feeds import SourceTurn
from torch_distinput.engine.input import Input
from torch_distinput.plan.progress.position import Position
from torch_distinput.values import ReplayedStep


def replay_step(
    source: Input, turn: SourceTurn, position: Position, number: int
) -> ReplayedStep:
    """Read a step of an epoch; ValueError if it is not behind the position."""
    with turn.lock:  # a thread that copies ahead may be in the source
        found = source.replay(position, number) if number >= position.steps else None
    if found is None:
        msg = (
            f"Expected a step of epoch {position.epoch} after the state, which was taken "
            f"before step {position.steps}, got {number}: the epoch ends earlier, or the state "
            "is too late. Pass a state that was saved before the step."
        )
        raise ValueError(msg)
    parts = [part for worker in found for part in worker.parts]
    return ReplayedStep(
        index=number,
        num_examples=sum(worker.num_rows for worker in found),
        batches=tuple(None if part is None else part.batch for part in parts),
        ids=tuple(None if part is None else part.ids for part in parts),
    )
