"""Losses by token where the lengths of examples tell the tokens of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.token_losses import (
    distributed,
    is_counted,
    losses_of,
    make_documents,
    mean_of,
)


class TestKnownTokens:
    """Where lengths are known, nobody asks the others."""

    @pytest.fixture
    def strategy(self):
        return tdi.OneDeviceStrategy("cpu")

    @pytest.fixture
    def steps(self, strategy):
        steps = distributed(strategy).steps()
        return [replace(s, info=replace(s.info, num_tokens=3 + s.index)) for s in steps]

    def test_a_step_divides_by_its_tokens(self, steps):
        losses = [step.average(torch.ones(step.num_examples, 2), per="token") for step in steps]
        assert [8 / 3, 8 / 4, 2 / 5] == pytest.approx([loss.item() for loss in losses])

    def test_a_group_divides_by_those_of_all_its_steps(self, steps):
        (group,) = tdi.accumulate(steps, 3)
        assert 12 == group.num_tokens
        losses = [step.average(torch.ones(step.num_examples, 2), per="token") for step in group]
        assert 18 / 12 == pytest.approx(sum(losses).item())

    @pytest.mark.parametrize("of_padding", [1.0, torch.nan])
    def test_examples_of_no_length_lose_nothing(self, steps, of_padding):
        step = replace(steps[0], info=replace(steps[0].info, num_tokens=0))
        losses = torch.full((step.num_examples, 2), of_padding, requires_grad=True)
        average = step.average(losses, per="token")
        average.backward()
        assert 0 == average.item() == losses.grad.abs().sum().item()

    def test_weights_come_first(self, steps):
        """They say which of the tokens have a loss."""
        (group, *_) = tdi.accumulate(steps, 1, weights=is_counted)
        average = group[0].average(losses_of(group[0].batch), per="token")
        assert mean_of(make_documents()[:4]) == pytest.approx(average.item())

    def test_steps_and_stats_tell_them(self, strategy, monkeypatch):
        """Those of the whole global batch, and of all that was delivered."""
        iterator = iter(distributed(strategy))
        assert iterator.stats().num_tokens is None
        monkeypatch.setattr(iterator, "_next", lambda: counted(iterator))
        next(iterator)
        next(iterator)
        assert (5, 10) == (iterator.last_step.num_tokens, iterator.stats().num_tokens)


def counted(iterator):
    """The next step of an iterator, as if it had 5 tokens."""
    step = next(iterator._prefetcher)
    info, *others = step.note
    return step._replace(note=(replace(info, num_tokens=5), *others))
