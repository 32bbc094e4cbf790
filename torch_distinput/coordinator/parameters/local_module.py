"""A process's copy of the module: written by pulls, read by pushes, and put back as it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from torch_distinput.coordinator.parameters.description import ModuleRecipe
from torch_distinput.coordinator.parameters.held import Changes
from torch_distinput.coordinator.parameters.payload import SomeRows
from torch_distinput.errors import ConfigurationError, UsageError


@final
class LocalModule:
    """The module of this process, and what is known of it."""

    def __init__(self, recipe: ModuleRecipe, module: nn.Module) -> None:
        self._recipe = recipe
        self._module = module
        self._parameters = dict(module.named_parameters())
        self._dtypes = {name: one.dtype for name, one in self._parameters.items()}
        self._places = {
            spec.name: _place_of(module, spec.name) for spec in recipe.description.buffers
        }
        self._buffers = self._live_buffers()
        self._modes = [(child, child.training) for child in module.modules()]
        self._trained = [(one, one.requires_grad) for one in self._parameters.values()]
        self._written: dict[str, tuple[int, int]] = {}
        self._known_buffers: dict[str, torch.Tensor] = {}

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        return self._module

    def altered(self) -> list[int]:
        """The shards of parameters that somebody else has written to since the last pull.

        Raises:
            UsageError: the module has other parameters than when it was made.
        """
        self._check_parameters()
        self._put_back_dtypes()
        return [
            index
            for index, shard in enumerate(self._recipe.shards)
            if self._written.get(shard.name) != _stamp(self._parameters[shard.name])
        ]

    def move(self, device: torch.device | None) -> None:
        """Move the module to a device."""
        if device is not None:
            self._put_back()
            self._module.to(device)
            self._buffers = self._live_buffers()

    def write(self, changes: Changes) -> None:
        """Take over values of a server."""
        self._put_back_dtypes()
        with torch.no_grad():
            for index, update in changes.shards.items():
                shard = self._recipe.shards[index]
                mine = shard.cut(self._parameters[shard.name])
                if isinstance(update, SomeRows):
                    indices = update.indices.to(mine.device)
                    mine.index_copy_(0, indices, update.values.to(mine.device))
                else:
                    mine.copy_(update)
        self._known_buffers.update({name: one.clone() for name, one in changes.buffers.items()})

    def restore(self) -> nn.Module:
        """Return the module as it was made, but for the values: modes, no gradients, buffers."""
        for child, training in self._modes:
            child.training = training
        self._put_back()
        with torch.no_grad():
            for name, known in self._known_buffers.items():
                self._buffers[name].copy_(known)
        for parameter, requires_grad in self._trained:
            parameter.requires_grad_(requires_grad)
            parameter.grad = None
        self._written = {name: _stamp(one) for name, one in self._parameters.items()}
        return self._module

    def load(
        self, state: Mapping[str, Any]
    ) -> tuple[dict[int, torch.Tensor], dict[str, torch.Tensor]]:
        """Load a state into the module; return the values of all shards, and the buffers.

        Raises:
            ConfigurationError: names or shapes differ.
        """
        self._check_parameters()
        self._put_back_dtypes()
        self._put_back()
        try:
            self._module.load_state_dict(state)
        except RuntimeError as error:
            msg = (
                f"Expected the state of a module as module_fn makes it: {error}. Load it with the "
                "module_fn that it was saved with."
            )
            raise ConfigurationError(msg) from error
        values = {
            index: shard.cut(self._parameters[shard.name].detach())
            for index, shard in enumerate(self._recipe.shards)
        }
        return values, {name: one.detach() for name, one in self._live_buffers().items()}

    def changed_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that differ from what was pulled.

        Raises:
            ConfigurationError: one has another shape or dtype.
        """
        changed = {}
        for name, buffer in self._live_buffers().items():
            known, mine = self._known_buffers[name], buffer.detach().cpu()
            if known.shape != mine.shape or known.dtype != mine.dtype:
                msg = (
                    f"Expected buffer {name!r} to stay {tuple(known.shape)} {known.dtype}, got "
                    f"{tuple(mine.shape)} {mine.dtype}. Register what changes its shape with "
                    "persistent=False."
                )
                raise ConfigurationError(msg)
            if not _has_same_bits(known, mine):
                changed[name] = mine
        return changed

    def note_pushed(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """These buffers are the servers' now."""
        self._known_buffers.update({name: buffer.clone() for name, buffer in buffers.items()})

    def collect(self, gradients: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        """Return the gradients that there are, by the first name of their parameter.

        Raises:
            UsageError: there are none: ``backward()`` was not called.
            ConfigurationError: unknown names, other shapes or dtypes.
        """
        self._check_parameters()
        if gradients is None:
            found = {
                name: one.grad for name, one in self._parameters.items() if one.grad is not None
            }
        else:
            found = self._check_names(gradients)
        if not found:
            msg = (
                f"Expected gradients of {len(self._parameters)} parameters, got none: backward() "
                "was not called on what the pulled module computed, or zero_grad() after it. Call "
                "loss.backward() between pull() and push()."
            )
            raise UsageError(msg)
        for name, gradient in found.items():
            self._check_gradient(name, gradient)
        return {name: gradient.detach() for name, gradient in found.items()}

    def _live_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as forward left them: it may have put other tensors in their places."""
        return {name: buffers[key] for name, (buffers, key) in self._places.items()}

    def _put_back(self) -> None:
        for name, (buffers, key) in self._places.items():
            buffers[key] = self._buffers[name]

    def _put_back_dtypes(self) -> None:
        """``bfloat16()`` and the like keep the parameters, but round what is in them."""
        for name, one in self._parameters.items():
            if one.dtype != self._dtypes[name]:
                one.data = one.data.to(self._dtypes[name])
                self._written.pop(name, None)

    def _check_parameters(self) -> None:
        now = dict(self._module.named_parameters())
        replaced = [name for name, one in self._parameters.items() if now.get(name) is not one]
        if replaced or len(now) != len(self._parameters):
            msg = (
                f"Expected the pulled module to keep its {len(self._parameters)} parameters, got "
                f"{len(now)}, and {len(replaced)} that were replaced ({', '.join(replaced[:3])}). "
                "Change the module in module_fn alone: the servers hold what it made there."
            )
            raise UsageError(msg)

    def _check_names(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        first = dict(self._recipe.description.names)
        unknown = [name for name in gradients if name not in first]
        if unknown:
            msg = (
                f"Expected gradients by names of module.named_parameters(), got {len(unknown)} "
                f"unknown ones, among them {unknown[0]!r}. The first names are "
                f"{', '.join(list(first)[:3])}."
            )
            raise ConfigurationError(msg)
        found: dict[str, torch.Tensor] = {}
        for name, gradient in gradients.items():
            if first[name] in found:
                msg = (
                    f"Expected one gradient for each parameter, got two for {first[name]!r}, which "
                    f"is tied to {name!r}. Pass their sum under one of the names."
                )
                raise ConfigurationError(msg)
            if gradient is not None:
                found[first[name]] = gradient
        return found

    def _check_gradient(self, name: str, gradient: torch.Tensor) -> None:
        parameter = self._parameters[name]
        if not isinstance(gradient, torch.Tensor):
            msg = f"Expected a tensor as the gradient of {name!r}, got {type(gradient).__name__}."
            raise TypeError(f"{msg} Pass what .grad would be.")
        dtype = self._dtypes[name]
        if gradient.shape != parameter.shape or gradient.dtype != dtype:
            msg = (
                f"Expected the gradient of {name!r} to be {tuple(parameter.shape)} "
                f"{dtype}, got {tuple(gradient.shape)} {gradient.dtype}. Pass it as "
                ".grad of the module as module_fn makes it would be."
            )
            raise ConfigurationError(msg)
        if gradient.layout not in {torch.strided, torch.sparse_coo}:
            msg = (
                f"Expected the gradient of {name!r} to be dense, or sparse with coordinates, got "
                f"{gradient.layout}. Convert it by to_dense() or to_sparse()."
            )
            raise ConfigurationError(msg)


def _place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, key = name.rpartition(".")
    return module.get_submodule(path)._buffers, key  # noqa: SLF001 - setattr could be the user's


def _stamp(parameter: nn.Parameter) -> tuple[int, int]:
    """Differs after a write to the parameter, or to its ``data`` by assignment."""
    return parameter._version, parameter.data_ptr()  # noqa: SLF001 - what autograd itself checks


def _has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also NaN is the same as itself, and -0.0 is not 0.0."""
    first, second = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)
