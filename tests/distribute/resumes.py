"""Playing a part of an epoch and going on from its state, on simulated workers."""

from __future__ import annotations

import collections
import itertools
import json
from functools import partial

from hypothesis import strategies as st

from tests.distribute.street import options, shown
from torch_distinput.testing import simulate


def run(make, cluster, *, state=None, steps=None, show=shown):
    """Play some steps on simulated workers; per worker the steps, and the state after them."""

    def work(strategy):
        dataset = make(strategy)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
            assert json.dumps(dataset.state_dict()) == state
        iterator = iter(dataset)
        played = [show(strategy, step) for step in itertools.islice(iterator, steps)]
        return played, json.dumps(dataset.state_dict())

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    states = {said for _, said in results}
    assert len(states) == 1, states
    return [played for played, _ in results], states.pop()


def examples_of(workers):
    """All delivered examples, as a multiset."""
    return collections.Counter(x for worker in workers for step in worker for b in step for x in b)


def in_order(workers):
    """Delivered examples in the global order, where that is what the replicas play."""
    return [x for step in zip(*workers, strict=True) for w in step for b in w for x in b]


def make_of(source, size, **keywords):
    """A function that distributes a source, or what a partial function makes for each worker."""
    rebatch = keywords.pop("rebatch", "split")
    policy = keywords.pop("policy", "auto")

    def make(strategy):
        chosen = options(rebatch=rebatch, auto_shard_policy=policy)
        own = source() if isinstance(source, partial) else source
        return strategy.distribute_dataset(
            own, global_batch_size=size, options=chosen, **keywords
        )

    return make


clusters = st.tuples(st.integers(1, 4), st.integers(1, 2))
rules = st.sampled_from(["split", "even", "cycle"])


def with_recipe(files, recipe):
    """A FileDataset with operations of every kind."""
    if recipe in ("interleave", "all"):
        files = files.interleave(2, 2)
    if recipe in ("filter", "all"):
        files = files.filter(lambda number: int(number) % 3 != 1)
    if recipe in ("shuffle", "all"):
        files = files.shuffle(4)
    if recipe in ("take", "all"):
        files = files.take(6)
    if recipe == "repeat":
        files = files.repeat(2)
    if recipe == "all":
        files = files.filter(lambda number: int(number) % 2 == 0).repeat(2)
    return files
