"""Mixing, packing, buckets, budgets and balance together: each token once, on any cluster."""

from __future__ import annotations

import collections
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, make_of, run
from tests.distribute.street import stream_of

COUNT, LONGEST = 23, 9
DOCUMENTS = [
    {"input_ids": [100 * i + j for j in range(1 + i * 7 % LONGEST)]} for i in range(1, COUNT)
]
TOKENS = collections.Counter(token for one in DOCUMENTS for token in one["input_ids"])


def length_of(example):
    ids = example["input_ids"]
    kept = example["document_ids"] > 0 if "document_ids" in example else ids
    return int(kept.sum()) if isinstance(kept, torch.Tensor) else len(ids)


def cost_of(example):
    return length_of(example) ** 2


def by_index(documents):
    return list(documents)


def in_order(documents):
    return stream_of(list(documents))


def plain(give):
    return give(DOCUMENTS)


def mixed(give):
    halves = {"even": give(DOCUMENTS[::2]), "odd": give(DOCUMENTS[1::2])}
    return tdi.mix(halves, weights=(2, 1), stop="all")


def packed(source, how):
    return tdi.pack(source, length=LONGEST + 3, window=7, how=how)


def packed_parts(give):
    """A mixture of packed sources."""
    halves = {"even": DOCUMENTS[::2], "odd": DOCUMENTS[1::2]}
    rows = {name: packed(give(part), "best_fit") for name, part in halves.items()}
    return tdi.mix(rows, weights=(1, 1), stop="all")


def bucketed(source):
    return tdi.bucket(source, length=length_of, boundaries=(3, 6), window=8)


MADE = {
    "plain": plain,
    "mixed": mixed,
    "packed": lambda give: packed(plain(give), "best_fit"),
    "cut": lambda give: packed(plain(give), "concatenate"),
    "packed, of a mixture": lambda give: packed(mixed(give), "best_fit"),
    "a mixture of packed": packed_parts,
    "in buckets": lambda give: bucketed(plain(give)),
    "a mixture in buckets": lambda give: bucketed(mixed(give)),
    "packed, in buckets": lambda give: bucketed(packed(plain(give), "best_fit")),
}
SIZES = {"a number": 5, "a budget": tdi.TokenBudget(2 * LONGEST + 6, length=length_of)}
COSTS = {"even": None, "dealt": cost_of, "dealt, padded": tdi.PaddedCost(length_of)}


def pad(examples):
    """A batch of the tokens and their lengths."""
    kept = [torch.as_tensor(one["input_ids"])[: length_of(one)] for one in examples]
    rows = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True) if kept else torch.empty(0, 0)
    return rows, torch.tensor([len(row) for row in kept])


def show_replicas(strategy, step):
    """The rows of each replica."""
    tokens, lengths = step
    if strategy.topology.replicas_per_worker == 1:
        pairs = [(tokens, lengths)]
    else:
        pairs = list(zip(tokens.values, lengths.values, strict=True))
    return [
        [tuple(row[:n].tolist()) for row, n in zip(rows, counts.tolist(), strict=True)]
        for rows, counts in pairs
    ]


def tokens_of(workers):
    return collections.Counter(
        token
        for worker in workers
        for step in worker
        for replica in step
        for row in replica
        for token in row
    )


def batches_of(workers):
    """The rows of each global batch, in no order."""
    return [
        sorted(row for worker in step for replica in worker for row in replica)
        for step in zip(*workers, strict=True)
    ]


@pytest.mark.parametrize("give", [by_index, in_order], ids=["by index", "in order"])
@pytest.mark.parametrize("made", MADE)
@settings(max_examples=40 if LONG else 4)
@given(
    st.sampled_from(sorted(SIZES)), st.sampled_from(sorted(COSTS)), clusters, clusters, st.data()
)
def test_each_token_comes_once_and_batches_are_the_same_anywhere(
    made, give, size, cost, cluster, other, data
):
    if "buckets" in made and size == "a budget":
        size = "a number"  # refused, see test_refused_buckets
    keywords = {"collate_fn": pad, "balance": COSTS[cost], "policy": "data"}
    if give is by_index:
        keywords["shuffle"] = data.draw(st.booleans(), label="shuffle")
    source = partial(MADE[made], give)
    make = make_of(source, SIZES[size], **keywords)

    whole, _ = run(make, cluster, show=show_replicas)
    assert TOKENS == tokens_of(whole)
    assert batches_of(whole) == batches_of(run(make, other, show=show_replicas)[0])

    steps = data.draw(st.integers(0, len(whole[0])), label="steps")
    head, state = run(make, cluster, steps=steps, show=show_replicas)
    tail, _ = run(make, other, state=state, show=show_replicas)
    assert batches_of(whole) == batches_of(head) + batches_of(tail)
