"""Which workers take part: from the environment, a process group, or a device mesh."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from torch_distinput.cluster.data_parallel_group import find_compared
from torch_distinput.cluster.mesh import (
    DataDims,
    MeshDim,
    describe_dims,
    find_data_dims,
    rows_of,
)
from torch_distinput.cluster.partners import Partners, find_partners
from torch_distinput.cluster.process_group import ProcessGroupCommunicator
from torch_distinput.communicator import Alone, Communicator
from torch_distinput.errors import ConfigurationError, UsageError, refer
from torch_distinput.options import AutoShardPolicy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_EXPLAINED_IN = "docs/errors.md#the-strategy-does-not-know-the-other-ranks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The ranks that take part.

    Attributes:
        communicator: those over which data is parallel.
        partners: those that get the same data as this one; None if there are none.
        mesh_dims: of the mesh that they lie on; none without one.
        groups: this rank's along each dimension, by its name.
    """

    communicator: Communicator
    partners: Partners | None = None
    mesh_dims: tuple[MeshDim, ...] = ()
    groups: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)


def find_cluster(
    process_group: dist.ProcessGroup | None,
    device_mesh: DeviceMesh | None,
    data_dims: DataDims | None,
    replicate_input: str,
) -> Membership:
    """Return the ranks over which data is parallel, and those that share this one's."""
    if process_group is not None and device_mesh is not None:
        msg = "Expected process_group or device_mesh, got both. Pass the one that holds the data."
        raise ConfigurationError(msg)
    if data_dims is not None and device_mesh is None:
        msg = (
            "data_dims names dimensions of a mesh, but no device_mesh was passed. Pass "
            "device_mesh=, or leave data_dims out."
        )
        raise ConfigurationError(msg)
    broadcasts = _check_replicate_input(replicate_input, device_mesh)
    if not (dist.is_available() and dist.is_initialized()):
        return Membership(communicator=_alone())
    if device_mesh is not None:
        if device_mesh.get_coordinate() is None:
            raise _make_outside_error("device_mesh")
        return _find_in_mesh(device_mesh, data_dims, broadcasts=broadcasts)
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise _make_outside_error("process_group")
    if process_group is None and dist.get_world_size() == 1:
        return Membership(communicator=Alone(on_purpose=False))
    communicator = ProcessGroupCommunicator(process_group)
    partners, groups_beside = None, find_compared(process_group)
    if groups_beside is not None:
        groups = torch.tensor(groups_beside, device="cpu")
        partners = find_partners(groups, dist.get_rank(), broadcasts=False)
    return Membership(communicator=communicator, partners=partners)


def _check_replicate_input(replicate_input: str, device_mesh: DeviceMesh | None) -> bool:
    """Whether one of the ranks that share data reads for the others."""
    if replicate_input not in ("read", "broadcast"):
        msg = f'replicate_input must be "read" or "broadcast", got {replicate_input!r}.'
        raise ValueError(msg)
    if replicate_input == "broadcast" and device_mesh is None:
        msg = (
            'replicate_input="broadcast" is for ranks that share data, which a device_mesh '
            "defines, but none was passed. Pass device_mesh= (and data_dims=, unless its "
            "dimensions have known names), or leave replicate_input out."
        )
        raise ConfigurationError(msg)
    return replicate_input == "broadcast"


def check_alone(
    communicator: Communicator, policy: AutoShardPolicy | str = AutoShardPolicy.OFF
) -> None:
    """Refuse a single worker that stands beside a process group of several ranks by mistake.

    Each of its ranks would read all data, as if it were alone.

    Args:
        communicator: of a strategy, which may be older than the process group.
        policy: by which data is about to be read. With OFF every rank is to read everything;
            nobody has asked for that with another one, and now it would.

    Raises:
        UsageError: on every rank that makes this mistake.
    """
    if not isinstance(communicator, Alone) or not dist.is_available() or not dist.is_initialized():
        return
    num_ranks = dist.get_world_size()
    if num_ranks > 1 and not communicator.on_purpose:
        msg = (
            f"Expected a strategy of all {num_ranks} ranks of the process group, got one that "
            "was made before the group and knows only one worker. Make the strategy after "
            "init_process_group (init_distributed), in the function that the ranks run."
        )
        raise refer(UsageError(msg), _EXPLAINED_IN)
    if num_ranks > 1 and policy is not AutoShardPolicy.OFF:
        msg = (
            "Expected MultiWorkerMirroredStrategy, because there is a process group of "
            f"{num_ranks} ranks, got a strategy of this process alone, with which each rank "
            "would read all of the data. If you want that, say so: "
            'InputOptions(auto_shard_policy="off").'
        )
        raise refer(UsageError(msg), _EXPLAINED_IN)


def _make_outside_error(argument: str) -> ConfigurationError:
    msg = (
        f"Expected a {argument} that this rank belongs to, got one without rank {dist.get_rank()} "
        f"of {dist.get_world_size()}. Make the strategy on the ranks of the {argument} only; the "
        "others take no part in its datasets."
    )
    return ConfigurationError(msg)


def _alone() -> Alone:
    """One worker; but not by mistake, where torchrun has started several."""
    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1":
        msg = (
            f"Expected a process group, because {started} ranks were started (WORLD_SIZE), but "
            "torch.distributed is not initialized. Call torch_distinput.init_distributed() first; "
            "a trainer makes the group itself: let its integration make the strategy."
        )
        raise refer(UsageError(msg), _EXPLAINED_IN)
    return Alone(on_purpose=False)


def _find_in_mesh(mesh: DeviceMesh, data_dims: DataDims | None, *, broadcasts: bool) -> Membership:
    """The ranks that agree in all other dimensions of the mesh, and those that agree in these."""
    axes = find_data_dims(mesh, data_dims)
    rows = rows_of(mesh, axes)
    if len(axes) == 1:
        group = mesh.get_group(axes[0])
    else:
        own = next(row for row in rows.tolist() if dist.get_rank() in row)
        # Its ranks alone, and named after them: a number would be that of the other rows' too.
        group = dist.new_group(own, use_local_synchronization=True)
    communicator = ProcessGroupCommunicator(group)
    partners = find_partners(rows, dist.get_rank(), broadcasts=broadcasts)
    return Membership(
        communicator=communicator,
        partners=partners,
        mesh_dims=describe_dims(mesh, axes),
        groups={name: mesh.get_group(name) for name in mesh.mesh_dim_names or ()},
    )
