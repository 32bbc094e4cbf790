"""The Distributed Input tutorial of tf.distribute, section by section, in PyTorch.

The original is https://www.tensorflow.org/tutorials/distribute/input. Each section below has its
title, prints what its tables say, and asserts it. Run it anywhere, without torchrun:

    python examples/tutorial.py

Replicas are virtual CPU devices. The tables with two workers run on two simulated workers of the
test kit; a training script gets its workers from torchrun instead and is otherwise the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from torch_distinput.coordinator import ClusterCoordinator, Parameters, ParameterServerStrategy
from torch_distinput.preprocessing import StringLookup
from torch_distinput.testing import simulate

Steps = list[list[list[int]]]
"""Steps of replicas of examples."""


def main() -> None:
    """Walk through the tutorial."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        distributed_datasets()
        batching()
        sharding(Path(folder))
        prefetching()
        datasets_from_function()
        iterators()
        element_spec()
        preprocessing()
        tpus()
        parameter_servers()
        partial_batches(Path(folder))
        caveats(Path(folder))
        predictions_in_order()
        tensor_inputs()


# --- Distributed datasets -------------------------------------------------------------------------


def distributed_datasets() -> None:
    """``experimental_distribute_dataset``, usage: state the global batch size and iterate."""
    title("Distributed datasets: distribute_dataset")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    features, labels = torch.ones(100, 1), torch.ones(100, 1)
    dist_dataset = strategy.distribute_dataset((features, labels), global_batch_size=16)

    first = next(iter(dist_dataset))  # 1 global batch of data for 1 step
    shapes = [[tuple(x.shape) for x in batch] for batch in strategy.local_results(first)]
    print(f"  {len(dist_dataset)} steps; shapes in the first: {shapes[0]} | {shapes[1]}")

    assert shapes == [[(8, 1), (8, 1)], [(8, 1), (8, 1)]]
    assert len(dist_dataset) == 7


def batching() -> None:
    """Properties, batching: how a global batch is split over the replicas."""
    title("Batching: a global batch over the replicas in sync")
    for size, global_batch, replicas, expected in (
        (6, 4, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
        (4, 4, 5, [[[0], [1], [2], [3], []]]),
        (8, 4, 3, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
    ):
        strategy = tdi.MirroredStrategy(["cpu"] * replicas)
        dist_dataset = strategy.distribute_dataset(
            torch.arange(size), global_batch_size=global_batch
        )
        steps = [on_replicas(strategy, step) for step in dist_dataset]
        print(f"  range({size}), global batch {global_batch}, {replicas} replicas")
        show(steps)
        assert steps == expected


def sharding(folder: Path) -> None:
    """Properties, sharding: FILE, DATA and OFF on two workers with one replica each."""
    title("Sharding: two workers, one replica each, global batch 4")
    two_files = [write(folder / "a.txt", range(6)), write(folder / "b.txt", range(6, 12))]
    one_file = write(folder / "all.txt", range(12))
    everything = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8, 9]], [[10, 11]]]
    for policy, files, expected in (
        (
            tdi.AutoShardPolicy.FILE,
            two_files,
            [
                [[[0, 1]], [[2, 3]], [[4]], [[5]]],
                [[[6, 7]], [[8, 9]], [[10]], [[11]]],
            ],
        ),
        (
            tdi.AutoShardPolicy.DATA,
            [one_file],
            [
                [[[0, 1]], [[4, 5]], [[8, 9]]],
                [[[2, 3]], [[6, 7]], [[10, 11]]],
            ],
        ),
        (tdi.AutoShardPolicy.OFF, [one_file], [everything, everything]),
    ):
        workers = play_files(files, policy)
        print(f"  {policy.name}")
        show_workers(workers)
        assert workers == expected

    # AUTO deals out files where there are any; too few of them are an error on every worker.
    assert play_files(two_files, tdi.AutoShardPolicy.AUTO) == play_files(
        two_files, tdi.AutoShardPolicy.FILE
    )
    try:
        play_files([one_file], tdi.AutoShardPolicy.AUTO)
    except tdi.TooFewFilesError as error:
        print(f"  AUTO with one file: {type(error).__name__}")
    else:
        raise AssertionError("one file is too few for two workers")


def prefetching() -> None:
    """Properties, prefetching: copies to the device ahead of use, which changes no value."""
    title("Prefetching: the buffer changes no value")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    for buffer_size in (0, 1, 4):
        options = tdi.InputOptions(per_replica_buffer_size=buffer_size)
        dist_dataset = strategy.distribute_dataset(
            torch.arange(6), global_batch_size=4, options=options
        )
        steps = [on_replicas(strategy, step) for step in dist_dataset]
        print(f"  per_replica_buffer_size={buffer_size}: {len(steps)} steps")
        assert steps == [[[0, 1], [2, 3]], [[4], [5]]]


