"""One worker's part of a value that is about to be combined with those of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_distinput.packed_strings import PackedStrings


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPart:
    """This worker's part of one leaf, before any collective.

    Attributes:
        facts: what must be equal on all workers.
        value: a tensor, packed strings, or the rows of a list.
        count: what is added up over the workers beside the value.
        dtype: what the caller gave, before it was widened.
        is_number: of Python's floats, which have 64 bits unless another worker has a tensor.
        device: where the result belongs, if the value goes over the host; else None.
    """

    facts: tuple[object, ...]
    value: Any
    count: int = 1
    dtype: torch.dtype = torch.int64
    is_number: bool = False
    device: torch.device | None = None

    def find_device(self) -> torch.device | None:
        """Where the value is; None for a list."""
        value = self.value.data if isinstance(self.value, PackedStrings) else self.value
        return value.device if isinstance(value, torch.Tensor) else None

    def as_tensor(self) -> WorkerPart:
        """What torch makes of Python's floats."""
        dtype = torch.get_default_dtype()
        return replace(self, value=self.value.to(dtype), dtype=dtype, is_number=False)

    def over_host(self, own: torch.device) -> WorkerPart:
        """The same, to be combined in host memory.

        The result belongs where the value was, or, like those of the others, on this worker's
        ``own`` device if it was in host memory.
        """
        here = self.find_device()
        assert here is not None, "lists are on no device, on all workers"
        return replace(self, value=self.value.to("cpu"), device=own if here.type == "cpu" else here)

    def deliver(self, result: Any) -> Any:
        """Take a result to where it belongs."""
        return result if self.device is None else result.to(self.device)
