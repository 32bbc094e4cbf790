"""A rank of a job on TPUs, of which torch_tpu is pretended: in Python, over memory of the host.

torch's own means make a device ``tpu`` of what backends outside of torch register: the name, the
module ``torch.tpu``, a fallback for every operation, and the process-group backend ``tpu_dist``.
What the job does with them is what a user's script would do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

copies: list[tuple[str, str, bool]] = []
"""Source, target and ``non_blocking`` of each copy."""


class TpuModule:
    """What torch asks of ``torch.tpu``."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False


storages: list[Any] = []
numbers: dict[int, torch.Tensor] = {}
"""On the host, by the storage of the tensor on the device; both stay, as the job is short."""


def to_device(values: torch.Tensor) -> torch.Tensor:
    made = torch._C._acc.create_empty_tensor(values.shape, values.dtype)
    storages.append(made.untyped_storage())
    numbers[storages[-1]._cdata] = values
    return made


def on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    there = isinstance(value, torch.Tensor) and value.device.type == "tpu"
    return numbers[value.untyped_storage()._cdata] if there else value


def compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map(on_host, (args, kwargs))
    return pytree.tree_map_only(torch.Tensor, to_device, operation(*args, **kwargs))


def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    copies.append((source.device.type, target.device.type, non_blocking))
    on_host(target).copy_(on_host(source))
    return target


def make_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def pretend_tpu() -> tuple[torch.library.Library, torch.library.Library]:
    """Load the backend, as torch loads torch_tpu; it is there while the result is kept."""
    _setup_privateuseone_for_python_backend("tpu", backend_module=TpuModule())
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(compute, "PrivateUse1")
    aten.impl("_copy_from", copy_from, "PrivateUse1")
    dist.Backend.register_backend("tpu_dist", make_group, devices=["tpu"])
    return everything, aten


def run() -> dict[str, Any]:
    """The script; what the test asks of it."""
    import torch_distinput as tdi

    tdi.init_distributed(60)
    strategy = tdi.TPUStrategy()
    found: dict[str, Any] = {
        "backend": dist.get_backend_config(),
        "strategy": repr(strategy),
        "shapes": [],
        "devices": [],
        "examples": [],
    }
    for buffer_size in (0, 2):
        options = tdi.InputOptions(per_replica_buffer_size=buffer_size)

        def stream() -> Any:
            yield from (torch.tensor([float(number)]) for number in range(11))

        dataset = strategy.distribute_dataset(stream, global_batch_size=4, options=options)
        for batch, mask in dataset:
            found["shapes"].append(list(batch.shape))
            found["devices"] += [str(batch.device), str(mask.device)]
            examples = batch.cpu()[mask.cpu()]
            found["examples"] += examples.flatten().tolist()
    last = examples.to(strategy.device)
    found["gathered"] = strategy.gather(last).cpu().flatten().tolist()
    found["sum"] = strategy.reduce("sum", last.sum()).item()
    found["blocking"] = [not copy[2] for copy in copies if copy[:2] == ("cpu", "tpu")]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    libraries = pretend_tpu()
    results = run()
    Path(sys.argv[1], f"{results['strategy'].partition('worker ')[2][0]}.json").write_text(
        json.dumps(results)
    )
