"""Places a new module's parameters on servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import nn

from torch_distinput.coordinator.engines.engine import RemoteObject
from torch_distinput.coordinator.engines.pickling import dumps
from torch_distinput.coordinator.parameters.client import Client, Connection
from torch_distinput.coordinator.parameters.description import (
    ModuleRecipe,
    describe_module,
    make_module,
)
from torch_distinput.coordinator.parameters.fan_out import FanOut, Request
from torch_distinput.coordinator.parameters.held import ServerPart
from torch_distinput.coordinator.parameters.identity import Caller
from torch_distinput.coordinator.parameters.optimizer_state import list_settings
from torch_distinput.coordinator.parameters.optimizers import (
    OptimizerFn,
    check_sharded,
    make_optimizer,
    warn_of_rows,
)
from torch_distinput.coordinator.parameters.parameters import Parameters
from torch_distinput.coordinator.parameters.payload import pack_tensors
from torch_distinput.coordinator.parameters.placement import Partitioner, place_parameters
from torch_distinput.errors import ServerLostError


def create_parameters(
    servers: Sequence[RemoteObject],
    module_fn: Callable[[], nn.Module],
    optimizer_fn: OptimizerFn,
    *,
    partitioner: Partitioner | None = None,
    max_staleness: int | None = None,
) -> Parameters:
    """Make a module here, and give its values to the servers.

    Args:
        servers: each with a :class:`ParameterServer`.
        module_fn: makes the module, here and once in each worker's process.
        optimizer_fn: makes an optimizer of a list of parameters: here to see its groups, and on
            each server for the rows that it holds.
        partitioner: ``(name, shape, dtype, num_servers)`` to a number of row shards; by default
            embeddings have one on each server, and other parameters stay whole.
        max_staleness: how many pushes may be applied between a pull and its push; None for any
            number, 0 for one worker at a time.

    Raises:
        ConfigurationError: a module or optimizer that cannot live on servers.
    """
    _check_staleness(max_staleness)
    module = make_module(module_fn)
    description = describe_module(module)
    optimizer, groups = make_optimizer(optimizer_fn, dict(module.named_parameters()))
    shards = place_parameters(description.parameters, len(servers), partitioner)
    cut = list(dict.fromkeys(shard.name for shard in shards if not shard.is_whole))
    check_sharded(optimizer, cut)
    warn_of_rows(optimizer, cut)
    recipe = ModuleRecipe(
        module_fn=dumps(module_fn, "module_fn"),
        description=description,
        shards=shards,
        groups=groups,
        settings=tuple(list_settings(group) for group in optimizer.state_dict()["param_groups"]),
        max_staleness=max_staleness,
    )
    connection = Connection(key=uuid.uuid4().hex, servers=tuple(servers))
    packed_fn = dumps(optimizer_fn, "optimizer_fn")
    requests: list[Request] = [
        (
            server,
            "create",
            (
                *(connection.key, pack_tensors(_part(recipe, module, server)), packed_fn),
                *((recipe, connection.servers) if server == 0 else ()),
            ),
        )
        for server in range(len(servers))
    ]
    fan_out = FanOut(servers)
    try:
        fan_out.call_all(requests)
    except Exception:
        for server in range(len(servers)):  # those that have accepted hold a copy
            with suppress(ServerLostError):
                fan_out.call(server, "drop", connection.key)
        raise
    caller = Caller(worker=None, nonce=connection.key)
    return Parameters(connection, Client(connection, caller, recipe, module))


def _part(recipe: ModuleRecipe, module: nn.Module, server: int) -> ServerPart:
    parameters = dict(module.named_parameters())
    mine = {index: recipe.shards[index] for index in recipe.indices(server)}
    buffers: dict[str, torch.Tensor] = {}
    if server == 0:
        there = dict(module.named_buffers())
        buffers = {spec.name: there[spec.name].cpu() for spec in recipe.description.buffers}
    return ServerPart(
        shards=mine,
        values={
            index: shard.cut(parameters[shard.name].detach()).cpu() for index, shard in mine.items()
        },
        frozen=frozenset(
            index for index, shard in mine.items() if not parameters[shard.name].requires_grad
        ),
        groups=tuple(
            tuple(index for name in names for index, shard in mine.items() if shard.name == name)
            for names in recipe.groups
        ),
        buffers=buffers,
    )


def _check_staleness(max_staleness: int | None) -> None:
    if max_staleness is None:
        return
    if type(max_staleness) is not int or max_staleness < 0:
        msg = (
            "Expected max_staleness to be a number of pushes from 0, or None for no bound, got "
            f"{max_staleness!r}. 0 lets one worker at a time pull and push."
        )
        raise ValueError(msg)
