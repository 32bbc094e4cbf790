"""How long an example is, or what it costs, as a user says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

Length: TypeAlias = (
    "str | Callable[[Any], int] | Sequence[int] | np.ndarray[Any, Any] | torch.Tensor"
)
"""What a caller may give for the lengths, or costs, of examples."""
