"""Mixing, packing, buckets, budgets and balance together: each token once, on any cluster."""

from __future__ import annotations

import collections
import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, make_of, run
from tests.distribute.street import stream_of, write_files

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


def in_files(folder, documents):
    """Documents that files name by their numbers, five of them a file."""
    numbers = [one["input_ids"][0] // 100 - 1 for one in documents]
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    pattern = write_files(own, [numbers[first : first + 4] for first in range(0, len(numbers), 4)])
    return tdi.FileDataset(pattern).map(lambda line: DOCUMENTS[int(line)])


def by_index(documents):
    return list(documents)


def in_order(documents):
    return stream_of(list(documents))


def plain(give):
    return give(DOCUMENTS)


def mixed(give):
    halves = {"even": give(DOCUMENTS[::2]), "odd": give(DOCUMENTS[1::2])}
    return tdi.mix(halves, weights=(2, 1), stop="all")


def mixed_by_tokens(give):
    halves = {"even": give(DOCUMENTS[::2]), "odd": give(DOCUMENTS[1::2])}
    return tdi.mix(halves, weights=(2, 1), stop="all", length="input_ids")


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
    "mixed by tokens": mixed_by_tokens,
    "mixed by tokens, in buckets": lambda give: bucketed(mixed_by_tokens(give)),
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


@pytest.mark.slow
@pytest.mark.parametrize("give", [by_index, in_order], ids=["by index", "in order"])
@pytest.mark.parametrize("made", MADE)
@settings(max_examples=40 if LONG else 3)
@given(
    st.sampled_from(sorted(SIZES)), st.sampled_from(sorted(COSTS)), clusters, clusters, st.data()
)
def test_each_token_comes_once_and_batches_are_the_same_anywhere(
    made, give, size, cost, cluster, other, data
):
    if "buckets" in made and size == "a budget" and give is in_order:
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("pairs") for _ in itertools.count())


few = st.tuples(st.integers(1, 3), st.integers(1, 2))


def draw_make(data, made, give, policy, *clusters):
    """A function that distributes what is made, by any size and costs that fit."""
    size = data.draw(st.sampled_from(sorted(SIZES)), label="size")
    cost = data.draw(st.sampled_from(sorted(COSTS)), label="cost")
    if "buckets" in made and size == "a budget" and give is not by_index:
        size = "a number"  # refused
    if any(workers > 1 and replicas == 1 for workers, replicas in clusters):
        cost = "even"  # with one replica each there is nothing to deal
    keywords = {"collate_fn": pad, "balance": COSTS[cost], "policy": policy}
    return make_of(MADE[made](give), SIZES[size], **keywords)


@pytest.mark.parametrize("made", MADE)
@settings(max_examples=40 if LONG else 1)
@given(few, few, few, st.data())
def test_each_token_of_files_that_are_dealt_out_comes_once(folders, made, one, two, three, data):
    """C1, C2 and C4 under FILE: what one cluster leaves, two others deliver."""
    make = draw_make(data, made, partial(in_files, next(folders)), "file", one, two, three)
    whole, _ = run(make, one, show=show_replicas)
    assert TOKENS == tokens_of(whole)
    steps = data.draw(st.integers(0, len(whole[0])), label="steps")
    head, state = run(make, one, steps=steps, show=show_replicas)
    assert [worker[:steps] for worker in whole] == head
    middle, state = run(make, two, state=state, steps=data.draw(st.integers(0, 3)),
                        show=show_replicas)  # fmt: skip
    tail, _ = run(make, three, state=state, show=show_replicas)
    assert TOKENS == tokens_of(head) + tokens_of(middle) + tokens_of(tail)
    assert all(len({len(worker) for worker in part}) == 1 for part in (head, middle, tail))


@pytest.mark.parametrize("made", MADE)
@settings(max_examples=40 if LONG else 1)
@given(st.sampled_from([by_index, in_order]), few, st.data())
def test_each_worker_plays_all_where_nothing_is_dealt_out(made, give, cluster, data):
    """C1, C2 and C4 under OFF, where as many workers go on."""
    make = draw_make(data, made, give, "off", cluster)
    whole, _ = run(make, cluster, show=show_replicas)
    assert [TOKENS] * cluster[0] == [tokens_of([worker]) for worker in whole]
    steps = data.draw(st.integers(0, len(whole[0])), label="steps")
    head, state = run(make, cluster, steps=steps, show=show_replicas)
    tail, _ = run(make, cluster, state=state, show=show_replicas)
    assert whole == [[*one, *two] for one, two in zip(head, tail, strict=True)]
