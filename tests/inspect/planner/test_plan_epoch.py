"""What a plan says is what a run on simulated workers does."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.numbers_reader import WIDTH, Numbers, write_numbers
from tests.distribute.street import Shards, options
from torch_distinput.testing import simulate

some = settings(max_examples=1000 if LONG else 25)
clusters = st.tuples(st.integers(1, 4), st.integers(1, 3))
rules = st.sampled_from(["split", "even", "cycle"])


@dataclass(frozen=True)
class Watched(Numbers):
    """Notes what is read."""

    seen: list = field(default_factory=list)

    def read(self, file, part):
        """Note it, and read."""
        self.seen.append((int(Path(file.path).stem[1:]), part.start))
        yield from super().read(file, part)


def run(make_source, cluster, **keywords):
    """Per worker: the rows of each replica in each step, its zero-row batches, what it read."""

    def work(strategy):
        source = make_source()
        iterator = iter(strategy.distribute_dataset(source, **keywords))
        counts = [iterator.last_step.local_counts for _ in iterator]
        seen = source.reader.seen if isinstance(source, tdi.FileDataset) else []
        return counts, iterator.stats().zero_row_batches, seen

    num_workers, num_replicas = cluster
    return simulate(work, num_workers=num_workers, replicas_per_worker=num_replicas)


def check(plan, played):
    """Whether steps, rows and zero-row batches of all workers are those of the plan."""
    counts = [own for own, _, _ in played]
    steps = list(zip(*counts, strict=True))
    idle = [step for step, of_all in enumerate(steps) if any(0 in one for one in of_all)]
    first = [next((i for i, step in enumerate(own) if 0 in step), -1) for own in counts]
    assert len(steps) == plan.steps
    assert [sum(map(sum, own)) for own in counts] == plan.examples_by_worker.tolist()
    assert [zero for _, zero, _ in played] == plan.zero_row_batches_by_worker.tolist()
    assert first == plan.first_zero_row_step_by_worker.tolist()
    assert len(idle) == plan.zero_row_steps
    assert (idle[0] if idle else None) == plan.first_zero_row_step


def write(folder, lengths):
    numbers = iter(range(10_000))
    return write_numbers(Path(folder), [[next(numbers) for _ in range(n)] for n in lengths])


@pytest.mark.slow
@some
@given(
    st.lists(st.integers(0, 13), min_size=4, max_size=9),
    st.integers(1, 9),
    clusters,
    rules,
    st.data(),
)
def test_files_are_read_as_planned(lengths, size, cluster, rebatch, data):
    """Counted files: steps, rows, zero-row batches, and who reads which file or part."""
    policy = data.draw(st.sampled_from(["auto", "data", "off"]))
    shuffle, drop_last, split = (data.draw(st.booleans()) for _ in range(3))
    chosen = options(auto_shard_policy=policy, rebatch=rebatch)
    with tempfile.TemporaryDirectory() as folder:
        pattern = write(folder, lengths)

        def make_source():
            reader = Watched(counted=True)
            return tdi.FileDataset(pattern, reader=reader, split_files=split)

        keywords = {"shuffle": shuffle, "seed": 3, "drop_last": drop_last, "options": chosen}
        plan = tdi.plan_epoch(
            make_source(), global_batch_size=size, num_workers=cluster[0],
            replicas_per_worker=cluster[1], count=True, **keywords,
        )  # fmt: skip
        played = run(make_source, cluster, global_batch_size=size, **keywords)
    assert plan.is_exact
    check(plan, played)
    sizes = plan.known.sizes.tolist()
    assert [WIDTH * n for n in lengths] == sizes
    for worker, (_, _, seen) in enumerate(played):
        own = {number for number in plan.files_of(worker).tolist() if lengths[number]}
        # Who has no row at first looks at the first one of all, to know what rows are like.
        is_shared = plan.policy is tdi.AutoShardPolicy.DATA
        if is_shared or (plan.policy is tdi.AutoShardPolicy.FILE and not drop_last):
            files = {number for number, _ in seen}
            assert own <= files
            assert len(files - own) <= 1
        if is_shared and cluster[0] > 1:
            assert len({*seen}) - plan.files_by_worker[worker] in (0, 1)


@pytest.mark.slow
@some
@given(st.lists(st.integers(0, 13), min_size=4, max_size=9), st.integers(1, 9), clusters, rules)
def test_examples_that_are_given_by_file_are_played_as_planned(lengths, size, cluster, rebatch):
    """Also where the workers vote, because their files are not counted."""
    chosen = options(rebatch=rebatch)
    plan = tdi.plan_epoch(
        lengths, global_batch_size=size, num_workers=cluster[0], replicas_per_worker=cluster[1],
        options=chosen,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        pattern = write(folder, lengths)
        played = run(
            lambda: tdi.FileDataset(pattern, reader=Watched()), cluster,
            global_batch_size=size, options=chosen,
        )  # fmt: skip
    check(plan, played)


class Squares(Dataset):
    """A dataset with an index."""

    def __len__(self):
        """Fifty."""
        return 50

    def __getitem__(self, index):
        """One of them."""
        return index**2


def documents(lengths):
    return [list(range(length)) for length in lengths]


def make_lists(lengths):
    numbers = iter(range(1000))
    return [[next(numbers) for _ in range(length)] for length in lengths]


DOCUMENTS = documents([3, 9, 2, 4, 8, 1, 1, 1, 7, 5] * 4)
SOURCES = {
    "a number of examples": (lambda: 50, lambda: torch.arange(50)),
    "columns": (lambda: torch.arange(50),) * 2,
    "a mixture": (
        lambda: tdi.mix(
            {"a": torch.arange(40), "b": torch.arange(100, 120)}, weights=[3, 1], stop="all"
        ),
    )
    * 2,
    "packed rows": (lambda: tdi.pack(DOCUMENTS, length=16, tokens=None),) * 2,
    "buckets": (lambda: tdi.bucket(DOCUMENTS, length=len, boundaries=[4, 8], window=20),) * 2,
    "shards": (lambda: [5, 9, 0, 14], lambda: Shards(make_lists([5, 9, 0, 14]))),
    "a loader": (lambda: DataLoader(Squares(), batch_size=7, drop_last=True),) * 2,
}


@pytest.mark.parametrize("policy", ["auto", "off"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_with_an_index_is_played_as_planned(name, policy):
    planned, distributed = SOURCES[name]
    size = {} if name == "a loader" else {"global_batch_size": 7}
    chosen = {"options": options(auto_shard_policy=policy)}
    plan = tdi.plan_epoch(planned(), num_workers=3, replicas_per_worker=2, **size, **chosen)
    listed = {"collate_fn": list} if name == "buckets" else {}
    check(plan, run(distributed, (3, 2), **size, **listed, **chosen))


def test_a_token_budget_is_planned_batch_by_batch():
    source = DOCUMENTS
    budget = tdi.TokenBudget(12, length=len)
    plan = tdi.plan_epoch(source, global_batch_size=budget, num_workers=3, shuffle=True, seed=1)

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=budget, shuffle=True, seed=1, collate_fn=list
        )
        iterator = iter(dataset)
        counts = [iterator.last_step.local_counts for _ in iterator]
        return counts, iterator.stats().zero_row_batches, []

    check(plan, simulate(work, num_workers=3))


def test_what_takes_and_repeats_is_counted_as_it_is_played(tmp_path):
    pattern = write(tmp_path, [5, 9, 2, 7])

    def make_source():
        return tdi.FileDataset(pattern, reader=Watched(counted=True)).take(8).repeat(2)

    plan = tdi.plan_epoch(make_source(), global_batch_size=6, num_workers=3, count=True)
    check(plan, run(make_source, (3, 1), global_batch_size=6))


def test_what_skips_bad_records_is_not_exact(tmp_path):
    source = tdi.FileDataset(
        write(tmp_path, [5, 9]), reader=Numbers(counted=True), on_error="skip"
    )
    plan = tdi.plan_epoch(source, global_batch_size=6, num_workers=2, count=True)
    assert [5, 9] == plan.examples_by_worker.tolist()
    assert not plan.is_exact
    assert any("leaves out bad records" in note for note in plan.notes)


def test_what_a_filter_keeps_is_not_known(tmp_path):
    source = tdi.FileDataset(write(tmp_path, [5, 9]), reader=Numbers(counted=True)).filter(bool)
    plan = tdi.plan_epoch(source, global_batch_size=6, num_workers=2, count=True)
    assert (None, None, False) == (plan.steps, plan.examples, plan.is_exact)
    assert 14 * WIDTH == plan.num_bytes
    assert any("filter" in note for note in plan.notes)
