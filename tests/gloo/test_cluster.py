"""Process groups and meshes: which ranks take part, and what stays behind."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist

import torch_distinput as tdi
from tests.distribute.street import shown
from tests.gloo.jobs import SOON, numbers
from torch_distinput.testing import run_ranks
from torch_distinput.testing.ranks import RankError


def play(strategy):
    """All examples of a stream, and a sum over the workers."""
    dataset = strategy.distribute_dataset(partial(numbers, 9), global_batch_size=4)
    mine = [x for step in dataset for batch in shown(strategy, step) for x in batch]
    return strategy.worker_index, strategy.num_workers, mine, int(strategy.reduce("sum", 1))


def on_a_mesh(data_dims, _):
    """Data is parallel over some dimensions of a 2 x 2 mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "tensor"))
    return play(tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh, data_dims=data_dims))


def test_ranks_that_differ_in_other_dimensions_get_the_same_data():
    """Tensor-parallel peers read alike; each data-parallel group covers everything."""
    ranks = run_ranks(partial(on_a_mesh, ["replicate"]), 4)
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert [(0, 2), (1, 2)] == [ranks[0][:2], ranks[2][:2]]
    assert list(range(9)) == sorted(ranks[0][2] + ranks[2][2])
    assert 2 == ranks[0][3]


def test_several_data_dimensions():
    """Both dimensions of the mesh, the first one slowest."""
    ranks = run_ranks(partial(on_a_mesh, ["replicate", "tensor"]), 4)
    assert [(k, 4) for k in range(4)] == [rank[:2] for rank in ranks]
    assert list(range(9)) == sorted(x for rank in ranks for x in rank[2])


def on_a_part_of_a_mesh(_):
    """Two data dimensions of a mesh of three, of which each rank sees its own part."""
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicate", "shard", "tensor")
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=names)[names[:2]]
    return play(tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh, data_dims=names[:2]))


def test_several_data_dimensions_of_a_part():
    """The groups of the parts do not get in each other's way."""
    ranks = run_ranks(on_a_part_of_a_mesh, 4)
    assert [(0, 2), (0, 2), (1, 2), (1, 2)] == [rank[:2] for rank in ranks]
    for part in (ranks[0::2], ranks[1::2]):
        assert list(range(9)) == sorted(x for rank in part for x in rank[2])
        assert [2, 2] == [rank[3] for rank in part]


