"""Playing datasets on simulated workers, for the tests of whole datasets."""

from __future__ import annotations

import torch_distinput as tdi
from torch_distinput.testing import simulate


def one(num_replicas=1):
    """A strategy without peers; several replicas are virtual."""
    return tdi.MirroredStrategy(["cpu"] * num_replicas)


def play(source, size, workers=1, replicas=1, *, epochs=1, options=None, **keywords):
    """Return, per worker, the steps of all epochs: per replica the list of its examples."""

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=size, options=options, **keywords
        )
        return [shown(strategy, step) for _ in range(epochs) for step in dataset]

    return simulate(work, num_workers=workers, replicas_per_worker=replicas)


def shown(strategy, step):
    """A step as nested lists."""
    return [listed(batch) for batch in strategy.local_results(step)]


def listed(batch):
    """A batch of one leaf as a list."""
    if isinstance(batch, tdi.PackedStrings):
        return batch.to_list()
    return batch if isinstance(batch, list) else batch.tolist()


def options(**keywords):
    """Shorter to write in tables."""
    return tdi.InputOptions(**keywords)


def stream_of(examples):
    """A generator function over examples."""

    def stream():
        yield from examples

    return stream


class Shards:
    """A dealable source: lists of examples as its shards."""

    def __init__(self, shards):
        self.shards = shards

    @property
    def num_shards(self):
        """How many lists there are."""
        return len(self.shards)

    def shard(self, num_shards, index):
        """Every num_shards-th list."""
        return Shards(self.shards[index::num_shards])

    def __iter__(self):
        """All examples in order."""
        return (example for shard in self.shards for example in shard)


def write_files(folder, files):
    """Write lists of integers as lines, and return the glob that finds them in order."""
    for number, lines in enumerate(files):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"f{number:04}.txt").write_text(text)
    return str(folder / "f*.txt")
