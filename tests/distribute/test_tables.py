"""The tables of the tutorial and of docs/semantics.md, through whole datasets."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from tests.distribute.street import Shards, options, play, stream_of, write_files

SPLIT_TABLE = [
    ("split", 6, 4, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
    ("even", 6, 4, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
    ("cycle", 6, 4, 2, [[[0, 1], [2, 3]], [[4, 5], []]]),
    ("split", 8, 4, 3, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
    ("even", 8, 4, 3, [[[0, 1], [2], [3]], [[4, 5], [6], [7]]]),
    ("cycle", 8, 4, 3, [[[0, 1], [2], [3]], [[4, 5], [6], [7]]]),
    ("split", 4, 4, 5, [[[0], [1], [2], [3], []]]),
]


@pytest.mark.parametrize("kind", [range, lambda n: stream_of(range(n))], ids=["index", "stream"])
@pytest.mark.parametrize(("rebatch", "count", "size", "num_replicas", "expected"), SPLIT_TABLE)
def test_splitting(kind, rebatch, count, size, num_replicas, expected):
    """docs/semantics.md, Splitting: on local replicas of one worker."""
    (steps,) = play(kind(count), size, 1, num_replicas, options=options(rebatch=rebatch))
    assert expected == steps


@pytest.mark.parametrize("kind", [range, lambda n: stream_of(range(n))], ids=["index", "stream"])
@pytest.mark.parametrize(("rebatch", "count", "size", "num_replicas", "expected"), SPLIT_TABLE)
def test_splitting_over_workers(kind, rebatch, count, size, num_replicas, expected):
    """The same table with one replica on each of N workers."""
    workers = play(kind(count), size, num_replicas, 1, options=options(rebatch=rebatch))
    steps = [[replica for (replica,) in step] for step in zip(*workers, strict=True)]
    assert expected == steps


def test_file_policy(tmp_path):
    """Each file to one worker; each worker cuts its own batches."""
    pattern = write_files(tmp_path, [range(6), range(6, 12)])
    files = tdi.FileDataset(pattern).map(int)
    first, second = play(files, 4, 2)
    assert [[[0, 1]], [[2, 3]], [[4]], [[5]]] == first
    assert [[[6, 7]], [[8, 9]], [[10]], [[11]]] == second


@pytest.mark.parametrize("kind", ["index", "stream", "file"])
def test_data_policy(kind, tmp_path):
    """Every global batch is the next four of the whole."""
    files = tdi.FileDataset(write_files(tmp_path, [range(12)])).map(int)
    source = {"index": range(12), "stream": stream_of(range(12)), "file": files}[kind]
    first, second = play(source, 4, 2, options=options(auto_shard_policy="data"))
    assert [[[0, 1]], [[4, 5]], [[8, 9]]] == first
    assert [[[2, 3]], [[6, 7]], [[10, 11]]] == second


@pytest.mark.parametrize("kind", ["index", "stream", "file"])
def test_off_policy(kind, tmp_path):
    """Every worker plays everything."""
    files = tdi.FileDataset(write_files(tmp_path, [range(12)])).map(int)
    source = {"index": range(12), "stream": stream_of(range(12)), "file": files}[kind]
    expected = [[[k, k + 1]] for k in range(0, 12, 2)]
    assert [expected] * 2 == play(source, 4, 2, options=options(auto_shard_policy="off"))


def test_rotation_keeps_global_steps_full(tmp_path):
    """Two files of 7, G=7, 2x2: each step in sync has exactly 7 (``cycle`` is TF's splitter)."""
    pattern = write_files(tmp_path, [range(7), range(7, 14)])
    files = tdi.FileDataset(pattern).map(int)
    first, second = play(files, 7, 2, 2, options=options(rebatch="cycle"))
    assert [[[0, 1], [2, 3]], [[4, 5], [6]]] == first
    assert [[[7, 8], [9]], [[10, 11], [12, 13]]] == second


def test_the_shorter_worker_gets_zero_rows(tmp_path):
    """Files of 9 and 0 lines: the longest worker decides when the epoch ends."""
    files = tdi.FileDataset(write_files(tmp_path, [range(9), []])).map(int)
    first, second = play(files, 4, 2)
    assert [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8]]] == first
    assert [[[]]] * 5 == second


