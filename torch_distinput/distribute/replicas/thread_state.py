"""What torch keeps per thread, taken from the thread that called ``run`` to those of replicas."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch.utils._device import DeviceContext

from torch_distinput.device.current_stream import enter_stream, find_current_streams

# Private names of torch, which has no public ones to ask for modes or to enter them again. Entering
# them by ``with`` would begin them anew: a FlopCounterMode counts from zero then.
_AUTOGRAD: Any = torch._C._autograd  # noqa: SLF001
_DISPATCH: Any = torch.utils._python_dispatch  # noqa: SLF001
_FUNCTION: Any = torch.overrides


def _default_device() -> torch.device:
    """The default, also after ``set_default_device(None)``, when torch 2.9 cannot tell."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


@dataclass
class ThreadState:
    """The state of the thread in which it is made.

    Several threads may enter it, as long as one of them runs at a time: a mode may count.

    Args:
        devices: whose current streams it takes.
    """

    devices: InitVar[Iterable[torch.device]]
    grad: bool = field(default_factory=torch.is_grad_enabled)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: list[tuple[str, torch.dtype]] = field(init=False)
    autocast_cache: bool = field(default_factory=torch.is_autocast_cache_enabled)
    default: torch.device = field(default_factory=_default_device)
    saved_tensors: Any = field(init=False)
    function_modes: list[Any] = field(init=False)
    dispatch_modes: list[Any] = field(init=False)
    streams: dict[torch.device, Any] = field(init=False)

    def __post_init__(self, devices: Iterable[torch.device]) -> None:
        """Note streams, the devices under autocast, the hooks of saved tensors, and the modes."""
        self.streams = find_current_streams(devices)
        accelerator = torch.accelerator.current_accelerator()
        kinds = ["cpu"] + ([accelerator.type] if accelerator else [])
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in kinds
            if torch.is_autocast_enabled(kind)
        ]
        self.saved_tensors = _AUTOGRAD._top_saved_tensors_default_hooks(True)  # noqa: SLF001
        modes = _FUNCTION._get_current_function_mode_stack()  # noqa: SLF001
        # The default device is told by itself: each replica may have one of its own.
        self.function_modes = [mode for mode in modes if not isinstance(mode, DeviceContext)]
        self.dispatch_modes = _DISPATCH._get_current_dispatch_mode_stack()  # noqa: SLF001

    def enter(self, device: torch.device) -> ExitStack:
        """Enter the same state in another thread, on the replica's device."""
        stack = ExitStack()
        # Per thread, and the thread is the run's. What it reads may be under way on the caller's
        # streams: its arguments, and on another device the parameters of a ReplicatedModule.
        for stream in reversed(self.streams.values()):  # a CPU's replica stays on the first device
            enter_stream(stream)
        if device.type != "cpu":  # after the streams, each of which made its device the current one
            torch.accelerator.set_device_index(device)
        if self.default.type != "cpu":  # a default of the replica's kind is the replica's device
            stack.enter_context(device if device.type == self.default.type else self.default)
        stack.enter_context(torch.inference_mode(self.inference))
        if not self.inference:
            stack.enter_context(torch.set_grad_enabled(self.grad))
        for kind, dtype in self.autocast:
            cache = self.autocast_cache
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
        if self.saved_tensors is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self.saved_tensors))
        for mode in self.function_modes:
            _FUNCTION._push_mode(mode)  # noqa: SLF001
            stack.callback(_FUNCTION._pop_mode)  # noqa: SLF001
        for mode in self.dispatch_modes:
            _DISPATCH._push_mode(mode)  # noqa: SLF001
            stack.callback(_DISPATCH._pop_mode, getattr(mode, "_mode_key", None))  # noqa: SLF001
        return stack
