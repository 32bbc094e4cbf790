"""Workers under the rules of a TPUStrategy, whose TPUs are virtual CPU devices."""

from __future__ import annotations

import torch

import torch_distinput as tdi
from torch_distinput.cluster.membership import Membership
from torch_distinput.distribute import strategies
from torch_distinput.distribute.strategy import Strategy
from torch_distinput.testing import simulate

CPU = torch.device("cpu")


class SimulatedTpu(Strategy):
    """A simulated worker under the rules of a TPUStrategy."""

    def __init__(self, worker):
        super().__init__(
            worker.topology,
            [CPU],
            Membership(communicator=worker._session.communicator),
            has_static_shapes=True,
        )


def on_tpus(work, num_workers=2):
    """Call ``work(strategy)`` on each of so many workers with a TPU."""

    def run(worker):
        strategy = SimulatedTpu(worker)
        try:
            return work(strategy)
        finally:
            strategy._session.heartbeat.close()

    return simulate(run, num_workers=num_workers)


def tpu_strategy(monkeypatch):
    """The public strategy, of one worker on a device that is taken for a TPU."""
    monkeypatch.setattr(strategies, "_own_tpu", lambda: CPU)
    return tdi.TPUStrategy()
