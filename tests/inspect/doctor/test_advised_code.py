"""The code that is advised does what the loader does: what is not about ranks stays."""

from __future__ import annotations

import pytest
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from tests.inspect.doctor.loaders import Numbers, Stream, UnrepeatedDistributedSampler, sampled
from torch_distinput import explain
from torch_distinput.inspect.doctor.changed_lines import write_distribution
from torch_distinput.inspect.doctor.loader_facts import look_at


def pad(examples):
    return default_collate(examples)


def begin(number):
    del number


WRITTEN = {
    "collate_fn": (
        lambda: DataLoader(Numbers(64), 8, collate_fn=pad),
        "DataLoader(dataset, batch_size=16, collate_fn=pad)",
    ),
    "a function without a name": (
        lambda: DataLoader(Numbers(64), 8, collate_fn=lambda rows: rows),
        "DataLoader(dataset, batch_size=16, collate_fn=collate_fn)",
    ),
    "loader processes": (
        lambda: DataLoader(Numbers(64), 8, shuffle=True, num_workers=2, prefetch_factor=4),
        "DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, prefetch_factor=4)",
    ),
    "how they are started": (
        lambda: DataLoader(
            Numbers(64), 8, num_workers=2, worker_init_fn=begin, multiprocessing_context="spawn"
        ),
        "num_workers=2, multiprocessing_context='spawn', worker_init_fn=begin)",
    ),
    "how long they stay": (
        lambda: DataLoader(
            Numbers(64), 8, num_workers=1, timeout=9, persistent_workers=True, pin_memory=True
        ),
        "num_workers=1, timeout=9, pin_memory=True, persistent_workers=True)",
    ),
    "drop_last": (
        lambda: DataLoader(Numbers(64), 8, drop_last=True),
        "DataLoader(dataset, batch_size=16, drop_last=True)",
    ),
    "some of the examples": (
        lambda: DataLoader(Numbers(64), 8, sampler=SubsetRandomSampler(range(10))),
        "DataLoader(dataset, batch_size=16, sampler=sampler)",
    ),
    "with replacement": (
        lambda: DataLoader(Numbers(64), 8, sampler=RandomSampler(Numbers(64), replacement=True)),
        "DataLoader(dataset, batch_size=16, sampler=sampler)",
    ),
    "batches of a sampler": (
        lambda: DataLoader(Numbers(64), batch_sampler=[[0, 1], [2]], collate_fn=pad),
        "DataLoader(dataset, batch_sampler=batch_sampler, collate_fn=pad)",
    ),
    "plain batches, written out": (
        lambda: DataLoader(
            Numbers(64), batch_sampler=BatchSampler(SequentialSampler(range(64)), 8, True)
        ),
        "DataLoader(dataset, batch_size=16, drop_last=True)",
    ),
    "plain batches, which the dataset gets as they are": (
        lambda: DataLoader(
            Numbers(64), sampler=BatchSampler(RandomSampler(range(64)), 8, True), batch_size=None
        ),
        "DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)",
    ),
    "a DistributedSampler": (
        lambda: DataLoader(
            Numbers(64), 8, sampler=UnrepeatedDistributedSampler(Numbers(64), 2, 0), collate_fn=pad
        ),
        "DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=pad)",
    ),
    "a stream": (
        lambda: DataLoader(Stream(64), 8, collate_fn=pad, drop_last=True),
        "distribute_dataset(stream, global_batch_size=16, collate_fn=pad, drop_last=True)",
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_arguments_stay(case):
    make, expected = WRITTEN[case]
    assert expected in write_distribution(look_at(make()), 2)


def test_what_drops_examples_is_not_advised():
    loader = sampled(Numbers(61), 8, batch_size=5, drop_last=True)
    (finding,) = explain(loader, num_workers=8).findings
    assert "drop_last" not in finding.code


@pytest.mark.parametrize("trainer", ["accelerate", "lightning", None])
def test_what_accelerate_would_prepare_is_prepared(trainer):
    """Its own ``prepare`` would return a distributed dataset that it knows nothing of."""
    (finding,) = explain(DataLoader(Numbers(61), 4), num_workers=8, trainer=trainer).findings
    assert finding.code.startswith("strategy = tdi.MultiWorkerMirroredStrategy()\nloader = ")
    is_prepared = "\ntrain = tdi_accelerate.prepare(train, accelerator)" in finding.code
    assert is_prepared == (trainer == "accelerate")
    assert not finding.code.endswith("\n")