def datasets_from_function() -> None:
    """``distribute_datasets_from_function``: shard and batch yourself.

    The original's ``dataset_fn`` batches twice by mistake; this one makes replica batches of 8.
    """
    title("Datasets from a function: your own sharding and batching")

    def dataset_fn(context: tdi.InputContext) -> DataLoader[Any]:
        batch_size = context.get_per_replica_batch_size(16)
        examples = [(torch.ones(1), torch.ones(1))] * 64
        shard = tdi.DataShardDataset(
            examples, context.num_input_pipelines, context.input_pipeline_id
        )
        return DataLoader(shard, batch_size=batch_size)

    def work(strategy: tdi.Strategy) -> list[int]:
        dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
        return [len(features) for features, _ in dist_dataset]

    sizes = simulate(work, num_workers=2)
    for worker, rows in enumerate(sizes):
        print(f"  worker {worker}: replica batches of {rows}")
    assert sizes == [[8, 8, 8, 8], [8, 8, 8, 8]]


# --- Distributed iterators ------------------------------------------------------------------------


def iterators() -> None:
    """A for loop, an explicit iterator, and ``get_next_as_optional``."""
    title("Distributed iterators")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    data = (torch.ones(100, 1), torch.ones(100, 1))
    dist_dataset = strategy.distribute_dataset(data, global_batch_size=16)

    def train_step(inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features, labels = inputs
        return labels - 0.3 * features

    losses = [strategy.run(train_step, args=(inputs,)) for inputs in dist_dataset]
    rows = [[len(loss) for loss in strategy.local_results(loss)] for loss in losses]
    print(f"  for loop: {len(losses)} steps, rows of the last {rows[-1]}")
    assert rows == [[8, 8]] * 6 + [[2, 2]]
    assert all(torch.allclose(x, torch.tensor(0.7)) for loss in losses for x in loss)

    for _ in range(2):  # epochs of 5 steps; each iter() starts the next epoch from its beginning
        dist_iterator = iter(dist_dataset)
        for _ in range(5):
            loss = strategy.run(train_step, args=(dist_iterator.get_next(),))
    print(f"  explicit iterator: loss {loss[0][0].item():.1f} on each replica")

    nine = strategy.distribute_dataset(torch.arange(9), global_batch_size=4)
    dist_iterator = iter(nine)
    steps = []
    for _ in range(5):
        optional = dist_iterator.get_next_as_optional()
        if not optional.has_value():
            break
        steps.append(on_replicas(strategy, optional.get_value()))
    print("  get_next_as_optional: range(9), global batch 4, 2 replicas")
    show(steps)
    assert steps == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]


def element_spec() -> None:
    """Using the ``element_spec`` property: the structure of a replica batch."""
    title("element_spec")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    data = (torch.ones(100, 1), torch.ones(100, 1))
    dist_dataset = strategy.distribute_dataset(data, global_batch_size=16)
    spec = dist_dataset.element_spec
    print(f"  shapes {spec[0].shape} and {spec[1].shape}, dtype {spec[0].dtype}")
    assert spec == (tdi.TensorSpec((None, 1), torch.float32),) * 2
    assert iter(dist_dataset).element_spec == spec


# --- Data preprocessing ---------------------------------------------------------------------------


def preprocessing() -> None:
    """The vocabulary of the original, as a plain function inside ``dataset_fn``.

    Layers with ``adapt`` are not in this release.
    """
    title("Data preprocessing: a vocabulary inside dataset_fn")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    number = {word: n for n, word in enumerate(["a", "b", "c", "d", "f"], start=1)}

    def dataset_fn(context: tdi.InputContext) -> Any:
        batch_size = context.get_per_replica_batch_size(4)

        def batches() -> Iterator[torch.Tensor]:
            words = cycle(["a", "c", "e"])
            while True:
                yield torch.tensor([number.get(word, 0) for word in islice(words, batch_size)])

        return batches

    dist_iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    steps = [on_replicas(strategy, next(dist_iterator)) for _ in range(3)]
    show(steps)
    assert steps == [[[1, 3], [0, 1]], [[3, 0], [1, 3]], [[0, 1], [3, 0]]]


