"""Which workers take part: from the environment, a process group, or a device mesh."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from torch_distinput.cluster.process_group import ProcessGroupCommunicator
from torch_distinput.communicator import Alone, Communicator
from torch_distinput.errors import ConfigurationError, UsageError
from torch_distinput.options import AutoShardPolicy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def find_cluster(
    process_group: dist.ProcessGroup | None,
    device_mesh: DeviceMesh | None,
    data_dims: Sequence[str] | None,
) -> Communicator:
    """Return the communicator of the ranks over which data is parallel."""
    if process_group is not None and device_mesh is not None:
        msg = "Expected process_group or device_mesh, got both. Pass the one that holds the data."
        raise ConfigurationError(msg)
    if data_dims is not None and device_mesh is None:
        msg = "data_dims names dimensions of a mesh, but no device_mesh came with it."
        raise ConfigurationError(msg)
    if not (dist.is_available() and dist.is_initialized()):
        return _alone()
    if device_mesh is not None:
        if device_mesh.get_coordinate() is None:
            raise _outside("device_mesh")
        return ProcessGroupCommunicator(_data_group(device_mesh, data_dims))
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise _outside("process_group")
    if process_group is None and dist.get_world_size() == 1:
        return Alone(on_purpose=False)
    return ProcessGroupCommunicator(process_group)


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
            f"Expected a strategy of all {num_ranks} ranks of the process group, got one that was "
            "made before the group and knows of one worker only. Make the strategy after "
            "init_process_group (init_distributed), in the function that the ranks run."
        )
        raise UsageError(msg)
    if num_ranks > 1 and policy is not AutoShardPolicy.OFF:
        msg = (
            "Expected MultiWorkerMirroredStrategy, because there is a process group of "
            f"{num_ranks} ranks, got a strategy of this process alone, with which each rank would "
            "read all of the data. If that is meant, say so: "
            'InputOptions(auto_shard_policy="off").'
        )
        raise UsageError(msg)


def _outside(argument: str) -> ConfigurationError:
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
            f"Expected a process group, because torchrun started {started} ranks (WORLD_SIZE), but "
            "torch.distributed is not initialized. Call torch_distinput.init_distributed() first."
        )
        raise UsageError(msg)
    return Alone(on_purpose=False)


def _data_group(mesh: DeviceMesh, data_dims: Sequence[str] | None) -> dist.ProcessGroup:
    """The group of ranks that agree in all other dimensions of the mesh."""
    names = mesh.mesh_dim_names or ()
    dims = tuple(data_dims) if data_dims is not None else names
    if data_dims is None and mesh.ndim != 1:
        msg = (
            f"Expected data_dims for a mesh of {mesh.ndim} dimensions {names}, got None. Name "
            'those over which data is parallel, as in data_dims=("dp_replicate", "dp_shard").'
        )
        raise ConfigurationError(msg)
    if unknown := [dim for dim in dims if dim not in names]:
        msg = f"data_dims must be among the mesh's dimensions {names}, got {unknown}."
        raise ConfigurationError(msg)
    if mesh.ndim == 1 or len(dims) == 1:
        return mesh.get_group(dims[0] if dims else 0)
    axes = [names.index(dim) for dim in dims]
    rest = [axis for axis in range(mesh.ndim) if axis not in axes]
    size = math.prod(mesh.mesh.shape[axis] for axis in axes)
    # (other dimensions, ranks that share them); a part of a mesh has only those of this rank
    rows = mesh.mesh.permute(*rest, *axes).reshape(-1, size).tolist()
    own = next(row for row in rows if dist.get_rank() in row)
    # Its ranks alone, and named after them: a number would be that of the other rows' groups too.
    group: dist.ProcessGroup = dist.new_group(own, use_local_synchronization=True)
    return group
