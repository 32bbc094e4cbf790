"""Sources of every kind whose examples have lengths, and the batches that fit a budget."""

from __future__ import annotations

import torch_distinput as tdi
from tests.distribute.mixtures import MAKERS, make_values
from tests.distribute.street import options

KINDS = tuple(MAKERS)


def length_of(value):
    """From 0 to 9, of a number."""
    return int(value) * 7 % 10


def fill_by_hand(values, num_tokens):
    """Batches of as many values as fit, one value after another."""
    batches, left = [], 0
    for value in values:
        if not batches or length_of(value) > left:
            batches.append([])
            left = num_tokens
        batches[-1].append(value)
        left -= length_of(value)
    return batches


def order_of(kind, count):
    """The numbers of a source in their order."""
    return make_values([kind], [count])[0]


def make_source(folder, kind, count):
    """A source of so many numbers."""
    return MAKERS[kind](folder / "source", list(range(count)))


def by_tokens(source, num_tokens, *, policy="data", rebatch="split", **keywords):
    """A function that distributes a source by a budget."""

    def make(strategy):
        return strategy.distribute_dataset(
            source,
            global_batch_size=tdi.TokenBudget(num_tokens, length=length_of),
            options=options(rebatch=rebatch, auto_shard_policy=policy),
            **keywords,
        )

    return make


def list_batches(workers):
    """The global batches, where the pieces of all replicas in order make one."""
    return [[x for w in step for b in w for x in b] for step in zip(*workers, strict=True)]