def tpus() -> None:
    """Preprocessing on TPUs: layers for strings stay in the pipeline, and steps have one shape.

    Without a TPU the strategy says what is missing. Then the same steps are played by two simulated
    workers, padded as the strategy pads them.
    """
    title("TPUs: layers for strings in the pipeline, steps of one shape")
    layer = StringLookup(vocabulary=["a", "b", "c", "d", "f"])
    options = tdi.InputOptions(partial_batch="pad")  # with a TPUStrategy that goes without saying

    def work(strategy: tdi.Strategy) -> list[tuple[list[int], list[bool]]]:
        dist_dataset = strategy.distribute_dataset(
            ["a", "c", "e", "b", "d"], global_batch_size=4, collate_fn=layer, options=options
        )
        return [(batch.tolist(), mask.tolist()) for batch, mask in dist_dataset]

    try:
        workers = [work(tdi.TPUStrategy())]
    except tdi.ConfigurationError as error:
        print(f"  {str(error).partition(':')[0]}; what two of them would get:")
        workers = simulate(work, num_workers=2)
    for worker, steps in enumerate(workers):
        print(f"    worker {worker}: {'  '.join(f'{batch} {mask}' for batch, mask in steps)}")
    assert len({len(batch) for steps in workers for batch, _ in steps}) == 1
    rows = [pair for steps in workers for step in steps for pair in zip(*step, strict=True)]
    assert sorted(number for number, is_example in rows if is_example) == [0, 1, 2, 3, 4]


def parameter_servers() -> None:
    """The same with ``ParameterServerStrategy``: each worker makes a dataset for itself.

    A coordinator hands steps to workers as they are free; the parameters live on servers.
    """
    title("ParameterServerStrategy: a vocabulary on each worker")
    with ParameterServerStrategy(2, 1, devices=["cpu"]) as strategy:
        parameters = strategy.create_parameters(make_model, make_optimizer)
        coordinator = ClusterCoordinator(strategy)
        per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
        per_worker_iterator = iter(per_worker_dataset)
        scheduled = [
            coordinator.schedule(train_step, args=(per_worker_iterator, parameters))
            for _ in range(40)
        ]
        coordinator.join()
        losses = coordinator.fetch(scheduled)
        num_examples = sum(per_worker_dataset.visits().counts.values())
        print(f"  {len(losses)} steps, {num_examples} examples, of whichever worker was free")
        assert len(losses) == parameters.stats().num_pushes == 40
        assert num_examples == 40 * 8
        assert losses[-1] < losses[0] / 2


def per_worker_dataset_fn() -> tdi.DistributedDataset:
    """Runs on each worker, whose own strategy is the current one there. Nothing is sharded."""
    strategy = tdi.get_strategy()
    assert strategy is not None
    return strategy.distribute_datasets_from_function(vocabulary_dataset_fn)


