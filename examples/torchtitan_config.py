"""Let a config of torchtitan train on one epoch of packed rows, every row once.

# my_model/config_registry.py
def rows_debugmodel():
return use_rows(llama3_debugmodel(), "train.npy", "validation.npy")

torchrun --nproc-per-node 8 -m torchtitan.train --module my_model --config rows_debugmodel
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_distinput.integrations.torchtitan import DistributedDataLoader


def read_rows(path: str | Path, _tokenizer: Any, seq_len: int) -> dict[str, torch.Tensor]:
    """Read an array of shape ``(rows, seq_len + 1)``: tokens, packed beforehand."""
    rows = torch.from_numpy(np.load(path))
    return {"input": rows[:, :seq_len], "labels": rows[:, 1:]}


def use_rows(config: Any, training: str | Path, validation: str | Path) -> Any:
    """Change the dataloaders of a ``Trainer.Config``."""
    config.dataloader = DistributedDataLoader.Config(
        source_fn=partial(read_rows, training),
        global_batch_size=config.training.global_batch_size,
        shuffle=True,
        infinite=False,  # ends with the epoch
    )
    config.validator.dataloader = DistributedDataLoader.Config(
        source_fn=partial(read_rows, validation),
        global_batch_size=-1,  # one micro-batch of each data-parallel rank at a time
        infinite=False,
    )
    return config
