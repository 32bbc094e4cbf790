"""Which ranks of a device mesh get the same data: names and integers, no collective."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_distinput.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DataDims = str | Sequence[str] | Any
"""Names, or an object with ``shard`` and ``replicate``: FSDP2's ``DataParallelMeshDims``."""

_DATA = ("dp", "dp_replicate", "dp_shard", "batch", "data_parallel")
_OTHERS = ("tp", "cp", "pp", "sp", "tensor_parallel")
"""What torchtitan, Accelerate and Lightning call the dimensions of their meshes."""
_FOLDED = "fsdp"
"""torchtitan's name for dp_shard with context parallel folded in, where there is no ``cp``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshDim:
    """A dimension of a mesh, as one of its ranks sees it.

    Attributes:
        name: empty, where the mesh has no names.
        size: ranks along it.
        index: which of them this one is.
        holds_data: whether data is parallel over it.
    """

    name: str
    size: int
    index: int
    holds_data: bool


def find_data_dims(mesh: DeviceMesh, data_dims: DataDims | None) -> tuple[int, ...]:
    """The axes of a mesh over which data is parallel, in the order in which they were named.

    Raises:
        ConfigurationError: a name is not one of the mesh's; or none was given, and the mesh does
            not have known names only.
    """
    names = tuple(mesh.mesh_dim_names or ())
    if data_dims is None:
        return _known_dims(names, mesh.ndim)
    dims = _names_of(data_dims)
    if unknown := [dim for dim in dims if dim not in names]:
        cure = "" if names else ", which has none: pass mesh_dim_names= to init_device_mesh"
        msg = f"data_dims must be among the mesh's dimensions {names}{cure}; got {unknown}."
        raise ConfigurationError(msg)
    if repeated := [dim for dim, count in Counter(dims).items() if count > 1]:
        msg = (
            f"data_dims must name each dimension of the mesh once, got {dims}: {repeated} again. "
            "Remove what is repeated."
        )
        raise ConfigurationError(msg)
    return tuple(names.index(dim) for dim in dims)


def rows_of(mesh: DeviceMesh, axes: Sequence[int]) -> torch.Tensor:
    """The ranks of a mesh, ``(others, data)``: a row shards the data, a column shares it.

    A 2 x 2 mesh ("dp", "tp") of the ranks [[0, 1], [2, 3]] over "dp": [[0, 2], [1, 3]]. A part of
    a mesh has only those that its own ranks see.

    Workers come in the order of their ranks, as torch numbers those of a group.

    Raises:
        ConfigurationError: ranks of a column would be numbered differently, and share no data.
    """
    rest = [axis for axis in range(mesh.ndim) if axis not in axes]
    size = math.prod(mesh.mesh.shape[axis] for axis in axes)
    rows = mesh.mesh.permute(*rest, *axes).reshape(-1, size)
    rows = rows[:, rows[0].argsort()]
    if not torch.equal(rows, rows.sort(dim=1).values):
        msg = (
            "Expected a mesh whose ranks come in one order over the data, got these ranks, each "
            f"row a group that shards the data: {rows.tolist()}. torch numbers the ranks of each "
            "group from the lowest, so ranks of one column would get different data. Use "
            "init_device_mesh, which numbers ranks in order."
        )
        raise ConfigurationError(msg)
    return rows


def describe_dims(mesh: DeviceMesh, axes: Sequence[int]) -> tuple[MeshDim, ...]:
    """The dimensions of a mesh that this rank belongs to; data is parallel over ``axes``."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "ranks outside were refused"
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    return tuple(
        MeshDim(name=name, size=mesh.mesh.shape[axis], index=index, holds_data=axis in axes)
        for axis, (name, index) in enumerate(zip(names, coordinate, strict=True))
    )


def find_context_dim(dims: Sequence[MeshDim], name: str) -> MeshDim:
    """The dimension over which sequences are cut.

    Raises:
        ConfigurationError: there is no mesh, or it has no such dimension; or data is parallel over
            it, so that its ranks have other sequences.
    """
    if not dims:
        msg = (
            f"cp_dim={name!r} cuts sequences over a dimension of a mesh, got a strategy without "
            "one. Pass device_mesh= to MultiWorkerMirroredStrategy, or leave cp_dim out."
        )
        raise ConfigurationError(msg)
    found = next((dim for dim in dims if dim.name == name), None)
    others = tuple(dim.name for dim in dims if dim.name and not dim.holds_data)
    if found is None:
        has = f"those beside the data are {others}" if any(dim.name for dim in dims) else (
            "the mesh has no names: pass mesh_dim_names= to init_device_mesh"
        )
        msg = f"cp_dim must be a dimension of the mesh, got {name!r}; {has}."
        raise ConfigurationError(msg)
    if found.holds_data:
        msg = (
            f"cp_dim must be a dimension whose ranks share data, got {name!r}, over which data is "
            f"parallel; those beside the data are {others}. Leave {name!r} out of data_dims."
        )
        raise ConfigurationError(msg)
    return found


def _names_of(data_dims: DataDims) -> tuple[str, ...]:
    """The names, as they were given. Those who replicate come before those who shard, as in HSDP.

    By its attributes: torch before 2.13 has no class to ask for.
    """
    if isinstance(data_dims, str):
        return (data_dims,)
    if hasattr(data_dims, "shard") and hasattr(data_dims, "replicate"):
        both = (data_dims.replicate, data_dims.shard)
        return tuple(name for dims in both for name in _names_of(dims or ()))
    if isinstance(data_dims, Sequence) and all(isinstance(name, str) for name in data_dims):
        return tuple(data_dims)
    msg = (
        "data_dims must be names of the mesh's dimensions, or torch's DataParallelMeshDims, got "
        f'{data_dims!r}. Pass data_dims=("dp_replicate", "dp_shard"), for example.'
    )
    raise ConfigurationError(msg)


def _known_dims(names: tuple[str, ...], ndim: int) -> tuple[int, ...]:
    """The data dimensions of a mesh that others have named."""
    data = (*_DATA, _FOLDED) if "cp" in names or ndim == 1 else _DATA
    found = tuple(axis for axis, name in enumerate(names) if name in data)
    if found and all(name in (*data, *_OTHERS) for name in names):
        return found
    if ndim == 1 and not any(name in _OTHERS for name in names):
        return (0,)
    why = ""
    if _FOLDED in names:
        why = (
            f" (with {_FOLDED!r} and without 'cp', nobody can tell whether context parallel is "
            "folded in, as torchtitan does it)"
        )
    msg = (
        f"Expected data_dims for a mesh of {ndim} dimensions {names}, got None{why}. Name those "
        'over which data is parallel, as in data_dims=("dp_replicate", "dp_shard"). Without it '
        f"the names of all dimensions must be known ones: {', '.join(_DATA)} for data, and "
        f"{', '.join(_OTHERS)}."
    )
    raise ConfigurationError(msg)
