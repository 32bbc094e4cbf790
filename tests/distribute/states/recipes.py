"""What states were recorded of: every kind of source, policy, operation and option, by name.

Never change one, nor its name: a state must go on in what it was recorded of. Add others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.distribute.states import streams

Cluster = tuple[int, int]
"""Numbers of workers, and of replicas per worker."""
SHORT = ("middle",)
EPOCHS = ("step 1", "epoch 1 begun", "epoch 1 step 1", "begun again")
ALL = (
    *("fresh", "begun", "step 1", "middle", "last", "ended", "epoch 1 begun", "epoch 1 middle"),
    *("left", "begun again", "step 1 again", "set to epoch 3"),
)
"""Where a dataset may be saved; ``stops`` says what the words mean."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a source is made.

    Attributes:
        folder: with the files.
        wait: for the next step to be asked for; None where nobody does.
    """

    folder: Path
    wait: Callable[[], None] | None = None

    def held(self, step: Any) -> Any:
        """What is in a step, when it is asked for."""
        if self.wait is not None:
            self.wait()
        return step

    def files(self, suffix: str, **keywords: Any) -> tdi.FileDataset:
        """The files of one format."""
        return tdi.FileDataset(str(self.folder / f"*.{suffix}"), **keywords)


Make = Callable[[Place], Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A source, and how it is distributed.

    Attributes:
        source: makes the source; a new one for each worker.
        size: the global batch size.
        keywords: of ``distribute_dataset``.
        options: of ``InputOptions``.
        home: the cluster that saves.
        elsewhere: another one, to go on with.
        is_elastic: whether it can.
        positions: where it is saved.
        waits: while it is recorded, batches are collated when their step is asked for. Several
            workers tell each other places in the stream when they vote; so these do not depend
            on how fast each of them reads.
        is_timed: they do depend on it, and so do the bytes of its states.
        is_function: the source is a ``dataset_fn``.
    """

    source: Make
    size: int | None = 4
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    home: Cluster = (2, 1)
    elsewhere: Cluster = (1, 2)
    is_elastic: bool = True
    positions: tuple[str, ...] = SHORT
    waits: bool = False
    is_timed: bool = False
    is_function: bool = False

    def distribute(self, strategy: tdi.Strategy, place: Place) -> tdi.DistributedDataset:
        """The dataset of one worker."""
        source, options = self.source(place), tdi.InputOptions(**self.options)
        if self.is_function:
            return strategy.distribute_datasets_from_function(source, options)
        keywords = dict(self.keywords)
        if self.waits and place.wait is not None:
            keywords["collate_fn"] = lambda examples: place.held(torch.tensor(numbers(examples)))
        return strategy.distribute_dataset(
            source, global_batch_size=self.size, options=options, **keywords
        )

    def other_than(self, cluster: Sequence[int]) -> Cluster:
        """Where to go on elsewhere."""
        return self.home if self.elsewhere == tuple(cluster) else self.elsewhere


def numbers(batch: Any, count: int | None = None) -> list[int]:
    """The first examples of a batch, whatever it is made of."""
    batch = (batch["n"] if isinstance(batch, dict) else batch)[:count]
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return batch.tolist()
    return [int(one["n"] if isinstance(one, dict) else one) for one in batch]


# ---- with an index -----------------------------------------------------------------------------

_SHUFFLED = {"shuffle": True, "seed": 7}
_TENSOR = partial(Recipe, source=lambda _: torch.arange(22))
_OVER: Any = range(streams.COUNT)


def _loader(**keywords: Any) -> Make:
    return lambda _: DataLoader(_OVER, **keywords)


def _weighted(_: Place) -> Any:
    return DataLoader(_OVER, 4, sampler=WeightedRandomSampler([1.0] * streams.COUNT, 15))


