"""Refuses what would deal out once more what an integration delivers."""

from __future__ import annotations

from typing import NoReturn

import torch_distinput as tdi


def refuse_item(loader: object) -> NoReturn:
    """Refuse a request for an item, as a DataLoader, a sampler or another dataset makes it.

    Raises:
        UsageError: always.
    """
    msg = (
        f"Expected a {type(loader).__name__} to be iterated as it is, got a request for one of its "
        "items, as of a DataLoader, a sampler or a dataset around it. Its steps are parts of "
        "global batches already, distributed over all ranks: use it without wrapping it."
    )
    raise tdi.UsageError(msg)
