"""What a dataset holds in memory, and random generators of its own: by its attributes alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from dis import get_instructions
from itertools import islice
from types import CodeType
from typing import Any, final

import numpy as np
import torch

_DEPTH = 4
_RESEEDS = {"manual_seed", "seed", "set_state", "setstate"}
"""A function that calls one of these may well seed the generator by the example."""
_SAMPLE = 100
"""Of a list or dict, so many elements are looked at; the others are taken to be like them."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Of a dataset, and of what it wraps.

    Attributes:
        tensor_bytes: in tensors, which loader processes share however they are started.
        array_bytes: in NumPy's arrays, which are sent to processes that are not forked.
        object_bytes: in lists, tuples and dicts with what is in them, estimated from a sample.
        num_objects: Python objects in these.
        generators: attributes that are random generators and that fetching an example uses.
    """

    tensor_bytes: int
    array_bytes: int
    object_bytes: int
    num_objects: int
    generators: tuple[str, ...]


def look_into(dataset: Any) -> Contents:
    """Count what is in a dataset's attributes; nothing is called, and nothing is read."""
    tensors = arrays = objects = num_objects = 0
    for value in _held(dataset, _DEPTH):
        size = _array_bytes(value)
        if isinstance(value, torch.Tensor):
            tensors += size or 0
        elif size is not None:
            arrays += size
        else:
            found = _estimate(value)
            num_objects += found[0]
            objects += found[1]
    return Contents(
        tensor_bytes=tensors,
        array_bytes=arrays,
        object_bytes=objects,
        num_objects=num_objects,
        generators=tuple(_used_generators(dataset)),
    )


def _held(value: Any, depth: int) -> Iterator[Any]:
    """Tensors, arrays and large collections in attributes, also of datasets that are wrapped."""
    if _array_bytes(value) is not None:
        yield value
    elif isinstance(value, (list, tuple, dict)):
        if len(value) > _SAMPLE:
            yield value
        elif depth:
            inner = value.values() if isinstance(value, dict) else value
            for element in inner:
                yield from _held(element, depth - 1)
    elif depth and _is_plain_object(value):
        for element in vars(value).values():
            yield from _held(element, depth - 1)


def _is_plain_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module))


def _array_bytes(value: Any) -> int | None:
    if isinstance(value, np.memmap):
        return 0  # a file: processes share its pages
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0
    return None


def _estimate(collection: Any) -> tuple[int, int]:
    """Objects and bytes of a collection, and one level of collections in it."""
    count = len(collection)
    elements = collection.items() if isinstance(collection, dict) else collection
    sample = list(islice(elements, _SAMPLE))
    found = [_size(element) for element in sample]
    objects = sum(number for number, _ in found) / max(1, len(sample))
    size = sum(size for _, size in found) / max(1, len(sample))
    return int(count * objects), sys.getsizeof(collection) + int(count * size)


def _size(element: Any) -> tuple[int, int]:
    size = _array_bytes(element)
    if size is not None:
        return 1, size
    inner = element if isinstance(element, (list, tuple)) else ()
    if isinstance(element, dict):
        inner = (*element.keys(), *element.values())
    sizes = [_array_bytes(part) or sys.getsizeof(part) for part in islice(inner, _SAMPLE)]
    scale = len(inner) / len(sizes) if sizes else 1
    own = sys.getsizeof(element) if isinstance(element, Sized) or not inner else 0
    return 1 + len(inner), own + int(sum(sizes) * scale)


def _used_generators(dataset: Any) -> Iterator[str]:
    """Those that the code which fetches an example names, so that it draws from them."""
    if not _is_plain_object(dataset):
        return
    codes = [
        code
        for name in ("__getitem__", "__getitems__")
        if (code := getattr(getattr(type(dataset), name, None), "__code__", None)) is not None
    ]
    named = {name for code in codes for name in code.co_names}
    if named & _RESEEDS:
        return
    for name, value in vars(dataset).items():
        kinds = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
        if (
            isinstance(value, kinds)
            and name in named
            and not any(_sets(code, name) for code in codes)
        ):
            yield name


def _sets(code: CodeType, name: str) -> bool:
    """Whether a function gives an attribute another value: then a new generator, by example."""
    return any(
        step.opname == "STORE_ATTR" and step.argval == name for step in get_instructions(code)
    )
