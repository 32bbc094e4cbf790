"""Layers as JSON values, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from torch_distinput.errors import ConfigurationError
from torch_distinput.preprocessing.layers.discretization import Discretization
from torch_distinput.preprocessing.layers.encoding import CategoryEncoding
from torch_distinput.preprocessing.layers.features import Features
from torch_distinput.preprocessing.layers.hashing import HashedCrossing, Hashing
from torch_distinput.preprocessing.layers.integer_lookup import IntegerLookup
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, Layer
from torch_distinput.preprocessing.layers.scaling import Normalization, Rescaling
from torch_distinput.preprocessing.layers.string_lookup import StringLookup
from torch_distinput.preprocessing.layers.text_vectorization import TextVectorization

LAYERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        CategoryEncoding,
        Discretization,
        HashedCrossing,
        Hashing,
        IntegerLookup,
        Normalization,
        Rescaling,
        StringLookup,
        TextVectorization,
        nn.Identity,
    )
}
"""By their names, all that can be saved: a new layer is its file, and a line here."""

_GIVEN = frozenset({"idf_weights", "storage_options", "vocabulary"})
"""Arguments that are never written: the state has what they stand for."""


def describe_layer(layer: nn.Module) -> dict[str, Any]:
    """Describe a layer, without its state.

    Raises:
        ValueError: for a module of another kind, or a configuration that holds a function.
    """
    if isinstance(layer, Features):
        layers = [
            {"name": name, "columns": layer.columns[name], **_describe_feature(layer, name, inner)}
            for name, inner in layer.items()
        ]
        return {"layer": "Features", "layers": layers}
    kind = type(layer).__name__
    if LAYERS.get(kind) is not type(layer):
        msg = (
            f"Expected layers of torch_distinput.preprocessing, or torch.nn.Identity, to save; got "
            f"{kind}. Put other modules into the model."
        )
        raise ValueError(msg)
    config = layer.get_config() if isinstance(layer, Layer) else {}
    given = isinstance(layer, AdaptiveLayer) and layer.is_given
    try:
        json.dumps(config)
    except TypeError:
        msg = f"{layer} holds a function, which cannot be saved. Make it again where it is used."
        raise ValueError(msg) from None
    return {"layer": kind, "config": config, "given": given}


def _describe_feature(features: Features, name: str, layer: nn.Module) -> dict[str, Any]:
    """Describe a layer where it comes first; then say that it is the same."""
    first = features.find_first(layer)
    return describe_layer(layer) if first == name else {"same_as": first}


def build_layer(described: Mapping[str, Any], path: str) -> Any:
    """Make a layer of its description, without its state.

    Raises:
        ConfigurationError: for a description of another version; ``path`` says where it is from.
    """
    kind = described["layer"]
    if kind == "Features":
        named: dict[str, tuple[Any, Any]] = {}
        for entry in described["layers"]:
            shared = "same_as" in entry
            layer = named[entry["same_as"]][1] if shared else build_layer(entry, path)
            named[entry["name"]] = (_parse_columns(entry["columns"]), layer)
        return Features(**named)
    try:
        if given := _GIVEN & described["config"].keys():  # would be read from anywhere
            raise ValueError(f"{sorted(given)} is no configuration")  # noqa: TRY301 - told below
        layer = LAYERS[kind](**described["config"])
    except (KeyError, TypeError, ValueError) as error:
        msg = (
            f"Expected layers of this version in {path}, got {kind} with {described['config']}: "
            f"{error}. Analyze the data again."
        )
        raise ConfigurationError(msg) from error
    if isinstance(layer, AdaptiveLayer):
        layer.is_given = described["given"]
    return layer


def _parse_columns(columns: str | list[str]) -> str | tuple[str, ...]:
    return columns if isinstance(columns, str) else tuple(columns)
