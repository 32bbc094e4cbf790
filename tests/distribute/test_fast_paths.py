"""What a fast path gives is what is given without it: each against all the others."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import listed
from tests.fast_paths import NAMES, PATHS, switched
from torch_distinput.plan.assignment.permutation import LARGEST_EXACT

COUNT = LARGEST_EXACT + 5_000  # an order that is not one table
COLUMNS = {"x": torch.arange(2 * COUNT).reshape(COUNT, 2), "y": np.arange(COUNT) / 3}


class Examples:
    """Tensors and strings, one by one."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"x": COLUMNS["x"][index], "y": f"{index:x}"}


def play(source, num_workers, size):
    """Some steps of two epochs, all kept to the end, and the states after them."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        source, global_batch_size=size, shuffle=True, seed=4, num_workers=num_workers
    )
    steps, states = [], []
    for _ in range(2):
        steps += itertools.islice(iter(dataset), 20)
        states.append(json.dumps(dataset.state_dict()))
    return [(listed(step["x"]), listed(step["y"])) for step in steps], states


@pytest.fixture(scope="module")
def expected():
    """With every fast path, by source."""
    with switched(NAMES[0]):
        return [play(*case) for case in CASES]


CASES = [(COLUMNS, 0, 4_001), (COLUMNS, 2, 4_001), (Examples(), 0, 3), (Examples(), 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PATHS, NAMES[1]])
def test_steps_and_states_are_the_same_without_a_fast_path(expected, path):
    with switched(path):
        assert expected == [play(*case) for case in CASES]
