"""What travels with a step between ranks that share data."""

from __future__ import annotations

import pytest

from torch_distinput.data.steps.local_step import SourceCounts, Trace, empty_step
from torch_distinput.engine.delivered_bytes import DeliveryReader, DeliveryWriter
from torch_distinput.engine.feeds import Delivery

COUNTS = SourceCounts({"web": 3, "code": 1}, {"web": 0, "code": 2})


@pytest.mark.parametrize("num_tokens", [None, 0, 65_536])
@pytest.mark.parametrize("counts", [None, COUNTS])
def test_the_counts_of_a_step_arrive(num_tokens, counts):
    """By source, and of tokens, each whether the other is known or not."""
    step = empty_step(2, trace=Trace(source_counts=counts, num_tokens=num_tokens))
    content = DeliveryWriter(lambda: None).write(Delivery(step, 4, 7))
    delivery, _ = DeliveryReader().read(content)
    assert (counts, num_tokens) == (
        delivery.step.trace.source_counts,
        delivery.step.trace.num_tokens,
    )
