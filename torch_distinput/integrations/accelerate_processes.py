"""Which worker of a strategy is which process of an Accelerator: for Accelerate and Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import torch_distinput as tdi

if TYPE_CHECKING:
    from accelerate import Accelerator


def check_processes(strategy: tdi.Strategy, accelerator: Accelerator) -> None:
    """Compare the workers of a strategy with the data-parallel processes of an accelerator."""
    width = _count_alike(accelerator)
    expected = (accelerator.num_processes // width, accelerator.process_index // width)
    found = (strategy.num_workers, strategy.worker_index)
    if expected != found:
        msg = (
            f"Expected a strategy whose worker is number {expected[1]} of {expected[0]}, as this "
            f"process of the Accelerator, got number {found[1]} of {found[0]}. Make the "
            "Accelerator first (on CPUs with cpu=True, a Trainer with use_cpu=True), then "
            "tdi.MultiWorkerMirroredStrategy([accelerator.device]) on all processes, and "
            "distribute the source again."
        )
        raise tdi.ConfigurationError(msg)
    kinds = [torch.device(device).type for device in strategy.devices]
    if kinds != [accelerator.device.type]:
        msg = (
            f"Expected one device on each process, the Accelerator's {accelerator.device}, got a "
            f"strategy on {', '.join(map(str, strategy.devices))}. Pass [accelerator.device] as "
            "its devices."
        )
        raise tdi.ConfigurationError(msg)


def _count_alike(accelerator: Accelerator) -> int:
    """How many neighbouring processes get the same data, for tensor or context parallelism."""
    sizes = accelerator.parallelism_config
    if sizes is None:
        return 1
    return int(sizes.tp_size * sizes.cp_size * getattr(sizes, "sp_size", 1))
