"""What travels with a step between ranks that share data."""

from __future__ import annotations

import pytest

from torch_distinput.data.steps.local_step import (
    PackedCounts,
    SourceCounts,
    StepFacts,
    empty_step,
)
from torch_distinput.engine.delivered_bytes import DeliveryReader, DeliveryWriter
from torch_distinput.engine.feeds import Delivery

COUNTS = SourceCounts({"web": 3, "code": 1}, {"web": 0, "code": 2})


@pytest.mark.parametrize("num_tokens", [None, 0, 65_536])
@pytest.mark.parametrize("counts", [None, COUNTS])
@pytest.mark.parametrize("packed", [None, PackedCounts(2, 5, 14, 16)])
def test_the_counts_of_a_step_arrive(num_tokens, counts, packed):
    """By source, of tokens, and of packed rows, each whether the others are known or not."""
    facts = StepFacts(source_counts=counts, num_tokens=num_tokens, packed=packed)
    step = empty_step(2, facts=facts)
    content = DeliveryWriter(lambda: None).write(Delivery(step, 4, 7))
    delivery, _ = DeliveryReader().read(content)
    assert facts == delivery.step.facts
