"""adapt: the state of layers from one pass over data, which all workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from torch_distinput.communicator import communicator_of
from torch_distinput.errors import ConfigurationError
from torch_distinput.preprocessing.adapt.merging import (
    check_same_data,
    check_same_layers,
    fail_together,
    merge_across,
)
from torch_distinput.preprocessing.adapt.protocol import Adaptive, Configured
from torch_distinput.preprocessing.adapt.reading import (
    Workers,
    find_workers,
    fingerprint_data,
    read_batches,
)

Columns = Callable[[Any, str], Iterable[Any]]
"""From a batch and the name of a layer to the columns that the layer counts."""


def adapt_layers(
    owner: Configured,
    layers: Mapping[str, Adaptive],
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
    strategy = find_workers(data, strategy)
    workers = communicator_of(strategy)
    check_same_layers(owner, layers, workers)
    for layer in layers.values():
        layer.check_may_adapt()
    if not layers:  # all were given their state, on all workers
        return
    states = {name: layer.analyzer.new_state() for name, layer in layers.items()}
    if workers.size > 1:
        with fail_together(workers, "adapt its layers"):
            fingerprint = fingerprint_data(data)
        check_same_data(fingerprint, workers)
    batches = read_batches(data, strategy, batch_size, names)
    # Closed at once, also by an error whose traceback keeps it: then a dataset is as it was.
    with fail_together(workers, "adapt its layers"), closing(batches):
        for batch in batches:
            count_batch(states, layers, columns_of, batch)
    adopt(merge_across(states, layers, workers), layers)


def count_batch(
    states: Mapping[str, Any], layers: Mapping[str, Adaptive], columns_of: Columns, batch: Any
) -> None:
    """Add a batch to the states of all layers."""
    for name, layer in layers.items():
        for column in columns_of(batch, name):
            layer.count(states[name], column)


def adopt(states: Mapping[str, Any], layers: Mapping[str, Adaptive]) -> None:
    """Let layers take over what was counted, if each has got something.

    Raises:
        ConfigurationError: naming the layers that have not.
        ValueError: for what a layer cannot adopt; then none has adopted anything.
    """
    found = {name: layer.analyzer.finish(states[name]) for name, layer in layers.items()}
    if idle := [layer.describe() for name, layer in layers.items() if found[name] is None]:
        msg = (
            f"Expected data to adapt to, but {', '.join(idle)} got no values. Check the dataset; "
            "the layers are as they were before."
        )
        raise ConfigurationError(msg)
    for name, layer in layers.items():
        layer.adopt(found[name])
