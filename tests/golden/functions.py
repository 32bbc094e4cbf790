"""The recorded element functions, on one example or on a whole batch alike.

An example's numbers are tensors of no dimension and its strings are ``str``; in a batch they have a
leading dimension and are lists of ``str``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def function(name: str) -> Callable[[Any], Any]:
    """Look a function up by its recorded name, such as ``"mul:3"``."""
    word, _, number = name.partition(":")
    if number:
        constant = int(number)
        keyed = _WITH_NUMBER[word]
        return lambda x: keyed(x, constant)
    return _PLAIN[word]


def _parse_int(x: Any) -> torch.Tensor:
    numbers = [int(item) for item in x] if isinstance(x, list) else int(x)
    return torch.tensor(numbers, dtype=torch.int64)


def _text(x: torch.Tensor) -> Any:
    return [str(item) for item in x.tolist()] if x.dim() else str(x.item())


def _pair(x: torch.Tensor) -> Any:
    numbers = x.float()
    return torch.stack([numbers, numbers + 0.5], dim=-1), x % 10


def _dict(x: torch.Tensor) -> Any:
    numbers = x.float()
    both = torch.stack([numbers, -numbers], dim=-1)
    return {"id": x, "f": {"a": both, "b": (x * x).to(torch.int32)}}


def _nested(x: torch.Tensor) -> Any:
    return (x, 2 * x), {"k": (3 * x,)}


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "parse_int": _parse_int,
    "float": lambda x: x.float(),
    "str": _text,
    "bool_even": lambda x: x % 2 == 0,
    "even": lambda x: x % 2 == 0,
    "pair": _pair,
    "dict": _dict,
    "nested": _nested,
    "ragged_len": lambda x: torch.arange(x.item() % 4),
}

_WITH_NUMBER: dict[str, Callable[[Any, int], Any]] = {
    "mul": lambda x, k: x * k,
    "add": lambda x, k: x + k,
    "lt": lambda x, k: x < k,
    "vec": lambda x, k: torch.stack([x] * k, dim=-1),
}

ROW_BY_ROW = {
    *("parse_int", "float", "str", "bool_even", "pair", "dict", "nested", "mul", "add", "vec"),
}
"""Functions that give the same whether they see examples or their batch."""


def is_row_by_row(name: str) -> bool:
    """Whether mapping a batch equals batching what was mapped."""
    return name.partition(":")[0] in ROW_BY_ROW
