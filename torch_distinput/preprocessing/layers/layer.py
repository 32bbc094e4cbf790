"""What all preprocessing layers are: modules with a configuration, a state and a fingerprint.

``forward`` takes what the pipeline has (host strings, lists, NumPy arrays) and what a model has
(tensors, :class:`PaddedStrings`); for tensors it is tensor code alone, which ``torch.export``
follows. Both give the same result.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from torch_distinput import scope_registry
from torch_distinput.data.batch.serialized import view_bytes
from torch_distinput.errors import UsageError
from torch_distinput.preprocessing.adapt.adapt import adapt_layers
from torch_distinput.preprocessing.adapt.protocol import Analyzer
from torch_distinput.preprocessing.adapt.reading import Workers
from torch_distinput.preprocessing.columns.collate import take_only_column
from torch_distinput.preprocessing.columns.tensors import Takes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self


class Layer(nn.Module, ABC):
    """A preprocessing layer of one column, or of a tuple of columns."""

    def __init__(self, **config: Any) -> None:
        """Keep the configuration, JSON values by the names of the constructor's parameters."""
        super().__init__()
        self._config = {name: _as_python(value) for name, value in config.items()}
        self.name = ""
        scope_registry.add(self)

    @property
    @abstractmethod
    def takes(self) -> Takes:
        """What a column becomes before a model's layer takes it."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, without a given state (``keras.Layer.get_config``)."""
        return dict(self._config)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the buffers, but keep their types: ``model.half()`` is about the network."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            kept = before[name]
            if buffer is not None and kept is not None and buffer.dtype != kept.dtype:
                self._buffers[name] = kept.to(buffer.device)
        return self

    def extra_repr(self) -> str:
        """Show the configuration."""
        shown = {name: describe_value(value) for name, value in self._config.items()}
        return ", ".join(f"{name}={value:.60}" for name, value in shown.items())

    def describe(self) -> str:
        """Name the layer in a message."""
        kind = type(self).__name__
        return f"{kind} {self.name!r}" if self.name else kind

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the class, its configuration and its state."""
        return compute_fingerprint(self, self.config_fingerprint())

    def config_fingerprint(self) -> str:
        """SHA-256, in hex, of the class and its configuration: of what :meth:`adapt` will count."""
        described = [type(self).__name__, self._config]
        text = json.dumps(described, sort_keys=True, default=describe_value)
        return hashlib.sha256(text.encode()).hexdigest()


def _as_python(value: Any) -> Any:
    """A number of NumPy as Python's, which JSON can write."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_python, value))
    return value.item() if isinstance(value, np.generic) else value