INDEXED = {
    "tensor": _TENSOR(keywords=_SHUFFLED, elsewhere=(3, 1), positions=ALL),
    "tensor in order": _TENSOR(home=(1, 1), elsewhere=(2, 2)),
    "columns": Recipe(source=lambda _: {"n": torch.arange(18), "half": np.arange(18) / 2}),
    "map-style": Recipe(source=lambda _: streams.Squares(), keywords={"seed": 3}),
    "list": Recipe(source=lambda _: list(range(30, 47)), keywords=_SHUFFLED),
    "tensor, drop_last": _TENSOR(
        keywords={**_SHUFFLED, "drop_last": True}, positions=("middle", "last")
    ),
    "tensor, split": _TENSOR(size=7, home=(3, 1), options={"rebatch": "split"}),
    "tensor, even": _TENSOR(size=7, home=(3, 1), options={"rebatch": "even"}),
    "tensor, cycle": _TENSOR(size=7, home=(3, 1), options={"rebatch": "cycle"}),
    "tensor, DATA": _TENSOR(options={"auto_shard_policy": "data"}, positions=("middle",)),
    "tensor, OFF": _TENSOR(
        keywords=_SHUFFLED,
        options={"auto_shard_policy": "off"},
        is_elastic=False,
        elsewhere=(2, 2),
    ),
    "tensor, padded": _TENSOR(options={"partial_batch": "pad"}, positions=("middle", "last")),
    "tensor, audited": _TENSOR(keywords=_SHUFFLED, options={"audit": True}, positions=("begun",)),
    "DataLoader": Recipe(source=_loader(batch_size=4), size=None),
    "DataLoader, shuffle": Recipe(source=_loader(batch_size=4, shuffle=True), size=None),
    "DataLoader, drop_last": Recipe(
        source=_loader(batch_size=4, drop_last=True), size=None, positions=("last",)
    ),
    "DataLoader, sampler": Recipe(
        source=lambda _: DataLoader(_OVER, 4, sampler=streams.Keyed()), size=None, positions=EPOCHS
    ),
    "DataLoader, weighted": Recipe(source=_weighted, size=None),
    "DataLoader, batch_sampler": Recipe(
        source=lambda _: DataLoader(_OVER, batch_sampler=streams.KeyedBatches()),
        size=None,
        positions=("middle", "epoch 1 step 1"),
    ),
}

# ---- streams -----------------------------------------------------------------------------------

_OFF = {"auto_shard_policy": "off"}
_DATA = {"auto_shard_policy": "data"}
_GENERATOR = partial(Recipe, source=lambda _: streams.numbers)


def _of(kind: Callable[[], Any], **keywords: Any) -> Recipe:
    """A source with a state of its own."""
    return Recipe(source=lambda _: kind(), waits=True, **keywords)


def _shards(lists: Callable[[], Any]) -> Make:
    return lambda _: streams.Shards(lists())


def _examples() -> list[list[int]]:
    return [list(range(10 * k, 10 * k + length)) for k, length in enumerate((4, 1, 6, 0, 3, 2))]


def _ready() -> list[list[Any]]:
    return [[np.arange(n, n + 1 + n % 3) for n in range(0, 3 * k, 3)] for k in (3, 1, 4, 2)]


def _batches(place: Place) -> Any:
    return streams.Stateful(lambda number: place.held(streams.batch_of(number)))


def _loader_with_state(place: Place) -> Any:
    def collate(examples: list[int]) -> torch.Tensor:
        return place.held(torch.tensor(examples))

    return StatefulDataLoader(streams.Stateful(), batch_size=4, collate_fn=collate)


