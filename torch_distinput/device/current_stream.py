"""The current stream of a thread, carried to another one that works for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_distinput.device.backend import has_streams


def find_current_streams(devices: Iterable[torch.device]) -> dict[torch.device, torch.Stream]:
    """The calling thread's, of each device that has streams."""
    with_streams = filter(has_streams, devices)
    return {device: torch.accelerator.current_stream(device) for device in with_streams}


def enter_stream(stream: torch.Stream) -> None:
    """Work on it from now on in the calling thread: behind what was started there before."""
    torch.accelerator.set_stream(stream)
