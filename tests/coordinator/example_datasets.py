"""Datasets that workers make in tests, and closures that take from them."""

from __future__ import annotations

import itertools

import torch

import torch_distinput as tdi
from tests.coordinator.simulated_engine import worker_name


def take(iterator, number=1):
    return [next(iterator) for _ in range(number)]


def take_at(gate, iterator):
    value = worker_name(), next(iterator)
    gate.wait()
    return value


def count(context):
    return itertools.count(100 * context.input_pipeline_id)


def count_up_to_three():
    return [1, 2, 3]


def distribute_rows():
    return tdi.get_strategy().distribute_dataset(torch.arange(10), global_batch_size=4)
