"""What all preprocessing layers are: modules with a configuration, a state and a fingerprint.

``forward`` takes what the pipeline has (host strings, lists, NumPy arrays) and what a model has
(tensors, :class:`PackedStrings`); for tensors it is tensor code alone, which ``torch.export``
follows. Both give the same result.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from torch_distinput import scope_registry
from torch_distinput.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from torch_distinput.preprocessing.adapt.reading import Workers


class State(Protocol):
    """What a layer counts: mergeable, and canonical.

    The arrays and what is finished from them are functions of the multiset of examples: neither
    batches, order, ranks nor the tree of merges can change one bit.
    """

    def merge(self, other: Self) -> None:
        """Add what another state has counted."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The state as arrays, for a file."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo :meth:`to_arrays`."""


class Layer(nn.Module):
    """A preprocessing layer."""

    def __init__(self, **config: Any) -> None:
        """Keep the configuration, JSON values by the names of the constructor's parameters."""
        super().__init__()
        self._config = config
        self.name = ""
        scope_registry.add(self)

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
        shown = {name: qualified_name(value) for name, value in self._config.items()}
        return ", ".join(f"{name}={value:.60}" for name, value in shown.items())

    def described(self) -> str:
        """Name the layer in a message."""
        kind = type(self).__name__
        return f"{kind} {self.name!r}" if self.name else kind

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the class, its configuration and its state."""
        digest = hashlib.sha256(self.config_fingerprint().encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def config_fingerprint(self) -> str:
        """SHA-256, in hex, of the class and its configuration: of what :meth:`adapt` will count."""
        described = [type(self).__name__, self._config]
        text = json.dumps(described, sort_keys=True, default=qualified_name)
        return hashlib.sha256(text.encode()).hexdigest()


def qualified_name(value: Any) -> str:
    """A function of the user's, by its name; another value as it is shown."""
    if not callable(value):
        return repr(value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"


class AdaptiveLayer(Layer, ABC):
    """A layer whose state comes from data (:meth:`adapt`), or is given.

    A class names its state in ``state_types``: persistent buffers, None until there is one. A state
    that is loaded may have other shapes than the one before, but is whole.
    """

    state_types: Mapping[str, torch.dtype] = {}
    optional_state: frozenset[str] = frozenset()  # what a whole state may lack
    state_called = ""  # what messages call it, where its names say nothing to users

    def __init__(self, **config: Any) -> None:
        """Begin without a state."""
        super().__init__(**config)
        self.is_given = False
        # Says where the layer was moved to, also before it has a state.
        self.register_buffer("_place", torch.empty(0), persistent=False)
        for name in self.state_types:
            self.register_buffer(name, None)

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self.get_buffer("_place").device

    @abstractmethod
    def new_state(self) -> Any:
        """Return an empty :class:`State`."""

    @abstractmethod
    def count(self, state: Any, column: Any) -> None:
        """Add the rows of a column, in host memory, to a state; zero rows add nothing."""

    @abstractmethod
    def has_seen(self, state: Any) -> bool:
        """Whether a state has counted enough to be adopted."""

    @abstractmethod
    def finish(self, state: Any) -> Any:
        """Return what :meth:`adopt` takes, from a state that has counted something; may refuse."""

    @abstractmethod
    def adopt(self, finished: Any) -> None:
        """Make what :meth:`finish` has returned the layer's own; cannot fail."""

    def trimmed(self, state: Any) -> Any:
        """Leave out what cannot matter, of a state that has all there is of what it holds."""
        return state

    def restored(self) -> None:
        """Derive what follows from buffers that were loaded."""

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
        from torch_distinput.preprocessing.adapt.adapt import adapt_layer  # noqa: PLC0415 - a cycle

        adapt_layer(self, data, strategy=strategy, batch_size=batch_size)

    def check_may_adapt(self) -> None:
        """Refuse to adapt where the state was given."""
        if self.is_given:
            state = self.state_called or next(iter(self.state_types))
            msg = (
                f"{self.described()} was given its {state}, so it cannot adapt(). Leave "
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
                f"{self.described()} has no {self.state_called or name} yet. Call adapt(dataset), "
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
        if saved and (refusal := self._refusal_of(saved)):
            error_msgs = args[-1]
            error_msgs.append(refusal)
            return
        # As others are copied into a parameter of its own type, whatever type they were saved as.
        typed = {
            prefix + name: tensor.to(self.state_types[name]) for name, tensor in saved.items()
        }
        for name in saved:
            tensor = typed[prefix + name]
            self._buffers[name] = torch.empty_like(tensor, device=self.device)
        super()._load_from_state_dict({**state_dict, **typed}, prefix, *args, **kwargs)
        if saved:
            self.restored()

    def _refusal_of(self, saved: Mapping[str, torch.Tensor]) -> str | None:
        """Say why a state cannot be taken over."""
        if lacking := self.state_types.keys() - saved.keys() - self.optional_state:
            return (
                f"Expected a whole state for {self.described()}, or none, got {sorted(saved)} "
                f"without {sorted(lacking)}. Load all of one state; the layer is as it was."
            )
        for name, tensor in saved.items():
            if tensor.is_floating_point() and not self.state_types[name].is_floating_point:
                return (
                    f"Expected {name} of {self.described()} as {self.state_types[name]}, got "
                    f"{tensor.dtype}, which rounds integers. Save the state as it is, and convert "
                    "only the network's."
                )
        return None


def require(holds: torch.Tensor, explain: Callable[[], str]) -> None:
    """Refuse values that a layer cannot take; inside an exported graph, where it runs.

    Raises:
        ValueError: in eager code; the graph raises a RuntimeError with the same words.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(holds.all(), explain())  # noqa: SLF001 - its only name
    elif not bool(holds.all()):
        raise ValueError(explain())
