"""What packed strings are made of: offsets from lengths, and a check of what others give us."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def check_layout(
    data: torch.Tensor, offsets: torch.Tensor, missing: torch.Tensor | None, dtype: Any
) -> None:
    """Refuse tensors that are no packed strings.

    Raises:
        ValueError: for other types and shapes; in host memory also for offsets that go backwards or
            out of the data, which would cut strings off, and for bytes of a row that is missing.
    """
    rows = offsets.shape[0] - 1 if offsets.ndim else -1
    is_sound = (
        (data.dtype is torch.uint8 and data.ndim == 1)
        and (offsets.dtype is torch.int64 and offsets.ndim == 1 and rows >= 0)
        and (missing is None or (missing.dtype is torch.bool and missing.shape == (rows,)))
        and dtype in (str, bytes)
    )
    if not is_sound:
        absent = None if missing is None else _shown(missing)
        msg = (
            "Expected data uint8 (num_bytes,), offsets int64 (rows + 1,), missing bool (rows,) "
            f"or None, and dtype str or bytes; got {_shown(data)}, {_shown(offsets)}, {absent} "
            f"and {dtype!r}. PackedStrings.from_list packs Python strings."
        )
        raise ValueError(msg)
    if type(offsets) is torch.Tensor and offsets.device.type == "cpu":  # no tensor of a trace
        _check_offsets(data.shape[0], offsets, missing)


def offsets_of(lengths: NDArray[np.int64]) -> torch.Tensor:
    """Where rows of these lengths begin, one behind the other, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return torch.from_numpy(offsets)


def _check_offsets(num_bytes: int, offsets: torch.Tensor, missing: torch.Tensor | None) -> None:
    bounds = offsets.numpy()
    first, last = int(bounds[0]), int(bounds[-1])
    lengths = bounds[1:] - bounds[:-1]
    if first < 0 or last > num_bytes or (lengths < 0).any():
        msg = (
            f"Expected offsets that ascend within the {num_bytes} bytes of data, got "
            f"{_some(offsets)}. Row i is data[offsets[i]:offsets[i + 1]]."
        )
        raise ValueError(msg)
    if missing is not None and missing.device.type == "cpu" and lengths[missing.numpy()].any():
        row = int((lengths * missing.numpy()).argmax())
        msg = (
            f"Expected no bytes of a row that is missing, got {lengths[row]} of row {row}: equal "
            "rows would differ. Leave its bytes out of data."
        )
        raise ValueError(msg)


def _some(offsets: torch.Tensor) -> str:
    shown = ", ".join(map(str, offsets[:6].tolist()))
    return f"[{shown}{', ...' if len(offsets) > 6 else ''}]"


def _shown(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
