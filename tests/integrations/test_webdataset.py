"""WebDataset: tar files and pipelines, every sample counted, on two workers and over restarts."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from functools import partial

import pytest
import torch
import webdataset as wds

import torch_distinput as tdi
from torch_distinput.testing import run_ranks, simulate

# WebDataset leaves files open that it has read half-way.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
SIZES = (5, 8, 3, 9)
COUNT = sum(SIZES)
OFF = tdi.InputOptions(auto_shard_policy="off")


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Four tar files with a text in each sample."""
    folder = tmp_path_factory.mktemp("tars")
    numbers = itertools.count()
    for shard, size in enumerate(SIZES):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as tar:
            for number in itertools.islice(numbers, size):
                content = str(number).encode()
                info = tarfile.TarInfo(f"{number:04}.txt")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return sorted(map(str, folder.glob("*.tar")))


def number_of(sample):
    """Of a sample."""
    return int(sample["txt"])


def pipeline(tars, **settings):
    """Numbers."""
    settings = {"shardshuffle": False, "nodesplitter": None, **settings}
    return wds.WebDataset(tars, **settings).map(number_of)


def play(make, num_workers, state=None, steps=None, epoch=0):
    """The numbers of all workers, and the state after some steps."""

    def work(strategy):
        dataset = make(strategy)
        dataset.set_epoch(epoch)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        played = itertools.islice(iter(dataset), steps)
        return [number for step in played for number in step.tolist()], dataset.state_dict()

    results = simulate(work, num_workers=num_workers)
    return [own for own, _ in results], json.dumps(results[0][1])


def check(make, before, after, *, epoch=0):
    """Every sample once, with a restart in the middle."""
    first, state = play(make, before, steps=2, epoch=epoch)
    rest, _ = play(make, after, state, epoch=epoch)
    assert list(range(COUNT)) == sorted(itertools.chain(*first, *rest))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_tar_files(tars, before, after):
    """A FileDataset: exact, and on any number of workers."""
    files = tdi.FileDataset(tars, reader="tar").map(number_of)
    check(lambda strategy: strategy.distribute_dataset(files, global_batch_size=4), before, after)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("epoch", [0, 2])
def test_one_pipeline_for_all(tars, before, after, epoch):
    """Every worker reads all of it; a shuffle that is told the epoch goes on as it was."""

    def make(strategy):
        source = pipeline(tars).compose(wds.detshuffle(6, seed=3))
        return strategy.distribute_dataset(source, global_batch_size=4)

    check(make, before, after, epoch=epoch)


def test_an_order_of_each_epoch(tars):
    """That of detshuffle, in any process."""

    def make(strategy):
        source = pipeline(tars).compose(wds.detshuffle(6, seed=3))
        return strategy.distribute_dataset(source, global_batch_size=4)

    one = tdi.OneDeviceStrategy("cpu")
    dataset = make(one)
    epochs = [[number for step in dataset for number in step.tolist()] for _ in range(3)]
    assert 3 == len(set(map(tuple, epochs)))
    assert epochs[2] == play(make, 1, epoch=2)[0][0]


@pytest.mark.parametrize("splitter", ["single_node_only", "split_by_node"])
def test_pipelines_that_are_split_already(tars, splitter):
    """Each rank would play a part of its part."""
    source = pipeline(tars, nodesplitter=getattr(wds, splitter))

    def work(strategy):
        with pytest.raises(tdi.ConfigurationError, match=f"nodesplitter={splitter}.*=None"):
            strategy.distribute_dataset(source, global_batch_size=4)

    simulate(work, num_workers=2)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=4)
    assert COUNT == sum(len(step) for step in dataset)


def test_shuffles_without_a_seed(tars):
    """Another order after each restart."""
    with pytest.raises(tdi.ConfigurationError, match="without a seed.*detshuffle"):
        tdi.OneDeviceStrategy("cpu").distribute_dataset(
            pipeline(tars).shuffle(10), global_batch_size=4
        )


def test_shards_that_each_process_shuffles_otherwise(tars):
    """The seed of a pipeline is random if none is given: a state of another one is refused."""

    def make():
        source = pipeline(tars, shardshuffle=4)
        return tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=4)

    dataset, other = make(), make()
    next(iter(dataset))
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(tdi.ConfigurationError, match="seeds and shards"):
        iter(other)


