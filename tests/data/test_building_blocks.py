"""The building blocks in the loader processes of a plain DataLoader."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

import torch_distinput as tdi


@pytest.fixture
def files(tmp_path):
    for name in range(4):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{i}\n" for i in range(5)))
    return tdi.FileDataset(f"{tmp_path}/*.txt")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_shard_takes_so_many(files, num_workers):
    loader = DataLoader(tdi.FileShardDataset(files.take(6), 1, 0), num_workers=num_workers)
    assert 6 == len(list(loader))


def test_processes_would_take_so_many_each(files):
    loader = DataLoader(tdi.FileShardDataset(files.take(6), 1, 0), num_workers=2)
    with pytest.raises(tdi.ConfigurationError, match="would take n each"):
        list(loader)
