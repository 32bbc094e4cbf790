"""adapt: the state of layers from one pass over data, which all workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from torch_distinput.communicator import communicator_of
from torch_distinput.errors import ConfigurationError
from torch_distinput.preprocessing.adapt.columns import only_column
from torch_distinput.preprocessing.adapt.merging import (
    check_same_data,
    check_same_layers,
    merged_across,
    together,
)
from torch_distinput.preprocessing.adapt.reading import Workers, batches_of, mark_of, workers_of
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, Layer

Columns = Callable[[Any, str], Iterable[Any]]
"""From a batch and the name of a layer to the columns that the layer counts."""


def adapt_layers(
    owner: Layer,
    layers: Mapping[str, AdaptiveLayer],
    columns_of: Columns,
    data: Any,
    *,
    strategy: Workers | None,
    batch_size: int | None,
    names: tuple[str, ...] | None = None,
) -> None:
    """Find the states of an owner's layers in one pass; all take theirs over, or none.

    ``names`` are the columns that examples are made into.

    Raises:
        ConfigurationError: a ValueError; if a layer got no data.
        MismatchError: the workers' layers are not alike.
        PeerFailedError: another worker could not read or count its part.
    """
    strategy = workers_of(data, strategy)
    workers = communicator_of(strategy)
    check_same_layers(owner, layers, workers)
    for layer in layers.values():
        layer.check_may_adapt()
    if not layers:  # all were given their state, on all workers
        return
    states = {name: layer.new_state() for name, layer in layers.items()}
    if workers.size > 1:
        with together(workers, "adapt its layers"):
            mark = mark_of(data)
        check_same_data(mark, workers)
    batches = batches_of(data, strategy, batch_size, names)
    # Closed at once, also by an error whose traceback keeps it: then a dataset is as it was.
    with together(workers, "adapt its layers"), closing(batches):
        for batch in batches:
            count_batch(states, layers, columns_of, batch)
    adopt(merged_across(states, layers, workers), layers)


def count_batch(
    states: Mapping[str, Any], layers: Mapping[str, AdaptiveLayer], columns_of: Columns, batch: Any
) -> None:
    """Add a batch to the states of all layers."""
    for name, layer in layers.items():
        for column in columns_of(batch, name):
            layer.count(states[name], column)


def adopt(states: Mapping[str, Any], layers: Mapping[str, AdaptiveLayer]) -> None:
    """Let layers take over what was counted, if each has got something.

    Raises:
        ConfigurationError: naming the layers that have not.
    """
    idle = [layer.described() for name, layer in layers.items() if not layer.has_seen(states[name])]
    if idle:
        msg = (
            f"Expected data to adapt to, but {', '.join(idle)} got no values. Check the dataset; "
            "the layers are as they were before."
        )
        raise ConfigurationError(msg)
    finished = [layer.finish(states[name]) for name, layer in layers.items()]  # may refuse
    for layer, found in zip(layers.values(), finished, strict=True):
        layer.adopt(found)
        layer.to(layer.device)


def adapt_layer(
    layer: AdaptiveLayer, data: Any, *, strategy: Workers | None, batch_size: int | None
) -> None:
    """Adapt one layer to batches that are its column."""
    adapt_layers(
        layer,
        {"": layer},
        lambda batch, _: [only_column(batch)],
        data,
        strategy=strategy,
        batch_size=batch_size,
    )