def on_a_small_mesh(strategy):
    """A mesh of the first rank alone."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [0], mesh_dim_names=("data",))
    if strategy.worker_index == 1:
        with pytest.raises(tdi.ConfigurationError, match="device_mesh that this rank"):
            tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh)
        return None
    return play(tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh))[1]


def test_a_rank_outside_the_mesh():
    """It is told so at once."""
    assert [1, None] == run_ranks(on_a_small_mesh, 2)


def on_a_group(strategy):
    """Two of three ranks; the third has another job."""
    group = dist.new_group([0, 2])
    if strategy.worker_index == 1:
        with pytest.raises(tdi.ConfigurationError, match="without rank 1 of 3. Make") as got:
            tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=group)
        assert got.match("process_group that this rank")
        return None
    return play(tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=group))


def test_a_process_group_of_some_ranks():
    """The others need not take part in anything."""
    first, other, second = run_ranks(on_a_group, 3)
    assert other is None
    assert [(0, 2), (1, 2)] == [first[:2], second[:2]]
    assert list(range(9)) == sorted(first[2] + second[2])


def many_datasets(_strategy):
    """Groups and threads after twenty datasets, left in every way, and after their strategy."""
    before = set(threading.enumerate())
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    groups = []
    for number in range(20):
        dataset = strategy.distribute_dataset(partial(numbers, 50), global_batch_size=4)
        for step, _ in enumerate(dataset):
            if step == number:
                break
        del dataset
        gc.collect()
        strategy.reduce("sum", 1)
    assert "torch_distinput-heartbeat" in {thread.name for thread in threading.enumerate()}
    del strategy
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(SOON)
    gc.collect()
    groups = len(dist.distributed_c10d._world.pg_map)
    return {thread.name for thread in set(threading.enumerate()) - before}, groups


@pytest.mark.slow
def test_nothing_stays_behind():
    """Neither threads nor groups of datasets that are gone."""
    for threads, groups in run_ranks(many_datasets, 2):
        assert set() == threads
        assert 1 == groups


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)


def all_dtypes(strategy):
    """Sum, mean and gather in every dtype."""
    results = []
    for dtype in DTYPES:
        mine = torch.tensor([[0, 1]] * (1 + strategy.worker_index)).to(dtype)
        total, mean = (strategy.reduce(op, mine, 0) for op in ("sum", "mean"))
        both = strategy.gather(mine)
        results.append((total.tolist(), total.dtype, mean.tolist(), both.tolist(), both.dtype))
    return results, strategy.gather(torch.ones(0, 3)).shape, strategy.gather(torch.ones(1, 0)).shape


@pytest.mark.slow
def test_every_dtype():
    """Also those that gloo cannot reduce or gather."""
    for results, nothing, narrow in run_ranks(all_dtypes, 2):
        for dtype, (total, kind, mean, both, gathered) in zip(DTYPES, results, strict=True):
            assert ([0, 3], [0, 1], [[0, 1]] * 3) == (total, mean, both), dtype
            has_width = dtype.is_floating_point or dtype.is_complex
            assert (dtype if has_width else torch.int64, dtype) == (kind, gathered)
        assert ((0, 3), (2, 0)) == (nothing, narrow)


def two_at_once(strategy):
    """Two datasets, advanced in turns, do not share anything."""
    one = iter(strategy.distribute_dataset(partial(numbers, 20), global_batch_size=4))
    other = iter(strategy.distribute_dataset(partial(numbers, 9), global_batch_size=2))
    return [(shown(strategy, a), shown(strategy, b)) for a, b in zip(one, other, strict=True)]


def test_two_datasets_at_once():
    """Each has a group of its own."""
    first, second = run_ranks(two_at_once, 2)
    for part, expected in ((0, range(20)), (1, range(9))):
        seen = [x for rank in (first, second) for step in rank for b in step[part] for x in b]
        assert list(expected) == sorted(seen)


def different_files(folder, strategy):
    """The same name with another size on each rank."""
    path = f"{folder}/rank{strategy.worker_index}/a.txt"
    files = tdi.FileDataset([path, path])
    return list(strategy.distribute_dataset(files, global_batch_size=4))


@pytest.mark.slow
def test_files_that_differ_between_ranks(tmp_path):
    """Names may lie in other folders, but names and sizes must agree."""
    from torch_distinput.testing import RankError

    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "a.txt").write_text("x\n" * (1 + rank))
    with pytest.raises(RankError, match="same files on all workers"):
        run_ranks(partial(different_files, str(tmp_path)), 2)
    (tmp_path / "rank1" / "a.txt").write_text("x\n")
    ranks = run_ranks(partial(different_files, str(tmp_path)), 2)
    assert [["x"], ["x"]] == [[line for batch in rank for line in batch] for rank in ranks]


def made_before_the_group(_):
    """As mp.spawn, ddp_fork and notebooks let one do it: this rank's strategy knows of no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_initialized", lambda: False)
        patch.delenv("WORLD_SIZE", raising=False)
        strategy = tdi.MultiWorkerMirroredStrategy()
    dataset = strategy.distribute_dataset(torch.arange(9), global_batch_size=4)
    for use in (lambda: iter(dataset), lambda: strategy.reduce("sum", 1)):
        with pytest.raises(tdi.UsageError, match="2 ranks.*made before the group"):
            use()
    return strategy.num_workers


def test_a_strategy_that_is_older_than_its_group():
    """Each rank would read everything, as if it were alone."""
    assert [1, 1] == run_ranks(made_before_the_group, 2)


def alone_in_a_group(policy, _):
    """A strategy of one process, on each of several ranks."""
    strategy = tdi.MirroredStrategy(["cpu"])
    dataset = strategy.distribute_dataset(
        torch.arange(9), global_batch_size=4, options=tdi.InputOptions(auto_shard_policy=policy)
    )
    assert int(strategy.reduce("sum", 1)) == 1
    return sum(len(batch) for batch in dataset)


def test_reading_everything_on_every_rank_is_asked_for():
    """By a word; else it is a mistake."""
    assert [9, 9] == run_ranks(partial(alone_in_a_group, "off"), 2)
    with pytest.raises(RankError, match="MultiWorkerMirroredStrategy, because there is a process"):
        run_ranks(partial(alone_in_a_group, "auto"), 2)
