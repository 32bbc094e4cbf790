"""Reductions and gathering over real gloo ranks, where a refusal must not leave anybody waiting."""

from __future__ import annotations

import torch

import torch_distinput as tdi
from torch_distinput.testing import run_ranks


def reduce_and_gather(strategy):
    """Halves, small integers, what is refused on all ranks or on one, and a sum after it."""
    large = torch.full((3,), 40000.0, dtype=torch.float16)
    bright = torch.full((10,), 200, dtype=torch.uint8)
    found = [strategy.reduce("mean", large, axis=0).item()]
    found.append(strategy.reduce("sum", bright, axis=0).item())
    for call in (
        lambda: strategy.gather(torch.ones(2, 2).to_sparse()),
        lambda: strategy.gather_in_order(torch.arange(2), torch.ones(2 + strategy.worker_index)),
    ):
        try:
            call()
        except (TypeError, ValueError, tdi.PeerFailedError) as error:
            found.append(type(error).__name__)
    return [*found, strategy.reduce("sum", 1).item()]


def gather_packed(strategy):
    """No rows on one rank, and None among those of the other."""
    rows = [["a", None, "é" * 100_000], []][strategy.worker_index]
    return strategy.gather(tdi.PackedStrings.from_list(rows)).to_list()


def test_packed_strings():
    assert [["a", None, "é" * 100_000]] * 2 == run_ranks(gather_packed, 2)


def test_all_ranks_are_told_and_go_on():
    """A refusal comes before the collective, so the next one is in step."""
    first, second = run_ranks(reduce_and_gather, 2)
    assert [40000.0, 4000, "TypeError", "PeerFailedError", 2] == first
    assert [40000.0, 4000, "TypeError", "ValueError", 2] == second