def test_shards_that_can_be_assigned():
    """An object with num_shards and shard() is dealt out as files are."""
    shards = Shards([[0, 1, 2], [3], [4, 5]])
    first, second = play(shards, 4, 2)
    assert [0, 1, 2, 4, 5] == [x for step in first for batch in step for x in batch]
    assert [3] == [x for step in second for batch in step for x in batch]
    whole = play(shards, 4, 2, options=options(auto_shard_policy="data"))
    assert [[[0, 1]], [[4]]] == whole[0]
    assert [[[2, 3]], [[5]]] == whole[1]


def test_ready_batches_are_split_along_rows():
    """Without global_batch_size the elements of a stream are global batches."""
    import torch

    batches = stream_of([torch.arange(4), torch.arange(4, 7)])
    (steps,) = play(batches, None, 1, 2)
    assert [[[0, 1], [2, 3]], [[4, 5], [6]]] == steps


@pytest.mark.parametrize("policy", ["data", "off"])
def test_drop_last(policy):
    """Only full global batches; under DATA the same for index and stream."""
    for source in (range(11), stream_of(range(11))):
        workers = play(source, 4, 2, drop_last=True, options=options(auto_shard_policy=policy))
        seen = sorted({x for worker in workers for step in worker for b in step for x in b})
        assert list(range(8)) == seen


def test_empty_sources_have_no_steps(tmp_path):
    """No example, no step, on any number of workers."""
    files = tdi.FileDataset(write_files(tmp_path, [[], []])).map(int)
    for source in (range(0), stream_of([]), files):
        assert [[], []] == play(source, 4, 2)


def test_take_acts_per_worker_under_file(tmp_path):
    """As in TensorFlow: what follows the reader acts on the worker's own stream."""
    pattern = write_files(tmp_path, [range(5), range(5, 8), range(8, 12)])
    files = tdi.FileDataset(pattern).map(int).take(6)
    first, second = play(files, 4, 2)
    assert [0, 1, 2, 3, 4, 8] == [x for step in first for b in step for x in b]
    assert [5, 6, 7] == [x for step in second for b in step for x in b]
    whole = play(files, 4, 2, options=options(auto_shard_policy="data"))
    assert list(range(6)) == sorted(x for w in whole for step in w for b in step for x in b)


def test_from_function_plays_replica_batches():
    """One element per local replica and step; a replica without one gets zero rows."""
    import torch

    from torch_distinput.testing import simulate

    seen = []

    def dataset_fn(context):
        seen.append(str(context))
        mine = range(context.input_pipeline_id, 7, context.num_input_pipelines)
        return [torch.tensor([x]) for x in mine]

    def work(strategy):
        dataset = strategy.distribute_datasets_from_function(dataset_fn)
        return [[b.tolist() for b in strategy.local_results(step)] for step in dataset]

    first, second = simulate(work, num_workers=2, replicas_per_worker=2)
    assert [[[0], [2]], [[4], [6]]] == first
    assert [[[1], [3]], [[5], []]] == second
    assert 2 == len(seen)


def test_from_function_per_replica():
    """``replication_mode="per_replica"`` makes a pipeline for each replica."""
    import torch

    strategy = tdi.MirroredStrategy(["cpu"] * 2)

    def dataset_fn(context):
        mine = torch.arange(context.input_pipeline_id, 10, context.num_input_pipelines)
        return list(mine.split(2))

    dataset = strategy.distribute_datasets_from_function(
        dataset_fn, options(replication_mode="per_replica")
    )
    steps = [[b.tolist() for b in strategy.local_results(step)] for step in dataset]
    assert [[[0, 2], [1, 3]], [[4, 6], [5, 7]], [[8], [9]]] == steps
