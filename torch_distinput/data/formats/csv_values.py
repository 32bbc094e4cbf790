"""Fields of a table, which are texts, as values of a type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torch_distinput.data.formats.column_types import INT64, cast_numbers

_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_LONG_INTEGER = re.compile(r"\s*([+-]?)0*([1-9]\d{15,})\s*")
"""As many digits as the first integer that float64 does not hold, or more."""
_MOST_DIGITS = 19
"""Of integers that int64 holds."""


def infer_type(texts: list[str]) -> Any:
    """The first type that all texts of a column fit: int64, float64 or text."""
    for dtype in (torch.int64, float):
        try:
            CONVERTERS[dtype]("", texts, dtype)
        except (ValueError, OverflowError):
            continue
        return dtype
    return str


def is_beyond_float64(text: str) -> bool:
    """Whether it is a whole number that a column of floats would round, or int64 not hold."""
    found = _LONG_INTEGER.fullmatch(text)
    if found is None or len(found[2]) > _MOST_DIGITS:
        return found is not None
    number = int(found[1] + found[2])
    return number not in INT64 or int(float(number)) != number


def _ints(name: str, texts: list[str], dtype: torch.dtype) -> torch.Tensor:
    _check_digits(texts)
    dense = torch.from_numpy(np.array(list(map(int, texts)), np.int64))
    return cast_numbers(name, dense, dtype)


def _floats(name: str, texts: list[str], dtype: torch.dtype) -> torch.Tensor:
    _check_digits(texts)
    values = np.array(list(map(float, texts)), np.float64)
    if any(map(str.isdigit, "".join(texts[row] for row in np.flatnonzero(np.isinf(values))))):
        raise OverflowError  # 1e999, which is not "inf"
    return cast_numbers(name, torch.from_numpy(values), dtype)


def _exact_floats(name: str, texts: list[str], dtype: type) -> torch.Tensor:
    """As float64, ids of 64 bits would be rounded, and some become equal."""
    del dtype
    dense = _floats(name, texts, torch.float64)
    large = np.flatnonzero(np.abs(dense.numpy()) >= 2.0**53)
    if any(is_beyond_float64(texts[row]) for row in large):
        raise ValueError
    return dense


def _check_digits(texts: list[str]) -> None:
    """Python also reads 1_000 and digits of other scripts, which no other program writes."""
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        raise ValueError


def _bools(name: str, texts: list[str], dtype: torch.dtype) -> torch.Tensor:
    del name
    if not _BOOLS.keys() >= {text.lower() for text in texts}:
        raise ValueError
    return torch.tensor([_BOOLS[text.lower()] for text in texts], dtype=dtype, device="cpu")


def _texts(name: str, texts: list[str], dtype: type) -> list[str]:
    del name, dtype
    "".join(texts).encode()  # raises for bytes that were no UTF-8
    return texts


_INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CONVERTERS: Mapping[Any, Callable[[str, list[str], Any], Any]] = {
    str: _texts,
    torch.bool: _bools,
    **dict.fromkeys(_INTS, _ints),
    **dict.fromkeys(_FLOATS, _floats),
    float: _exact_floats,
}
"""By type; ``float`` is that of a column without one."""
SHOWN: Mapping[Any, Any] = {str: "UTF-8 text", float: torch.float64}
"""Types that messages call otherwise."""
