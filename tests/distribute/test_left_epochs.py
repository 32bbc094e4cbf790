"""Sources with a state of their own that do not begin at their beginning by themselves."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.distribute.stateful_sources import COUNT, Counting, Told
from torch_distinput.testing import simulate


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("make", [partial(Counting, COUNT), Told])
def test_a_loader_whose_dataset_goes_on_where_it_was(make, num_workers):
    """An epoch that was left, or set aside, takes nothing from the next; nor does a restart."""

    def work(strategy):
        def distribute():
            return strategy.distribute_dataset(StatefulDataLoader(make(), batch_size=4))

        def play(dataset, steps=None):
            taken = [strategy.gather(step).tolist() for step in itertools.islice(dataset, steps)]
            return [example for step in taken for example in step]

        dataset, other = distribute(), distribute()
        with dataset.set_aside():
            play(dataset, 2)
        play(dataset, 1)
        first = play(dataset, 2)
        other.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        iter(other)
        return first + play(other), play(dataset), int(hasattr(make, "set_epoch"))

    for *epochs, shift in simulate(work, num_workers=num_workers):
        orders = [[(at + shift * (number + 2)) % COUNT for at in range(COUNT)] for number in (0, 1)]
        assert orders == epochs


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_state_of_a_later_epoch_is_looked_at_first(num_workers):
    """By an ``iter()`` that is left at once: the source's first state is not of that epoch."""

    def work(strategy):
        one, other = (strategy.distribute_dataset(Told(), global_batch_size=4) for _ in range(2))
        iter(one)
        steps = iter(one)
        whole = [strategy.gather(next(steps)).tolist()]
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        iter(other)
        return whole + [strategy.gather(step).tolist() for step in other]

    for steps in simulate(work, num_workers=num_workers):
        assert [(at + 2) % COUNT for at in range(COUNT)] == [x for step in steps for x in step]
