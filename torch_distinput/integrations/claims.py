"""Which integration plays a dataset: two of them would take its steps from each other.

It divides losses in its own way, too: ``compute_average_loss`` does not know of it.
"""

from __future__ import annotations

import weakref

import torch_distinput as tdi

_owners: weakref.WeakKeyDictionary[tdi.DistributedDataset, str] = weakref.WeakKeyDictionary()


def claim(dataset: tdi.DistributedDataset, owner: str) -> None:
    """Note that an integration plays a dataset, as long as the dataset lives.

    Args:
        dataset: what is played.
        owner: the product, such as ``"Lightning"``.

    Raises:
        UsageError: if another product plays it.
    """
    known = _owners.setdefault(dataset, owner)
    if known != owner:
        msg = (
            f"Expected a dataset that only {owner} uses, got one that was passed to {known} "
            "before: each would get the steps that the other leaves. Distribute the source "
            "twice, once for each of them."
        )
        raise tdi.UsageError(msg)


def hide_zero_rows(dataset: tdi.DistributedDataset) -> None:
    """Note that an integration keeps batches of zero rows from the model: no warning says so."""
    dataset._warnings.hides_zero_rows = True  # noqa: SLF001 - no method, which users would find


def play(dataset: tdi.DistributedDataset, *, cure: str) -> tdi.DistributedSteps:
    """Return the next epoch's steps, of which ``compute_average_loss`` is refused.

    Args:
        dataset: what is played.
        cure: how their losses are averaged instead, a sentence for the message.
    """
    steps = dataset.steps()
    steps._cure = cure  # noqa: SLF001 - no method, which users would find
    return steps
