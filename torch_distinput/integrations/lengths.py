"""The length of an epoch, where an integration can do without."""

from __future__ import annotations

import torch_distinput as tdi


def count_steps(dataset: tdi.DistributedDataset) -> int | None:
    """Steps of the epoch to come; None where they are not known before the data is read."""
    try:
        return len(dataset)
    except TypeError:
        return None