def of_function(tars, splitter):
    """Replica batches of a pipeline."""

    def dataset_fn(_):
        source = wds.WebDataset(tars, shardshuffle=False, nodesplitter=splitter).map(number_of)
        return source.batched(2, collation_fn=torch.tensor)

    return tdi.DatasetCreator(dataset_fn)


def test_pipelines_of_a_function(tars):
    """split_by_node takes the part, both end at the same step, and a restart loses nothing."""
    results = run_ranks(partial(play_in_rank, tars=tars), 2)
    first, rest = (sorted(itertools.chain(*parts)) for parts in zip(*results, strict=True))
    assert list(range(COUNT)) == sorted(first + rest)


def play_in_rank(strategy, tars):
    """Two steps, and the rest from the state."""
    dataset = strategy.distribute_dataset(of_function(tars, wds.split_by_node))
    steps = iter(dataset)
    first = [number for step in itertools.islice(steps, 2) for number in step.tolist()]
    again = strategy.distribute_dataset(of_function(tars, wds.split_by_node))
    again.load_state_dict(steps.state_dict())
    return first, [number for step in again for number in step.tolist()]


def test_functions_whose_pipelines_take_no_part(tars, caplog):
    """The default refuses several nodes, at the first example: said at once; none is warned of."""

    def work(strategy):
        with pytest.raises(tdi.ConfigurationError, match="nodesplitter=wds.split_by_node"):
            strategy.distribute_dataset(of_function(tars, wds.single_node_only))
        strategy.distribute_dataset(of_function(tars, None))

    simulate(work, num_workers=2)
    assert "every worker delivers all examples" in caplog.text


@pytest.fixture
def four_ranks(monkeypatch):
    """What WebDataset asks for its number of nodes: data may be parallel over fewer."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")


@pytest.mark.usefixtures("four_ranks")
def test_parts_for_more_ranks_than_workers(tars):
    """Half of the shards would be nobody's."""
    source = pipeline(tars, nodesplitter=wds.split_by_node)

    def work(strategy):
        with pytest.raises(tdi.ConfigurationError, match="2 parts, .* got one split into 4 "):
            strategy.distribute_dataset(of_function(tars, wds.split_by_node))
        with pytest.raises(tdi.ConfigurationError, match="nodesplitter=split_by_node.*=None"):
            strategy.distribute_dataset(source, global_batch_size=4)
        with pytest.raises(tdi.ConfigurationError, match="2 parts, .* got one split into 4 "):
            strategy.distribute_dataset(source, global_batch_size=4, options=OFF)

    simulate(work, num_workers=2)


@pytest.mark.usefixtures("four_ranks")
def test_a_part_that_is_one_worker_s_own(tars):
    """The whole of a training that no other rank takes part in, if it is said so."""
    source = pipeline(tars, nodesplitter=wds.split_by_node)
    one = tdi.OneDeviceStrategy("cpu")
    with pytest.raises(tdi.ConfigurationError, match="nodesplitter=split_by_node.*=None"):
        one.distribute_dataset(source, global_batch_size=4)
    for dataset in (
        one.distribute_dataset(source, global_batch_size=4, options=OFF),
        one.distribute_dataset(of_function(tars, wds.split_by_node)),
    ):
        assert SIZES[1] == sum(len(step) for step in dataset)


@pytest.mark.usefixtures("four_ranks")
def test_a_part_for_each_worker(tars):
    """As many as ranks; and shards that were chosen by the context."""

    def dataset_fn(context):
        own = tars[context.input_pipeline_id :: context.num_input_pipelines]
        return pipeline(own).batched(2, collation_fn=torch.tensor)

    def play_all(strategy):
        strategy.distribute_dataset(of_function(tars, wds.split_by_node))  # not to be refused
        dataset = strategy.distribute_dataset(tdi.DatasetCreator(dataset_fn))
        return [number for step in dataset for number in step.tolist()]

    numbers = itertools.chain(*simulate(play_all, num_workers=4))
    assert list(range(COUNT)) == sorted(numbers)


def test_a_part_for_each_pipeline_of_a_worker(tars):
    """Both replicas of one process would play the same."""
    two = tdi.MirroredStrategy(["cpu", "cpu"])
    options = tdi.InputOptions(replication_mode="per_replica")
    creator = of_function(tars, wds.split_by_node)
    with pytest.raises(tdi.ConfigurationError, match="2 parts, .* got one split into 1 "):
        two.distribute_dataset(creator, options=options)
