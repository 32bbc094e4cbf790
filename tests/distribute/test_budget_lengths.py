"""What fills a budget: where lengths come from, and the tokens that a step knows of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.budgets import (
    by_tokens,
    fill_by_hand,
    length_of,
    list_batches,
    make_source,
)
from tests.distribute.mixtures import Rows
from tests.distribute.resumes import in_order
from tests.distribute.street import Shards, one, play, stream_of
from torch_distinput.testing import simulate


@pytest.mark.parametrize(
    "length",
    [
        "x",
        "tokens",
        [3, 1, 4, 1, 5],
        np.array([3, 1, 4, 1, 5], dtype=np.uint8),
        torch.tensor([3, 1, 4, 1, 5]),
        lambda example: int(example["x"]),
    ],
)
def test_what_tells_a_length(length):
    """A column of lengths or of sequences, an array, a function."""
    tokens = tdi.PackedStrings.from_list([b"abc", b"a", b"abcd", b"a", b"abcde"])
    columns = {"x": torch.tensor([3, 1, 4, 1, 5]), "tokens": tokens}
    dataset = one().distribute_dataset(
        columns, global_batch_size=tdi.TokenBudget(6, length=length)
    )
    assert [[3, 1], [4, 1], [5]] == [step["x"].tolist() for step in dataset]
    assert 3 == len(dataset)


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_lengths_of_a_mixture_are_those_of_its_indices(stop):
    """By number through all of its sources, however often each of them comes."""
    sources = {"a": torch.arange(3), "b": torch.arange(10, 19)}
    lengths = [*map(length_of, range(3)), *map(length_of, range(10, 19))]
    source = tdi.mix(sources, weights=(2, 1), stop=stop)
    (played,) = play(source, tdi.TokenBudget(12, length=lengths))
    (plain,) = play(source, 4)
    assert fill_by_hand(in_order([plain]), 12) == list_batches([played])


class Random(Rows):
    """Examples that are drawn, and depend on the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        """Keep it."""
        self.epoch = epoch

    def __getitem__(self, index):
        return 1 + self.epoch + int(torch.randint(3, ()))


def test_measuring_draws_nothing():
    """Random generators are left as they were; what is drawn meanwhile is the same on all ranks."""
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        states.append(by_tokens(Random(range(9)), 12)(one()).state_dict())
        assert torch.equal(before, torch.random.get_rng_state())
    assert states[0] == states[1]


def list_tokens(make, num_workers):
    """Of each worker the tokens of all steps, and the sum of its own."""

    def work(strategy):
        with iter(make(strategy)) as iterator:
            feed = iterator._run.feed._feed
            steps = itertools.takewhile(bool, map(feed.next, itertools.count()))
            traces = [delivery.step.facts for delivery in steps]
            return [trace.num_tokens for trace in traces]

    return simulate(work, num_workers=num_workers)


@pytest.mark.parametrize("kind", ["list", "stream", "files"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_step_knows_its_tokens(tmp_path, kind, workers):
    """Those of the whole global batch, on each worker."""
    source = make_source(tmp_path, kind, 20)
    expected = [sum(map(length_of, batch)) for batch in fill_by_hand(range(20), 12)]
    assert [expected] * workers == list_tokens(by_tokens(source, 12), workers)


def test_tokens_of_batches_of_each_worker_s_own():
    """Summed with the votes: of steps that a worker has no part in, too."""
    shards = Shards([[1, 2, 3, 4], [11, 12, 13]])  # [1 2|3] [4|-] and [11|12 13]
    assert [[7 + 4 + 7, 1 + 4 + 1, 8]] * 2 == list_tokens(by_tokens(shards, 12, policy="file"), 2)
    assert [[12, 8]] == list_tokens(by_tokens(Shards([[1, 2, 3, 4]]), 12, policy="file"), 1)


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_tokens_of_what_all_workers_play(kind):
    """As often as the examples are counted; a step in which nobody has any is left out."""
    values = [1, 2, 3, 4]  # [1 2|3] and [1|2 3]; then [4|-] and [-|4]
    source = values if kind == "list" else stream_of(values)
    make = by_tokens(source, 12, policy="off")
    assert [[7 + 4 + 7, 1 + 4 + 1, 8, 8]] * 2 == list_tokens(make, 2)
    assert [[7 * 3, 4 * 3, 1 * 3, 8, 8, 8]] * 3 == list_tokens(make, 3)