def vocabulary_dataset_fn(context: tdi.InputContext) -> Any:
    """Words as numbers, for ever. A vocabulary over 1 GB belongs in a file for all workers."""
    number = {word: n for n, word in enumerate(["a", "b", "c", "d", "f"], start=1)}
    words = [number.get(word, 0) for word in ["a", "c", "e", "d"]]
    batch_size = context.get_per_replica_batch_size(8)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield torch.tensor(words * (batch_size // len(words)))

    return batches


def make_model() -> torch.nn.Module:
    """The embeddings of words, whose rows lie on all servers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 1))


def make_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """One on each server."""
    return torch.optim.SGD(parameters, lr=0.1)


def train_step(iterator: Iterator[torch.Tensor], parameters: Parameters) -> float:
    """Runs on a worker: is the word "a"?"""
    model = parameters.pull()
    words = next(iterator)
    labels = (words == 1).float()[:, None]
    loss = torch.nn.functional.mse_loss(model(words), labels)
    loss.backward()
    parameters.push()
    return loss.item()


# --- Partial batches and caveats ------------------------------------------------------------------


def partial_batches(folder: Path) -> None:
    """Partial batches: zero-row batches on one worker and on several, and the right loss.

    The sum of the replicas' losses is the mean over the examples of the global batch.
    """
    title("Partial batches: zero rows where a replica has no data")
    strategy = tdi.MirroredStrategy(["cpu"] * 3)
    dist_dataset = strategy.distribute_dataset(torch.arange(5.0), global_batch_size=4)
    for step in dist_dataset:
        losses = strategy.run(tdi.compute_average_loss, args=(step,))
        loss = strategy.reduce("sum", losses)
        print(f"  {row(on_replicas(strategy, step))}   loss {loss:.1f}")
    assert loss == 4.0  # the mean of the last step's only example

    files = [write(folder / "long.txt", range(5)), write(folder / "short.txt", range(5, 7))]
    workers = play_files(files, tdi.AutoShardPolicy.FILE)
    print("  files of 5 and 2 lines on two workers: both make the same number of steps")
    show_workers(workers)
    assert workers == [[[[0, 1]], [[2, 3]], [[4]]], [[[5]], [[6]], [[]]]]


def caveats(folder: Path) -> None:
    """Caveats: smaller steps under FILE, and random functions that do not depend on the worker."""
    title("Caveats")
    files = [folder / "a.txt", folder / "b.txt"]

    def totals(strategy: tdi.Strategy) -> list[int]:
        source = tdi.FileDataset(files).map(int)
        iterator = iter(strategy.distribute_dataset(source, global_batch_size=4))
        return [iterator.last_step.num_examples for _ in iterator]

    print(f"  FILE: examples per step in sync {simulate(totals, num_workers=2)[0]}")
    assert simulate(totals, num_workers=2) == [[4, 4, 2, 2]] * 2

    def noisy(line: str, rng: np.random.Generator) -> float:
        return int(line) + rng.random()

    def augmented(strategy: tdi.Strategy) -> list[float]:
        source = tdi.FileDataset(files).map(noisy)
        dist_dataset = strategy.distribute_dataset(source, global_batch_size=4)
        return [value for step in dist_dataset for value in step.tolist()]

    alone, pair = simulate(augmented, num_workers=1), simulate(augmented, num_workers=2)
    assert sorted(alone[0]) == sorted(pair[0] + pair[1])
    print("  a map with rng= makes the same examples on one worker and on two")


def predictions_in_order() -> None:
    """Caveats, order: outputs of all workers in the order of the source."""
    title("Predictions in the order of the source")
    inputs = torch.arange(24)

    def work(strategy: tdi.Strategy) -> torch.Tensor:
        dist_dataset = strategy.distribute_dataset(
            (torch.arange(24), inputs), global_batch_size=6, shuffle=True
        )
        indices, outputs = [], []
        for index, batch in dist_dataset:
            indices.append(index)
            outputs.append(2 * batch)
        ordered: torch.Tensor = strategy.gather_in_order(torch.cat(indices), torch.cat(outputs))
        return ordered

    results = simulate(work, num_workers=2)
    print(f"  {results[0].tolist()}")
    assert all(torch.equal(result, 2 * inputs) for result in results)


# --- Tensor inputs instead of datasets ------------------------------------------------------------


def tensor_inputs() -> None:
    """Values from a function, and input from a generator."""
    title("Tensor inputs")
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    values = strategy.distribute_values_from_function(
        lambda context: torch.tensor(context.replica_id_in_sync_group)
    )
    results = [strategy.run(lambda x: x, args=(values,)) for _ in range(4)]
    print(f"  values from a function: {[x.item() for x in results[-1]]}")
    assert [[x.item() for x in result] for result in results] == [[0, 1]] * 4

    def input_gen() -> Iterator[torch.Tensor]:
        while True:
            yield torch.rand(4)

    # Without a global batch size the elements are global batches: vectors of 4 are cut as well.
    dist_iterator = iter(strategy.distribute_dataset(input_gen))
    for _ in range(4):
        result = strategy.run(lambda x: x, args=(next(dist_iterator),))
    print(f"  generator: shapes {[tuple(x.shape) for x in result]}")
    assert [x.shape for x in result] == [(2,), (2,)]


# --- Showing and playing --------------------------------------------------------------------------


def title(text: str) -> None:
    """Print a section's title."""
    print(f"\n{text}")


def row(replicas: list[list[int]]) -> str:
    """One step: the examples of the replicas."""
    return " | ".join(str(examples) for examples in replicas)


def show(steps: Steps) -> None:
    """Print a table of steps."""
    for number, replicas in enumerate(steps):
        print(f"    step {number}: {row(replicas)}")


def show_workers(workers: list[Steps]) -> None:
    """Print the steps of each worker in a line."""
    for worker, steps in enumerate(workers):
        print(f"    worker {worker}: {'  '.join(row(replicas) for replicas in steps)}")


def on_replicas(strategy: tdi.Strategy, step: Any) -> list[list[int]]:
    """The examples of each local replica, as lists."""
    return [[int(x) for x in batch] for batch in strategy.local_results(step)]


def play_files(files: list[Path], policy: tdi.AutoShardPolicy) -> list[Steps]:
    """The steps of two workers over files with a number in each line."""

    def work(strategy: tdi.Strategy) -> Steps:
        dist_dataset = strategy.distribute_dataset(
            tdi.FileDataset(files).map(int),
            global_batch_size=4,
            options=tdi.InputOptions(auto_shard_policy=policy),
        )
        return [on_replicas(strategy, step) for step in dist_dataset]

    return simulate(work, num_workers=2)


def write(path: Path, numbers: range) -> Path:
    """Write a text file with a number in each line."""
    path.write_text("".join(f"{number}\n" for number in numbers))
    return path


if __name__ == "__main__":
    main()
