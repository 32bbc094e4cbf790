"""Lines of JSON to Python values: by orjson, wherever it gives just what Python's parser gives."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import chain, pairwise
from math import isinf
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.packed_strings import PackedStrings

_EXACT = float(1 << 63)
"""From here on orjson's floats may have been integers, which Python would keep."""


def parse_exactly(lines: PackedStrings) -> list[Mapping[str, Any]]:
    """One object a line, as Python's parser sees it.

    Raises:
        ValueError: names the line that is none, and the cure.
    """
    return [_object(line.removesuffix(b"\n")) for line in lines.to_bytes()]


def parse_quickly(lines: PackedStrings) -> list[Mapping[str, Any]] | None:
    """The same, but for integers that are floats where they are beyond 64 bits.

    None without orjson, and for what it refuses: Python's parser may see something in it, or must
    say what is wrong.
    """
    loads = _orjson_loads()
    if loads is None:
        return None
    content = memoryview(lines.data.numpy())  # type: ignore[arg-type]
    try:
        rows = [loads(content[start:stop]) for start, stop in pairwise(lines.offsets.tolist())]
    except ValueError:
        return None
    return rows if set(map(type, rows)) <= {dict} else None


def has_large_floats(batch: Batch) -> bool:
    """Whether columns hold a float that may have been an integer beyond 64 bits."""
    leaves, _ = flatten(batch)
    return any(map(_is_large, leaves))


def _is_large(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        values = leaf.values() if leaf.is_nested else leaf
        if not values.is_floating_point() or not values.numel():
            return False
        return not all(-_EXACT < bound.item() < _EXACT for bound in values.aminmax())
    return isinstance(leaf, np.ndarray) and _holds_large(leaf.tolist())


def _holds_large(values: list[Any]) -> bool:
    """Whether a float is there, level by level; most values are no floats and hold none."""
    while values:
        kinds = set(map(type, values))
        floats = (value for value in values if type(value) is float) if float in kinds else ()
        if not all(-_EXACT < value < _EXACT for value in floats):
            return True
        lists = [value for value in values if type(value) is list] if list in kinds else []
        dicts = [value for value in values if type(value) is dict] if dict in kinds else []
        values = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    return False


@functools.cache
def _orjson_loads() -> Callable[[memoryview], Any] | None:
    try:
        loads: Callable[[memoryview], Any] = import_module("orjson").loads
    except ModuleNotFoundError:
        return None
    return loads


def _check_finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        msg = f"expected numbers that fit float64, got {text[:60]}"
        raise ValueError(msg)
    return value


_DECODER = json.JSONDecoder(parse_float=_check_finite)


def _object(record: bytes) -> Mapping[str, Any]:
    try:
        found = _DECODER.decode(record.decode())
    except (ValueError, RecursionError) as error:
        msg = (
            f"Expected a JSON object in each line, got {record[:60]!r}: {error}. Fix the file, "
            "or skip bad records."
        )
        raise ValueError(msg) from error
    if not isinstance(found, dict):
        msg = (
            f"Expected a JSON object in each line, got {record[:60]!r}, a "
            f"{type(found).__name__}. Fix the file, or read it with reader='text'."
        )
        raise ValueError(msg)  # noqa: TRY004 - it is the data that is wrong
    return found
