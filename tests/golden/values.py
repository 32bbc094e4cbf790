"""Values in the recording's JSON: tensors, strings and structures, there and back.

Only this module knows how a leaf is spelled, so that rules and comparison work on plain JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Json = Any


def encode(value: Any) -> Json:
    """Spell a value of ours as the recording spells TensorFlow's."""
    if isinstance(value, torch.Tensor):
        return _encode_jagged(value) if value.is_nested else _encode_tensor(value)
    if isinstance(value, str):
        return {"d": "string", "s": [], "v": value}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {"d": "string", "s": [len(value)], "v": value}
    if isinstance(value, list):
        return {"list": [encode(item) for item in value]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    if isinstance(value, np.generic):
        value = value.item()
    return {"py": value}


def _encode_tensor(value: torch.Tensor) -> Json:
    return {
        "d": _dtype_name(value.dtype),
        "s": list(value.shape),
        "v": _without_nan(value.tolist()),
    }


def _encode_jagged(value: torch.Tensor) -> Json:
    rows = [row.tolist() for row in value.unbind()]
    return {"ragged": rows, "d": _dtype_name(value.dtype), "s": [len(rows), None]}


def _without_nan(value: Json) -> Json:
    """NaN is no JSON and unlike itself, so it is spelled out."""
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _dtype_name(dtype: Any) -> str:
    return "string" if dtype is str else str(dtype).removeprefix("torch.")


def decode(value: Json) -> Any:
    """Make the tensors and structures that a recorded value stands for."""
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    if "dict" in value:
        return {key: decode(item) for key, item in value["dict"].items()}
    if value["d"] == "string":
        return value["v"]
    filled = torch.tensor(value["v"], dtype=getattr(torch, value["d"]))
    return filled.reshape(value["s"])


def encode_spec(spec: Any) -> Json:
    """Spell an element spec of ours: leaves with dtype and shape, None for what varies."""
    if isinstance(spec, tuple):
        return {"tuple": [encode_spec(item) for item in spec]}
    if isinstance(spec, dict):
        return {"dict": {key: encode_spec(item) for key, item in spec.items()}}
    return {"d": _dtype_name(spec.dtype), "s": list(spec.shape)}


def is_leaf(value: Json) -> bool:
    """Whether this JSON is one tensor or its spec."""
    return isinstance(value, dict) and "d" in value and "s" in value


def map_leaves(fn: Callable[..., Json], *values: Json) -> Json:
    """Apply ``fn`` to corresponding leaves of recorded structures of one shape."""
    first = values[0]
    if "tuple" in first:
        columns = zip(*(value["tuple"] for value in values), strict=True)
        return {"tuple": [map_leaves(fn, *column) for column in columns]}
    if "dict" in first:
        names = first["dict"]
        mapped = (map_leaves(fn, *(value["dict"][name] for value in values)) for name in names)
        return {"dict": dict(zip(names, mapped, strict=True))}
    return fn(*values)


def leaves(value: Json) -> list[Json]:
    """The leaves of a recorded structure, in order."""
    found: list[Json] = []
    map_leaves(found.append, value)
    return found


def num_rows(value: Json) -> int:
    """Rows of a recorded replica batch; a batch whose leaves differ has the longest one's."""
    return max((leaf["s"][0] for leaf in leaves(value) if leaf.get("s")), default=0)


def joined(values: list[Json]) -> Json:
    """Recorded replica batches one after the other, as one batch."""
    return map_leaves(_joined_leaf, *values)


def _joined_leaf(*parts: Json) -> Json:
    rows = [row for part in parts for row in part["v"]]
    fullest = max(parts, key=lambda part: part["s"][0])
    return {"d": fullest["d"], "s": [len(rows), *fullest["s"][1:]], "v": rows}


def sliced(value: Json, start: int, stop: int) -> Json:
    """Some rows of a recorded batch."""

    def cut(leaf: Json) -> Json:
        rows = leaf["v"][start:stop]
        return {"d": leaf["d"], "s": [len(rows), *leaf["s"][1:]], "v": rows}

    return map_leaves(cut, value)
