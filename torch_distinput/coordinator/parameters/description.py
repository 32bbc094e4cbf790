"""What a module consists of, and how another process makes its copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from torch_distinput.coordinator.parameters.placement import ParameterShard, ParameterSpec
from torch_distinput.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferSpec:
    """A buffer that ``state_dict()`` has, as BatchNorm's running mean."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleDescription:
    """The parameters and buffers of a module.

    Attributes:
        parameters: each once, under its first name, in the order of ``module.parameters()``.
        buffers: those of ``state_dict()``; others are scratch memory of one process.
        names: from each name of a parameter, those of tied ones too, to its first.
    """

    parameters: tuple[ParameterSpec, ...]
    buffers: tuple[BufferSpec, ...]
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRecipe:
    """What a process must know of ``Parameters``.

    Attributes:
        module_fn: pickled; makes the module.
        description: what the module must consist of.
        shards: where its parameters lie; a shard is named by its index here.
        groups: names of the parameters in each group of the optimizer, as it is in one process.
        settings: names of the settings of each group.
        max_staleness: how many pushes may come between a pull and its push; None for any number.
    """

    module_fn: bytes
    description: ModuleDescription
    shards: tuple[ParameterShard, ...]
    groups: tuple[tuple[str, ...], ...]
    settings: tuple[frozenset[str], ...]
    max_staleness: int | None

    def indices(self, server: int) -> tuple[int, ...]:
        """The shards of a server."""
        return tuple(index for index, shard in enumerate(self.shards) if shard.server == server)

    def shards_of(self, name: str) -> tuple[tuple[int, ParameterShard], ...]:
        """The shards of a parameter, with their indices, in the order of rows."""
        found = enumerate(self.shards)
        return tuple((index, shard) for index, shard in found if shard.name == name)


def make_module(module_fn: Any) -> nn.Module:
    """Call ``module_fn()``.

    Raises:
        TypeError: it is no function, or returned no module.
    """
    is_function = callable(module_fn) and not isinstance(module_fn, nn.Module)
    module = module_fn() if is_function else module_fn
    if not is_function or not isinstance(module, nn.Module):
        what = "a function that returns" if is_function else "what is no function"
        msg = (
            "Expected module_fn to be a function without arguments that returns a "
            f"torch.nn.Module, got {what}: {type(module).__name__}. Write a function that makes "
            "the module: it is called here and once in each worker process."
        )
        raise TypeError(msg)
    return module


def describe_module(module: nn.Module) -> ModuleDescription:
    """Describe a module.

    Raises:
        ConfigurationError: it has no parameters, or such as cannot live on servers.
    """
    parameters = dict(module.named_parameters())
    if not parameters:
        msg = (
            f"Expected module_fn to return a module with parameters, got a "
            f"{type(module).__name__} that has none. Return the module that is to be trained."
        )
        raise ConfigurationError(msg)
    buffers = dict(module.named_buffers())
    for name, tensor in [*parameters.items(), *buffers.items()]:
        _check_materialized(name, tensor)
    _check_memory([*parameters.items(), *buffers.items()])
    embeddings = _embeddings(module)
    first = {id(parameter): name for name, parameter in parameters.items()}
    kept = module.state_dict()
    return ModuleDescription(
        parameters=tuple(
            ParameterSpec(
                name=name,
                shape=tuple(parameter.shape),
                dtype=parameter.dtype,
                is_embedding=id(parameter) in embeddings,
                requires_grad=parameter.requires_grad,
            )
            for name, parameter in parameters.items()
        ),
        buffers=tuple(
            BufferSpec(name=name, shape=tuple(buffer.shape), dtype=buffer.dtype)
            for name, buffer in buffers.items()
            if name in kept
        ),
        names=tuple(
            (name, first[id(parameter)])
            for name, parameter in module.named_parameters(remove_duplicate=False)
        ),
    )


def check_same(expected: ModuleDescription, module: nn.Module) -> None:
    """Compare the module that this process made with that of the coordinator.

    Raises:
        ConfigurationError: they differ; the message has the first three differences.
    """
    ours = dict(_lines(describe_module(module)))
    theirs = dict(_lines(expected))
    if ours == theirs and list(ours) == list(theirs):
        return
    differences = [
        f"{name}: {theirs.get(name, 'missing')} there, {ours.get(name, 'missing')} here"
        for name in {**theirs, **ours}
        if theirs.get(name) != ours.get(name)
    ] or ["the same names in another order"]
    msg = (
        "Expected module_fn to make the same module in this process as in the coordinator's, got "
        f"{len(differences)} differences: {'; '.join(differences[:3])}. Let module_fn depend on "
        "nothing that differs between processes."
    )
    raise ConfigurationError(msg)


def _lines(description: ModuleDescription) -> Iterator[tuple[str, str]]:
    for one in description.parameters:
        yield one.name, f"parameter {one.shape} {one.dtype}"
    for buffer in description.buffers:
        yield buffer.name, f"buffer {buffer.shape} {buffer.dtype}"
    for name, first in description.names:
        if name != first:
            yield name, f"tied to {first}"


def _embeddings(module: nn.Module) -> set[int]:
    found = set()
    for name, child in module.named_modules():
        if isinstance(child, (nn.Embedding, nn.EmbeddingBag)):
            if child.max_norm is not None:
                msg = (
                    "Expected embeddings whose weight only the optimizer changes, got max_norm="
                    f"{child.max_norm} in {name or 'the module'!r}: its forward pass would change "
                    "the worker's copy, which the next pull overwrites. Leave max_norm out; "
                    "normalize the rows that were looked up, in forward."
                )
                raise ConfigurationError(msg)
            found.add(id(child.weight))
    return found


def _check_materialized(name: str, tensor: torch.Tensor) -> None:
    lazy = isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))
    if lazy or tensor.is_meta or tensor.layout is not torch.strided:
        kind = "uninitialized" if lazy else "on 'meta'" if tensor.is_meta else str(tensor.layout)
        msg = (
            f"Expected module_fn to return dense parameters with values, got {name!r}, which is "
            f"{kind}. Initialize it in module_fn (a lazy module: call it once there)."
        )
        raise ConfigurationError(msg)


def _check_memory(tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Refuse different tensors that share memory: on servers, each would have its own."""
    ranges = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), name)
        for name, tensor in tensors
        if tensor.numel()
    )
    for (device, _, end, name), (other_device, start, _, other) in pairwise(ranges):
        if device == other_device and start < end:
            msg = (
                f"Expected parameters and buffers with memory of their own, got {name!r} and "
                f"{other!r}, which are different tensors over the same memory: on parameter "
                "servers they would drift apart. Tie them by one Parameter under two names."
            )
            raise ConfigurationError(msg)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.element_size()
