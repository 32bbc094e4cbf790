"""Documents of uneven lengths, and what the tokens of some of them lose on average."""

from __future__ import annotations

import torch

import torch_distinput as tdi

LENGTHS = (3, 1, 0, 4, 2, 5, 1, 3, 2)
WIDTH = 5
IGNORED = -100


def make_documents():
    """Labels by document, ``(9, 5)``: the padding behind a document, and one whole, count not."""
    labels = torch.arange(len(LENGTHS) * WIDTH).view(-1, WIDTH)
    is_padding = torch.arange(WIDTH) >= torch.tensor(LENGTHS)[:, None]
    return labels.masked_fill(is_padding, IGNORED)


def is_counted(labels):
    """Which tokens have a loss."""
    return labels != IGNORED


def losses_of(labels, factor=1.0):
    """A loss for each token; NaN where none counts."""
    return torch.where(is_counted(labels), labels * factor, torch.nan)


def mean_of(labels):
    """What one process would get: the mean of all tokens that count."""
    return labels[is_counted(labels)].double().mean().item()


def distributed(strategy, size=4, **options):
    """The documents, with the labels as the only column."""
    return strategy.distribute_dataset(
        make_documents(), global_batch_size=size, options=tdi.InputOptions(**options)
    )


def labels_of(batch):
    """The labels of a batch, padded or not."""
    return batch[0] if isinstance(batch, tuple) and not isinstance(batch, tdi.PerReplica) else batch
