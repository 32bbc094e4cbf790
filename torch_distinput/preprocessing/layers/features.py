"""Layers over the columns of a batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final
from urllib.parse import quote

import torch
from torch import nn

from torch_distinput import scope_registry
from torch_distinput.preprocessing.adapt.adapt import adapt_layers
from torch_distinput.preprocessing.adapt.reading import Workers
from torch_distinput.preprocessing.columns.collate import (
    add_dimension,
    is_single,
    join_parts,
    stack_rows,
)
from torch_distinput.preprocessing.columns.tensors import Takes, convert
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, Layer, compute_fingerprint
from torch_distinput.preprocessing.strings.packed import PaddedStrings


@final
class Features(nn.Module):
    """A layer for each column of a dict batch (``keras.utils.FeatureSpace``'s row).

    ``Features(age=Normalization(), city=StringLookup())`` takes ``{"age": ..., "city": ...}`` and
    gives a dict of the same names. A pair names the column, or a tuple of columns, that a layer
    takes: ``Features(place=(("city", "state"), HashedCrossing(100)))``. Other columns of the batch
    are left out; ``label=torch.nn.Identity()`` keeps one as it is. Features that are given the same
    layer object share its state: :meth:`adapt` counts the columns of all of them.

    In the pipeline it takes host values: pass ``collate_fn=features.collate``, or map batches. In a
    model it takes tensors, strings as :func:`pack_strings`, which :meth:`pack` does for all.
    """

    def __init__(self, /, **layers: nn.Module | tuple[str | tuple[str, ...], nn.Module]) -> None:
        """See the class."""
        if not layers:
            msg = "Features needs at least one layer, as in Features(age=Rescaling(2))."
            raise ValueError(msg)
        self.columns: dict[str, str | tuple[str, ...]] = {}
        chosen: dict[str, nn.Module] = {}
        for name, given in layers.items():
            columns, layer = given if isinstance(given, tuple) else (name, given)
            if not isinstance(layer, nn.Module) or isinstance(layer, Features):
                msg = (
                    f"Expected {name}= a layer, or a pair of its column or columns and a layer; "
                    f'got {given!r:.80}. Write for example {name}=("column", StringLookup()).'
                )
                raise TypeError(msg)
            self.columns[name] = columns if isinstance(columns, str) else tuple(columns)
            chosen[name] = layer
        super().__init__()
        self.names = tuple(chosen)
        # Once, and not where a compiler would have to follow it.
        self._module_names = {name: _module_name(name) for name in chosen}
        for name, layer in chosen.items():
            self.add_module(_module_name(name), layer)  # a ModuleDict has no room for some names
        for layer in self.layers:
            if isinstance(layer, Layer):
                layer.name = self.find_first(layer)
        scope_registry.add(self)

    def __getitem__(self, name: str) -> nn.Module:
        """The layer of a feature, as in ``features["city"].get_vocabulary()``."""
        if name not in self.names:
            msg = (
                f"Expected one of the features {list(self.names)}, got {name!r}. Use the name of a "
                "feature, not of a column."
            )
            raise KeyError(msg)
        return self.get_submodule(self._module_names[name])

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layer of each feature."""
        return tuple(self[name] for name in self.names)

    def find_feature(self, module: str) -> str:
        """The feature that a module within is of, by the name that ``named_modules`` has for it."""
        own = module.partition(".")[0]
        return next(name for name in self.names if self._module_names[name] == own)

    def items(self) -> Iterator[tuple[str, nn.Module]]:
        """Names and layers."""
        return zip(self.names, self.layers, strict=True)

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Apply each layer to its column or columns.

        A dict with a value that is no column, as of one example, is taken for one example, and
        gives what its row of a batch would. Columns of single values have one in each row:
        ``"multi_hot"`` and its like give ``(rows, depth)``. So one example all of whose columns
        are lists looks like a batch: put it into lists of one row, ``{"tags": [["a", "b"]]}``.
        """
        columns = {name: self.take(batch, name) for name in self.names}
        parts = [part for taken in columns.values() for part in _split_parts(taken)]
        if any(map(is_single, parts)):
            return {name: _apply_to_one(layer, columns[name]) for name, layer in self.items()}
        columns = {
            name: add_dimension(taken) if _counts_rows(self[name]) else taken
            for name, taken in columns.items()
        }
        return {name: layer(columns[name]) for name, layer in self.items()}

    def take(self, batch: Mapping[str, Any], name: str) -> Any:
        """Return the column, or the tuple of columns, that a layer takes."""
        columns = self.columns[name]
        try:
            names = (columns,) if isinstance(columns, str) else columns
            taken = [batch[column] for column in names]
        except (KeyError, TypeError, IndexError) as error:
            expected = f"Expected a batch with {columns!r} for the feature {name!r}, got"
            if not isinstance(batch, Mapping):
                msg = f"{expected} a {type(batch).__name__}. Pass a dict of columns."
                raise TypeError(msg) from error
            msg = (
                f"{expected} {list(batch)}. Add what is missing to the batch, or name a column "
                "that it has, as in Features(x=('column', layer))."
            )
            raise KeyError(msg) from error
        joined = tuple(map(join_parts, taken))
        return joined[0] if isinstance(columns, str) else joined

    def select_columns(self, batch: Mapping[str, Any], name: str) -> list[Any]:
        """Return what :meth:`adapt` counts for a layer: its column, for each feature it is of."""
        shared = self[name]
        return [self.take(batch, other) for other, layer in self.items() if layer is shared]

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of a list of examples: a ``collate_fn`` for loaders.

        The values of each column are put together, numbers as a tensor, and the layers applied.
        """
        columns = self.input_columns()
        for number, example in enumerate(examples):
            if not isinstance(example, Mapping) or any(name not in example for name in columns):
                has = list(example) if isinstance(example, Mapping) else type(example).__name__
                msg = (
                    f"Expected examples with {columns}, got {has} in example {number}. Let the "
                    "dataset return a dict with all of these for each example."
                )
                raise (KeyError if isinstance(example, Mapping) else TypeError)(msg)
        batch = {
            name: stack_rows(
                [example[name] for example in examples],
                are_strings=self._find_takes(name) == {"strings"},
            )
            for name in columns
        }
        return self(batch)  # type: ignore[no-any-return]

    def pack(self, batch: Mapping[str, Any], max_bytes: int | None = None) -> dict[str, Any]:
        """Turn the columns that the layers take into tensors, for a model that holds the layers.

        Each column has one type, whatever is in it: a graph takes no other. Strings become
        :func:`pack_strings` of at most ``max_bytes``; numbers float32 where layers compute in it,
        and float64 for an :class:`IntegerLookup` with a policy for what is missing, which is NaN.
        """
        return {
            name: self._pack_column(name, join_parts(batch[name]), max_bytes)
            for name in self.input_columns()
        }

    def _pack_column(self, name: str, column: Any, max_bytes: int | None) -> Any:
        return convert(column, self._find_takes(name), self._find_layers(name)[0], max_bytes)

    def _find_layers(self, column: str) -> list[Any]:
        return [self[feature] for feature in self.names if column in self._list_columns([feature])]

    def _find_takes(self, column: str) -> set[Takes]:
        """What the layers of a column take; another module takes it as it is."""
        layers = self._find_layers(column)
        return {layer.takes if isinstance(layer, Layer) else "any" for layer in layers}

    def dynamic_shapes(self, packed: Mapping[str, Any]) -> dict[str, Any]:
        """What ``torch.export`` should know of :meth:`pack`'s result: its rows may be any number.

        ``torch.export.export(model, (packed,), dynamic_shapes=(features.dynamic_shapes(packed),))``
        """
        rows = {0: torch.export.Dim("rows")}
        return {
            name: [rows, rows] if isinstance(packed[name], PaddedStrings) else rows
            for name in self.input_columns()
        }

    def input_columns(self) -> list[str]:
        """The columns that the layers take, each once."""
        return self._list_columns(self.names)

    def _list_columns(self, names: Sequence[str]) -> list[str]:
        taken = (self.columns[name] for name in names)
        named = ((columns,) if isinstance(columns, str) else columns for columns in taken)
        return list(dict.fromkeys(column for columns in named for column in columns))

    def adaptive(self) -> Iterator[tuple[str, AdaptiveLayer]]:
        """The layers that :meth:`adapt` finds a state for, each once."""
        for name, layer in self.items():
            first = self.find_first(layer) == name
            if first and isinstance(layer, AdaptiveLayer) and not layer.is_given:
                yield name, layer

    def adapt(
        self, data: Any, *, strategy: Workers | None = None, batch_size: int | None = None
    ) -> None:
        """Find the state of all layers in one pass over batches that are dicts.

        Layers whose state was given keep it. See :meth:`AdaptiveLayer.adapt`.
        """
        adapt_layers(
            self,
            dict(self.adaptive()),
            self.select_columns,
            data,
            strategy=strategy,
            batch_size=batch_size,
            names=tuple(self.input_columns()),
        )

    def find_first(self, layer: nn.Module) -> str:
        """The first of the features that share a layer."""
        return next(name for name, other in self.items() if other is layer)

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the configuration and the state of all layers."""
        return compute_fingerprint(self, self.config_fingerprint())

    def config_fingerprint(self) -> str:
        """SHA-256, in hex, of names, columns, classes and configurations."""
        prints = [
            [name, self.find_first(layer), fingerprint_config(layer)]
            for name, layer in self.items()
        ]
        text = json.dumps([prints, self.columns], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _module_name(name: str) -> str:
    """The name of a feature's module, and the beginning of its keys in a ``state_dict()``."""
    return "layer_" + quote(name, safe="").replace(".", "%2E")


def _split_parts(column: Any) -> tuple[Any, ...]:
    return column if type(column) is tuple else (column,)


def _apply_to_one(layer: nn.Module, values: Any) -> Any:
    """The row of one example: of a single value, ``"one_hot"`` makes a batch with one row."""
    row = layer(values)
    is_one = all(map(is_single, _split_parts(values)))
    return row[0] if is_one and getattr(layer, "output_mode", "") == "one_hot" else row


def _counts_rows(layer: nn.Module) -> bool:
    """Whether it makes one vector of all values of a sample, for which it takes a bare column."""
    return getattr(layer, "output_mode", "") in ("multi_hot", "count", "tf_idf")


def fingerprint_config(layer: nn.Module) -> str:
    """What tells a layer's configuration, or another module's class, from others."""
    if isinstance(layer, Layer):
        return layer.config_fingerprint()
    return f"{type(layer).__module__}.{type(layer).__qualname__}"
