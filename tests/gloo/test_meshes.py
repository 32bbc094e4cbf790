"""Ranks that share data get the same of everything, read alike or read once."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from functools import partial

import pytest
import torch

import torch_distinput as tdi
from tests.gloo.jobs import described
from tests.gloo.meshes import (
    THREE_DIMENSIONS,
    TWO_BESIDE,
    TWO_BY_TWO,
    Noted,
    NotedStream,
    examples,
    fetched,
    played,
    strategy_on,
)
from torch_distinput.device import prefetch
from torch_distinput.device.backend import CpuBackend
from torch_distinput.distribute import build
from torch_distinput.engine import broadcast_feed
from torch_distinput.testing import RankError, run_ranks
from torch_distinput.testing.ranks import run_ranks_outcomes

SOURCES = {"index": Noted, "stream": NotedStream}


def one_epoch(folder, kind, how, shape, _):
    """An epoch with a ragged end."""
    strategy = strategy_on(*shape, replicate_input=how)
    dataset = strategy.distribute_dataset(SOURCES[kind](folder, 11), global_batch_size=4)
    steps = played(strategy, dataset)
    return strategy.worker_index, steps, dataset.state_dict()


def partners_of(ranks, size):
    """What ranks that share data have got, in worker order: alike."""
    groups = [[rank for rank in ranks if rank[0] == worker] for worker in range(len(ranks) // size)]
    for group in groups:
        assert [group[0]] * size == group
    return [group[0] for group in groups]


@pytest.mark.parametrize("how", ["read", "broadcast"])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_example_once_over_the_data_and_alike_over_the_rest(tmp_path, kind, how):
    """Batches, counts, ids, specs and states; and with a broadcast one of the partners reads."""
    ranks = run_ranks(partial(one_epoch, str(tmp_path), kind, how, TWO_BY_TWO), 4)
    workers = partners_of(ranks, 2)
    assert list(range(11)) == sorted(x for worker in workers for x in examples(worker[1]))
    assert [3, 3] == [len(worker[1]) for worker in workers]
    # Of a stream every worker reads all, of an index its own part; and workers compare examples.
    often = {count for index, count in Counter(fetched(tmp_path)).items() if index % 4}
    num_readers = {"read": 2, "broadcast": 1}[how] * {"stream": 2, "index": 1}[kind]
    assert {num_readers} == often


@pytest.mark.parametrize("shape", [THREE_DIMENSIONS, TWO_BESIDE], ids=["two of data", "one"])
def test_three_dimensions(tmp_path, shape):
    """Pairs of partners, and groups of four."""
    ranks = run_ranks(partial(one_epoch, str(tmp_path), "index", "broadcast", shape), 8)
    size = 2 if shape is THREE_DIMENSIONS else 4
    workers = partners_of(ranks, size)
    assert 8 // size == len(workers)
    assert list(range(11)) == sorted(x for worker in workers for x in examples(worker[1]))
    assert 1 == Counter(fetched(tmp_path))[3]


def batches_of_all_kinds():
    """Strings, lists, arrays, jagged tensors and trailing sizes that change."""
    for k in range(7):
        rows = [torch.full((n,), 1.0 * n) for n in range(1, 3 + k % 3)]
        yield {
            "words": [f"word {n}" for n in range(len(rows))],
            "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
            "wide": torch.full((len(rows), 1 + k), k),
            "half": torch.full((len(rows),), k, dtype=torch.bfloat16),
        }


def listed(batch):
    """A batch as plain values."""
    plain = {**batch, "jagged": [row.tolist() for row in batch["jagged"].unbind()]}
    return {
        name: (str(leaf.dtype), leaf.tolist()) if isinstance(leaf, torch.Tensor) else leaf
        for name, leaf in plain.items()
    }


def all_kinds(replicas, pad, _):
    strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast", devices=["cpu"] * replicas)
    dataset = strategy.distribute_dataset(batches_of_all_kinds)
    steps = [list(map(listed, strategy.local_results(batch))) for batch in dataset]
    few = strategy.distribute_dataset(
        [{"text": f"é{n}", "x": torch.ones(3) * n} for n in range(5)],
        global_batch_size=4 * replicas,
        options=tdi.InputOptions(partial_batch="pad") if pad else None,
    )
    return strategy.worker_index, steps, [str(strategy.local_results(batch)) for batch in few]


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "pad"), [(1, False), (2, True)])
def test_leaves_of_all_kinds(replicas, pad):
    """Zero rows and padded rows too, for each of several replicas."""
    workers = partners_of(run_ranks(partial(all_kinds, replicas, pad), 4), 2)
    words = [
        word
        for worker in workers
        for batches in worker[1]
        for batch in batches
        for word in batch["words"]
    ]
    assert sum(2 + k % 3 for k in range(7)) == len(words)


def resumed(folder, num_first, how, _):
    """Some steps, and the rest on another degree of data parallelism."""
    first = strategy_on((num_first, 4 // num_first), ("dp", "tp"), replicate_input=how)
    source = Noted(folder, 22)
    dataset = first.distribute_dataset(source, global_batch_size=4, shuffle=True)
    before = examples(played(first, dataset, 2))
    state = dataset.state_dict()
    other = strategy_on((4 // num_first, num_first), ("dp", "tp"), replicate_input=how)
    dataset = other.distribute_dataset(source, global_batch_size=4, shuffle=True)
    dataset.load_state_dict(state)
    length = len(dataset)
    after = played(other, dataset)
    assert length == 2 + len(after)
    return before, examples(after), state, dataset.state_dict()


@pytest.mark.parametrize("num_first", [1, 4])
def test_resumed_on_another_degree(tmp_path, num_first):
    """Four partners, then four workers, and the other way round: every example once."""
    ranks = run_ranks(partial(resumed, str(tmp_path), num_first, "broadcast"), 4)
    alone, all_four = (0, 1) if num_first == 1 else (1, 0)
    assert all(rank[alone] == ranks[0][alone] for rank in ranks)
    assert all(rank[2:] == ranks[0][2:] for rank in ranks)
    got = ranks[0][alone] + [x for rank in ranks for x in rank[all_four]]
    assert list(range(22)) == sorted(got)


def left_and_played_again(folder, kind, _):
    """Loops that all ranks leave, before the first step, after it, and not at all."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast")
    dataset = strategy.distribute_dataset(SOURCES[kind](folder, 9), global_batch_size=4)
    spec = str(dataset.element_spec)
    played(strategy, dataset, 1)
    iter(dataset)
    epochs = [played(strategy, dataset, stop) for stop in (2, None, None)]
    return strategy.worker_index, epochs, dataset.epoch, spec


