"""The strategies of tf.distribute: they differ in how they find workers and devices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal, final

import torch

from torch_distinput.cluster.membership import Membership, find_cluster
from torch_distinput.communicator import Alone
from torch_distinput.device.backend import TPU
from torch_distinput.distribute import context
from torch_distinput.distribute.strategy import Strategy
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.topology import Topology

Device = str | torch.device


@final
class MultiWorkerMirroredStrategy(Strategy):
    """One worker per rank (``tf.distribute.MultiWorkerMirroredStrategy``).

    Args:
        devices: this rank's replicas; default: its accelerator, else the CPU. ``["cpu"] * n``
            makes n virtual replicas. The same number on every rank.
        process_group: the ranks that take part, a ``torch.distributed.ProcessGroup``; default:
            all. Without any process group there is one worker.
        device_mesh: a ``DeviceMesh``, instead of a process group.
        data_dims: the mesh dimensions over which data is parallel: names, or FSDP2's
            ``DataParallelMeshDims``. Default: the only one, or those that are known by name
            (``dp``, ``dp_replicate``, ``dp_shard``, ``data_parallel``, ...) if all dimensions are.
            Ranks that differ in other dimensions only (partners) get the same data.
        replicate_input: ``"read"``: each of the partners reads the data; ``"broadcast"``: one of
            them does, and sends each step to the others.

    Raises:
        ConfigurationError: a ValueError; the mesh has no such dimensions, or not known ones only;
            or torch finds no such device.
        UsageError: under torchrun before ``init_distributed()``. A strategy made before a process
            group that did not come from torchrun (``mp.spawn``, Lightning's ``ddp_fork``,
            notebooks) raises it when it is used: it cannot know of the other ranks.
    """

    def __init__(
        self,
        devices: Sequence[Device] | None = None,
        *,
        process_group: Any = None,
        device_mesh: Any = None,
        data_dims: Any = None,
        replicate_input: Literal["read", "broadcast"] = "read",
    ) -> None:
        cluster = find_cluster(process_group, device_mesh, data_dims, replicate_input)
        communicator = cluster.communicator
        chosen = [_own_accelerator()] if devices is None else _parsed(devices)
        topology = Topology(
            num_workers=communicator.size,
            replicas_per_worker=len(chosen),
            worker_index=communicator.rank,
        )
        super().__init__(topology, chosen, cluster)


@final
class MirroredStrategy(Strategy):
    """One process with several devices (``tf.distribute.MirroredStrategy``).

    Args:
        devices: one replica each; default: all visible accelerators, else the CPU.
            ``["cpu"] * n`` makes n virtual replicas.
    """

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        chosen = _all_accelerators() if devices is None else _parsed(devices)
        topology = Topology(replicas_per_worker=len(chosen))
        cluster = Membership(communicator=Alone(on_purpose=True))
        super().__init__(topology, chosen, cluster)


@final
class OneDeviceStrategy(Strategy):
    """One process with one device (``tf.distribute.OneDeviceStrategy``).

    Args:
        device: a ``torch.device`` or its name, such as ``"cpu"`` or ``"cuda:1"``.
    """

    def __init__(self, device: Device) -> None:
        cluster = Membership(communicator=Alone(on_purpose=True))
        super().__init__(Topology(), _parsed([device]), cluster)


@final
class TPUStrategy(Strategy):
    """One worker per rank, on its TPU (``tf.distribute.TPUStrategy``). Experimental.

    Over torch_tpu, Google's device ``tpu`` for torch, of which each process sees one as ``tpu:0``;
    ranks come from torchrun. It has never run on a TPU: see the docs. A TPU computes on static
    shapes, so every dataset is padded as with ``InputOptions(partial_batch="pad")`` and yields
    pairs ``(batch, mask)``; batches of a ``dataset_fn`` or ready ones, whose sizes nobody knows,
    are padded to the largest so far. Batches hold dense tensors only, and
    ``distribute_values_from_function`` is refused: its values may have any shape.

    Args:
        process_group: as for :class:`MultiWorkerMirroredStrategy`.
        device_mesh: as for :class:`MultiWorkerMirroredStrategy`.
        data_dims: as for :class:`MultiWorkerMirroredStrategy`.
        replicate_input: as for :class:`MultiWorkerMirroredStrategy`.

    Raises:
        ConfigurationError: a ValueError; torch_tpu is not installed, or sees no TPU.
        UsageError: under torchrun before ``init_distributed()``.
    """

    def __init__(
        self,
        *,
        process_group: Any = None,
        device_mesh: Any = None,
        data_dims: Any = None,
        replicate_input: Literal["read", "broadcast"] = "read",
    ) -> None:
        device = _own_tpu()
        cluster = find_cluster(process_group, device_mesh, data_dims, replicate_input)
        communicator = cluster.communicator
        topology = Topology(num_workers=communicator.size, worker_index=communicator.rank)
        super().__init__(topology, [device], cluster, has_static_shapes=True)


def get_strategy() -> Strategy | None:
    """Return the strategy whose ``scope()`` or ``run`` we are in; None outside.

    ``tf.distribute.get_strategy``, which returns a default strategy instead of None.
    """
    session = context.entered_session()
    return None if session is None else session.strategy


def _parsed(devices: Sequence[Device]) -> list[torch.device]:
    if isinstance(devices, (str, torch.device)) or not devices:
        msg = f'devices must be a list, one per replica, such as ["cpu"], got {devices!r}.'
        raise ValueError(msg)
    return [_with_index(torch.device(device)) for device in devices]


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu" or device.index is not None:
        return torch.device(device.type) if device.type == "cpu" else device
    own = _own_accelerator()
    if own.type != device.type:
        msg = (
            f'Expected a device that torch finds on this machine, got "{device.type}", where there '
            f'is {_described(own)}. Pass ["{own.type}"], or leave devices out.'
        )
        raise ConfigurationError(msg)
    return own


def _own_accelerator() -> torch.device:
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return torch.device("cpu")
    return torch.device(kind.type, torch.accelerator.current_device_index())


def _all_accelerators() -> list[torch.device]:
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return [torch.device("cpu")]
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def _own_tpu() -> torch.device:
    device = _own_accelerator()
    if device.type == TPU:
        return device
    # Only looked for, never imported: torch does that by itself, on a machine with a TPU.
    if find_spec("torch_tpu") is None:
        found = "torch_tpu is not installed"
        cure = "Install it on the machine of the TPU: pip install 'torch_distinput[tpu]'"
    else:
        found = "torch_tpu is installed, but sees none (or TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps "
        found += "torch from loading it)"
        cure = "Run on a machine with a TPU, in a process that no other one shares it with"
    msg = (
        f"TPUStrategy expects a TPU, got {_described(device)}: {found}. {cure}. To try the script "
        'elsewhere, MultiWorkerMirroredStrategy(["cpu"]) with InputOptions(partial_batch="pad") '
        "has the same steps."
    )
    raise ConfigurationError(msg)


def _described(device: torch.device) -> str:
    return "no accelerator" if device.type == "cpu" else f"the device {device}"
