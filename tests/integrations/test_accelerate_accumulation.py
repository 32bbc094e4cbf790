"""Accelerate adds up gradients of the steps that a loss was divided by, or it is an error."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_distinput as tdi
from tests.integrations.accelerators import accelerator_on
from torch_distinput.integrations.accelerate import prepare


class Training:
    """A model whose gradient is the mean of what it has seen, accumulated over four steps."""

    def __init__(self, accelerator, strategy):
        self.accelerator, self.strategy = accelerator, strategy
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.seen, self.updates = [], []

    def make(self, first=0):
        rows = torch.arange(first, first + 16.0)[:, None]
        dataset = self.strategy.distribute_dataset(rows, global_batch_size=2)
        return prepare(dataset, self.accelerator)

    def train(self, loader, batch):
        self.seen += batch.flatten().tolist()
        with self.accelerator.accumulate(self.model):
            losses = self.model(batch)[:, 0]
            self.accelerator.backward(loader.average_loss(losses))
        if self.accelerator.sync_gradients:
            self.update()

    def update(self):
        self.updates.append(self.model.weight.grad.item() == sum(self.seen) / len(self.seen))
        self.begin_anew()

    def begin_anew(self):
        self.model.zero_grad()
        self.seen = []


@pytest.fixture
def training():
    strategy = tdi.OneDeviceStrategy("cpu")
    with accelerator_on(strategy, gradient_accumulation_steps=4) as accelerator:
        yield Training(accelerator, strategy)


def test_an_accumulation_that_was_left(training):
    """What waits belongs to no update of the next epoch, but for the user's word."""
    loader = training.make()
    for batch in itertools.islice(loader, 6):
        training.train(loader, batch)
    with pytest.raises(tdi.UsageError, match="at step 0, where accelerator.step is 7"):
        training.train(loader, next(iter(loader)))
    training.begin_anew()
    training.accelerator.step = 0
    for batch in loader:
        training.train(loader, batch)
    assert [True] * 3 == training.updates


def test_steps_of_two_loaders_in_turns(training):
    """Each would be divided by the examples of its own group."""
    loaders = training.make(), training.make(100)
    first, second = map(iter, loaders)
    training.train(loaders[0], next(first))
    with pytest.raises(tdi.UsageError, match="play several loaders by zip"):
        training.train(loaders[1], next(second))


def test_a_step_that_is_not_counted(training):
    loader = training.make()
    steps = iter(loader)
    training.train(loader, next(steps))
    next(steps)
    training.train(loader, next(steps))
    with pytest.raises(tdi.UsageError, match="at step 2, where accelerator.step is 2"):
        next(steps)


def test_a_loss_may_be_averaged_before_the_step_is_counted(training):
    loader = training.make()
    for batch in loader:
        loss = loader.average_loss(training.model(batch)[:, 0])
        with training.accelerator.accumulate(training.model):
            training.accelerator.backward(loss)
        with torch.no_grad():
            loader.average_loss(training.model(batch)[:, 0])


def test_gradients_that_are_added_up_by_hand(training):
    """Without accumulate(), so that Accelerate counts nothing."""
    loader = training.make()
    for number, batch in enumerate(loader, start=1):
        training.seen += batch.flatten().tolist()
        losses = training.model(batch)[:, 0]
        training.accelerator.backward(loader.average_loss(losses))
        if number % 4 == 0:
            training.update()
    assert [True] * 2 == training.updates


def test_another_number_of_steps_from_an_update_on(training):
    """Accelerate counts on, so that the first of them are fewer."""
    loader = training.make()
    for number, batch in enumerate(loader):
        training.train(loader, batch)
        if number == 3:
            training.accelerator.gradient_accumulation_steps = 3
    assert [True] * 3 == training.updates


def test_several_loaders_in_one_accumulation(training):
    one, other = training.make(), training.make(100)
    for number, pair in enumerate(zip(one, other, strict=True), start=1):
        with training.accelerator.accumulate(training.model):
            for loader, batch in zip((one, other), pair, strict=True):
                training.accelerator.backward(loader.average_loss(training.model(batch)[:, 0]))
        assert (number % 4 == 0) == training.accelerator.sync_gradients


def test_an_evaluation_inside_of_an_accumulation(training):
    loader, evaluated = training.make(), training.make(100)
    for batch in loader:
        training.train(loader, batch)
        with torch.no_grad():
            assert 16 == sum(map(len, evaluated))
    assert [True] * 2 == training.updates