@pytest.mark.parametrize("kind", SOURCES)
def test_loops_that_were_left(tmp_path, kind):
    """What was read ahead for one of them is not taken for a step of the next."""
    for worker in partners_of(
        run_ranks(partial(left_and_played_again, str(tmp_path), kind), 4), 2
    ):
        _, epochs, epoch, spec = worker
        assert "torch.int64" in spec
        assert 5 == epoch
        assert [2, 3, 3] == [len(steps) for steps in epochs]


class Copies(CpuBackend):
    """A device that only pretends, so that a thread reads ahead for it."""

    def holds(self, tensor):
        return False

    def copy(self, source):
        return source.clone()


def left_while_reading_ahead(folder, kind, drains, _):
    with pytest.MonkeyPatch.context() as patch:
        if not drains:
            patch.setattr(broadcast_feed, "_MOST_AHEAD", 0)
            patch.setattr(broadcast_feed, "_LEAVE_SECONDS", 0.01)
        patch.setattr(prefetch, "backend_for", lambda _: Copies())
        patch.setattr(build, "host_memory", lambda _: None)
        strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast", devices=["meta:0"])
        dataset = strategy.distribute_dataset(SOURCES[kind](folder, 50), global_batch_size=4)
        epochs = [played(strategy, dataset, stop) for stop in (1, 5, 2, None)]
    del strategy, dataset
    gc.collect()
    alive = [t.name for t in threading.enumerate() if "torch_distinput" in t.name]
    return torch.distributed.get_rank() // 2, epochs, [n for n in alive if "prefetch" in n]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "drains"), [("index", True), ("stream", True), ("index", False)])
def test_loops_that_were_left_while_a_thread_read_ahead(tmp_path, kind, drains):
    """Whatever the reader has sent by then, and nobody took: also if nobody takes it at the end."""
    ranks = run_ranks(partial(left_while_reading_ahead, str(tmp_path), kind, drains), 4)
    workers = partners_of(ranks, 2)
    assert list(range(50)) == sorted(x for worker in workers for x in examples(worker[1][3]))
    for _, epochs, threads in workers:
        assert [1, 5, 2, 13] == [len(steps) for steps in epochs]
        assert [] == threads