def compute_fingerprint(module: nn.Module, config_fingerprint: str) -> str:
    """SHA-256, in hex, of the fingerprint of a configuration and of a module's state."""
    digest = hashlib.sha256(config_fingerprint.encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(view_bytes(tensor.detach().cpu().contiguous()).data)
    return digest.hexdigest()


def describe_value(value: Any) -> str:
    """A function of the user's, by its name; another value as it is shown."""
    if not callable(value):
        return repr(value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"


def check_choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return the value of a parameter that has some, or refuse it."""
    if value not in allowed:
        msg = f"Expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}."
        raise ValueError(msg)
    return value


class AdaptiveLayer(Layer, ABC):
    """A layer whose state comes from data (:meth:`adapt`), or is given.

    A class names its state in ``state_types``: persistent buffers, None until there is one. A state
    that is loaded may have other shapes than the one before, but is whole.
    """

    state_types: Mapping[str, torch.dtype] = {}
    optional_state: frozenset[str] = frozenset()  # what a whole state may lack
    state_called = ""  # what messages call it, where its names say nothing to users

    def __init__(self, analyzer: Analyzer, **config: Any) -> None:
        """Begin without a state; the analyzer says what the layer learns from data."""
        super().__init__(**config)
        self.analyzer = analyzer
        self.is_given = False
        # Says where the layer was moved to, also before it has a state.
        self.register_buffer("_place", torch.empty(0), persistent=False)
        for name in self.state_types:
            self.register_buffer(name, None)

    @abstractmethod
    def count(self, state: Any, column: Any) -> None:
        """Add the rows of a column, in host memory, to a state; zero rows add nothing."""

    @abstractmethod
    def _set_state(self, found: Any) -> None:
        """Set the buffers to what the analyzer has found, on any device."""

    def adopt(self, found: Any) -> None:
        """Make what the analyzer has found the layer's own; cannot fail."""
        self._set_state(found)
        self.to(self.get_buffer("_place").device)

    def adapt(
        self, data: Any, *, strategy: Workers | None = None, batch_size: int | None = None
    ) -> None:
        """Find the layer's state in one pass over the data (``keras.Layer.adapt``).

        Each batch, or example, is the column itself; for batches of several columns use
        :class:`~torch_distinput.preprocessing.Features`.

        Args:
            data: columns, a map-style dataset, a list of examples, a DataLoader, files or a stream,
                as ``Strategy.distribute_dataset`` takes them; or what it returns, of which the next
                epoch is played, and is still to come afterwards.
            strategy: of the workers that share the data, each of which calls this; None: this
                process reads all of it. A distributed dataset knows its own.
            batch_size: examples of a batch over all workers, where the data has no batches; it
                matters for speed alone.
        """
        adapt_layers(
            self,
            {"": self},
            lambda batch, _: [take_only_column(batch)],
            data,
            strategy=strategy,
            batch_size=batch_size,
        )

    def check_may_adapt(self) -> None:
        """Refuse to adapt where the state was given."""
        if self.is_given:
            state = self.state_called or next(iter(self.state_types))
            msg = (
                f"{self.describe()} was given its {state}, so it cannot adapt(). Leave "
                "the argument out to find it in data."
            )
            raise ValueError(msg)

    def need(self, name: str) -> torch.Tensor:
        """Return a buffer of the state.

        Raises:
            UsageError: if there is no state yet.
        """
        tensor = getattr(self, name)
        if tensor is None:
            msg = (
                f"{self.describe()} has no {self.state_called or name} yet. Call adapt(dataset), "
                "load a saved state, or pass it to the constructor, before the layer is used."
            )
            raise UsageError(msg)
        return tensor  # type: ignore[no-any-return]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take over the shapes of a state before its values; of a state that is whole, or nothing.

        Parts of two states are the state of no data: the means of one, the variances of the other.
        """
        saved = {
            name: state_dict[prefix + name]
            for name in self.state_types
            if state_dict.get(prefix + name) is not None
        }
        if saved and (refusal := self._explain_refusal(saved)):
            error_msgs = args[-1]
            error_msgs.append(refusal)
            return
        # As others are copied into a parameter of its own type, whatever type they were saved as.
        typed = {prefix + name: tensor.to(self.state_types[name]) for name, tensor in saved.items()}
        device = self.get_buffer("_place").device
        for name in saved:
            self._buffers[name] = torch.empty_like(typed[prefix + name], device=device)
        super()._load_from_state_dict({**state_dict, **typed}, prefix, *args, **kwargs)

    def _explain_refusal(self, saved: Mapping[str, torch.Tensor]) -> str | None:
        """Say why a state cannot be taken over."""
        if lacking := self.state_types.keys() - saved.keys() - self.optional_state:
            return (
                f"Expected a whole state for {self.describe()}, or none, got {sorted(saved)} "
                f"without {sorted(lacking)}. Load all of one state; the layer is as it was."
            )
        for name, tensor in saved.items():
            if tensor.is_floating_point() and not self.state_types[name].is_floating_point:
                return (
                    f"Expected {name} of {self.describe()} as {self.state_types[name]}, got "
                    f"{tensor.dtype}, which rounds integers. Save the state as it is, and convert "
                    "only the network's."
                )
        return None