STREAMS = {
    "generator": _GENERATOR(positions=ALL, elsewhere=(3, 1)),
    "generator, cycle": _GENERATOR(home=(2, 2), elsewhere=(1, 1), options={"rebatch": "cycle"}),
    "generator, even": _GENERATOR(size=5, home=(3, 1), options={"rebatch": "even"}),
    "generator, drop_last": _GENERATOR(keywords={"drop_last": True}, positions=("last",)),
    "generator, OFF": _GENERATOR(options=_OFF, is_elastic=False, elsewhere=(3, 1)),
    "generator, padded": _GENERATOR(options={"partial_batch": "pad"}, positions=("middle",)),
    "generator, audited": _GENERATOR(options={"audit": True}),
    "IterableDataset": Recipe(source=lambda _: streams.Plain()),
    "shards": Recipe(
        source=_shards(_examples), size=3, waits=True, positions=EPOCHS, elsewhere=(3, 1)
    ),
    "shards, DATA": Recipe(source=_shards(_examples), size=3, options=_DATA),
    "shards, OFF": Recipe(source=_shards(_examples), size=3, options=_OFF, is_elastic=False),
    "ready batches": Recipe(source=lambda _: streams.batches, size=None, positions=EPOCHS),
    "ready batches, even": Recipe(
        source=lambda _: streams.batches, size=None, options={"rebatch": "even"}, home=(2, 2)
    ),
    "ready batches, OFF": Recipe(
        source=lambda _: streams.batches,
        size=None,
        options=_OFF,
        is_elastic=False,
        elsewhere=(3, 1),
    ),
    "ready shards": Recipe(source=_shards(_ready), size=None, is_timed=True),
    "ready shards, DATA": Recipe(source=_shards(_ready), size=None, options=_DATA),
}

STATEFUL = {
    "its state": _of(streams.Stateful, positions=ALL),
    "its state, alone": _of(
        streams.Stateful, home=(1, 1), elsewhere=(2, 1), positions=(*EPOCHS, "ended", "older")
    ),
    "its state, OFF": _of(
        streams.Stateful, options=_OFF, is_elastic=False, elsewhere=(3, 1),
        positions=(*EPOCHS, "ended"),
    ),
    "its state, cycle": _of(streams.Stateful, options={"rebatch": "cycle"}, size=3),
    "its state, no JSON": _of(streams.Packed, positions=("step 1", "epoch 1 step 1")),
    "its own iterator": _of(streams.OwnIterator, positions=EPOCHS),
    "state of the iterator": _of(streams.OfIterators, positions=EPOCHS),
    "state of both": _of(streams.OfBoth, positions=EPOCHS),
    "told its epoch": _of(streams.Told, positions=EPOCHS),
    "IterableWrapper": _of(
        lambda: nodes.IterableWrapper(streams.Stateful()), positions=("middle", "epoch 1 step 1")
    ),
    "SamplerWrapper": _of(
        lambda: nodes.SamplerWrapper(streams.Keyed()), positions=("middle", "epoch 1 step 1")
    ),
    "ready, its state": Recipe(source=_batches, size=None, positions=(*EPOCHS, "ended", "older")),
    "ready, its state, OFF": Recipe(
        source=_batches, size=None, options=_OFF, is_elastic=False, home=(1, 1), elsewhere=(2, 1)
    ),
    "StatefulDataLoader": Recipe(
        source=_loader_with_state, size=None, positions=("middle", "epoch 1 step 1")
    ),
    "its state, as it is read": Recipe(source=lambda _: streams.Stateful(), is_timed=True, size=2),
}

_FUNCTION = partial(Recipe, is_function=True, is_elastic=False, elsewhere=(3, 1), size=None)


def _own(_: Place) -> Any:
    return lambda context: streams.own_batches(context.input_pipeline_id)


FUNCTIONS = {
    "function": _FUNCTION(source=_own, positions=("middle", "ended", "epoch 1 begun")),
    "function, 2 replicas": _FUNCTION(source=_own, home=(2, 2)),
    "function, per replica": _FUNCTION(
        source=_own, home=(2, 2), elsewhere=(1, 2), options={"replication_mode": "per_replica"}
    ),
    "function, its state": _FUNCTION(
        source=lambda at: lambda _: _batches(at), positions=(*EPOCHS, "ended")
    ),
    "function, StatefulDataLoader": _FUNCTION(
        source=lambda at: lambda _: _loader_with_state(at), positions=("middle", "epoch 1 step 1")
    ),
    "function, states per replica": _FUNCTION(
        source=lambda _: lambda _: streams.Stateful(streams.batch_of), home=(1, 2),
        elsewhere=(2, 2), options={"replication_mode": "per_replica"}, positions=(*EPOCHS, "ended"),
    ),
}  # fmt: skip