def broken(folder, kind, _):
    """The source raises on the ranks that read."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast")
    source = SOURCES[kind](folder, 400_000, broken=9)
    return [len(batch) for batch in strategy.distribute_dataset(source, global_batch_size=4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_an_error_in_the_source(tmp_path, kind):
    """It comes to all ranks in its own words; at the reader that met it first as it is."""
    said = [described(it) for it in run_ranks_outcomes(partial(broken, str(tmp_path), kind), 4)]
    assert all("ValueError at example 9: example 9 is broken" in words for words in said)
    readers, partners = ([words.partition(":")[0] for words in said[first::2]] for first in (0, 1))
    assert ["PeerFailedError"] * 2 == partners
    # Both workers read all of a stream: who is ahead says so in a vote, and the other hears it.
    assert {"SourceError"} <= set(readers) <= {"SourceError", "PeerFailedError"}


def cannot_be_sent(_):
    strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast")
    dataset = strategy.distribute_dataset(
        [0, 1, 2], global_batch_size=2, collate_fn=lambda rows: [lambda: None for _ in rows]
    )
    return [len(batch) for batch in dataset]


@pytest.mark.slow
def test_a_batch_that_cannot_be_sent():
    """Every rank hears of it, with the cure."""
    for outcome in run_ranks_outcomes(cannot_be_sent, 4):
        assert 'replicate_input="broadcast"' in described(outcome)


def differs(how, _):
    """All workers of the second row of ranks have another seed than those of the first."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input=how)
    seed = torch.distributed.get_rank() % 2
    dataset = strategy.distribute_dataset(
        torch.arange(9), global_batch_size=4, shuffle=True, seed=seed
    )
    return [batch.tolist() for batch in dataset]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read", "broadcast"])
def test_partners_that_would_not_do_the_same(how):
    """Read alike, it would go unnoticed: each row of ranks by itself is sound."""
    with pytest.raises(RankError, match="the same seed on all workers"):
        run_ranks(partial(differs, how), 4)


def killed(rank_that_dies, _):
    strategy = strategy_on((1, 2), ("dp", "tp"), replicate_input="broadcast")
    dataset = strategy.distribute_dataset(torch.arange(4000), global_batch_size=4)
    for step, _ in enumerate(dataset):
        if step == 2 and torch.distributed.get_rank() == rank_that_dies:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_a_partner_that_dies(gone):
    """Neither end waits for the other for ever."""
    outcomes = run_ranks_outcomes(partial(killed, gone), 2)
    assert -signal.SIGKILL == outcomes[gone].exitcode
    assert "PeerFailedError" in described(outcomes[1 - gone])


def stopped(how, asks, _):
    """One rank asks all to stop."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input=how)
    dataset = strategy.distribute_dataset(torch.arange(400_000), global_batch_size=4)
    for step, _ in enumerate(dataset):
        if step == 3 and torch.distributed.get_rank() == asks:
            strategy.request_stop()
        if strategy.stop_requested:
            return step
        time.sleep(0.002)  # as a step would take; thousands go by until all have agreed
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("how", "asks"), [("read", 1), ("broadcast", 0), ("broadcast", 3)])
def test_all_ranks_of_a_mesh_stop_at_one_step(how, asks):
    """Whoever asks, the reader or a partner."""
    steps = run_ranks(partial(stopped, how, asks), 4)
    assert steps[0] is not None
    assert [steps[0]] * 4 == steps


def nothing_to_share(_):
    """A mesh whose other dimension has a size of one."""
    strategy = strategy_on((2, 1), ("dp", "tp"), replicate_input="broadcast")
    return strategy._session.partners, examples(
        played(strategy, strategy.distribute_dataset(torch.arange(5), global_batch_size=2))
    )


def test_nothing_to_share():
    """Everybody reads, as if nothing was said."""
    ranks = run_ranks(nothing_to_share, 2)
    assert [None, None] == [partners for partners, _ in ranks]
    assert list(range(5)) == sorted(x for _, got in ranks for x in got)


def with_loader_processes(folder, _):
    """Loader processes, an audit, a replay, and batches of a function."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input="broadcast")
    dataset = strategy.distribute_dataset(
        Noted(folder, 13), global_batch_size=4, num_workers=1,
        options=tdi.InputOptions(audit=True),
    )  # fmt: skip
    state = dataset.state_dict()
    iterator = iter(dataset)
    first = next(iterator)
    children = len(torch.multiprocessing.active_children())
    rest = [x for batch in iterator for x in batch.tolist()]
    again = dataset.replay(state, 0).batches[strategy.worker_index].tolist()
    made = strategy.distribute_datasets_from_function(
        lambda context: [torch.tensor([context.input_pipeline_id, k]) for k in range(3)]
    )
    batches = [batch.tolist() for batch in made]
    return strategy.worker_index, first.tolist() + rest, again == first.tolist(), batches, children


@pytest.mark.slow
def test_loader_processes_audit_replay_and_functions(tmp_path):
    """Only ranks that read start processes; whatever else works on all of them."""
    ranks = run_ranks(partial(with_loader_processes, str(tmp_path)), 4)
    assert [1, 0, 1, 0] == [rank[-1] for rank in ranks]
    workers = partners_of([rank[:-1] for rank in ranks], 2)
    assert list(range(13)) == sorted(x for worker in workers for x in worker[1])
    assert all(worker[2] for worker in workers)
    assert [[[w, k] for k in range(3)] for w in range(2)] == [worker[3] for worker in workers]
