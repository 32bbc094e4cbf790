"""A number that is equal on all ranks when they read the same data, for any batch or examples.

Ranks are processes with addresses, clocks and hash seeds of their own, so nothing of these may come
in: mappings and sets count in an order of their contents, objects by what they say that they
consist of (an array, a buffer, what pickle would keep), and what cannot say it by its class.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import logging
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import torch

from torch_distinput.data.batch.object_parts import (
    Budget,
    TooLargeError,
    pack_numbers,
    take_object_apart,
)
from torch_distinput.data.batch.serialized import view_bytes
from torch_distinput.packed_strings import PackedStrings

_log = logging.getLogger(__name__)

_PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})
_FEW = 16
_DEEPEST = 40
"""Containers and objects in each other; what lies deeper counts by its class."""
_MOST_OBJECTS = 64
"""Of one batch: to look at an image may be to decode it."""
_LONG = 256
_LARGE = 1 << 12
"""Bytes from which on a checksum must do: its 32 bits cost a tenth of a digest."""
_MOST_WORDS = 1 << 12


class Print(NamedTuple):
    """What :func:`examine` found.

    Attributes:
        number: 63 bits, never 0.
        unchecked: the classes of objects of which nothing but the class could be counted.
    """

    number: int
    unchecked: frozenset[str]


def fingerprint(data: Any) -> int:
    """Return 63 bits of a digest over structure, dtypes, shapes and values; never 0."""
    return examine(data).number


def examine(data: Any) -> Print:
    """The fingerprint, and what could not be looked into."""
    digest = Digest(objects=_MOST_OBJECTS)
    digest.add(data)
    return digest.taken()


_said: dict[str, object] = {}
"""For each class that was named, who came first. No lock: a fork could inherit it held."""


def say_unchecked(name: str) -> None:
    """Say it once for each class, whichever thread comes first."""
    own = object()
    if _said.setdefault(name, own) is own:
        _log.warning(
            "Objects of class %s cannot be compared between workers: they are not arrays and "
            "cannot be pickled, or are too large, or look different each time. Only their class "
            "is compared.",
            name,
        )


@final
class Digest:
    """Takes values one after another; equal in all processes for equal values in equal order."""

    __slots__ = ("_budget", "_hash", "_objects", "_unchecked", "_words")

    def __init__(self, budget: Budget | None = None, *, objects: int | None = None) -> None:
        """Take nothing yet.

        Args:
            budget: what may still be looked at of the object that this is about.
            objects: how many objects are looked into; those after them count by their class.
        """
        self._objects = sys.maxsize if objects is None else objects
        self._hash = hashlib.blake2b(digest_size=8)
        self._words: list[Any] = []  # plain values, and tuples for what lies between them
        self._unchecked: set[str] = set()
        self._budget = budget

    def add(self, value: Any) -> None:
        """Take a value of any kind."""
        self._walk(value, 0)
        if len(self._words) > _MOST_WORDS:
            self._flush()

    def taken(self) -> Print:
        """What was taken so far."""
        self._flush()
        number = int.from_bytes(self._hash.digest(), "big") >> 1 | 1
        return Print(number, frozenset(self._unchecked))

    def _flush(self) -> None:
        """Plain values have one text in all processes, and a list of them is written at once."""
        try:
            text = repr(self._words)
        except ValueError:  # integers of thousands of digits have none
            text = repr([hex(word) if type(word) is int else word for word in self._words])
        self._hash.update(text.encode())
        self._words.clear()

    def _walk(self, value: Any, depth: int) -> None:
        kind: Any = type(value)
        if kind in _PLAIN:
            if kind in (str, bytes) and len(value) > _LONG:
                text = value.encode(errors="surrogatepass") if kind is str else value
                self._content((kind.__name__, len(value)), text)
            else:
                self._words.append(value)
            return
        if depth > _DEEPEST:
            self._by_class(kind)
            return
        if self._budget is not None:
            self._budget.spend(1, 0)
        try:
            _way_of(kind)(self, value, depth)
        except Exception as error:  # a lock, an open file; or code of the user's
            if isinstance(error, TooLargeError) and self._budget is not None:
                raise  # the object around it is
            self._by_class(kind)

    def _spend(self, parts: int, num_bytes: int = 0) -> None:
        if self._budget is not None:
            self._budget.spend(parts, num_bytes)

    def _content(self, label: tuple[Any, ...], content: Any) -> None:
        """Count memory as it is, any amount of it, behind the label that says how to read it."""
        self._words.append(label)
        num_bytes = memoryview(content).nbytes
        self._spend(0, num_bytes)
        if num_bytes < _LARGE:
            self._hash.update(content)
        else:
            self._words.append(zlib.crc32(content))

    def _by_class(self, kind: type) -> None:
        self._words.append((kind.__qualname__,))
        self._unchecked.add(kind.__qualname__)

    def _sequence(self, value: Any, depth: int) -> None:
        kind = type(value)
        name = "[" if kind in (list, tuple) else kind.__qualname__
        numbers = pack_numbers(value) if len(value) > _FEW else None
        if numbers is not None:
            self._content((name, numbers.typecode, len(value)), numbers)
            return
        self._words.append((name, len(value)))
        self._spend(len(value) >> 4)  # plain values are cheap, but there may be many
        for item in value:
            self._walk(item, depth + 1)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        """In the order of its keys: that of their insertion may be one of hashes."""
        kind = type(value)
        name = "{" if kind is dict else kind.__qualname__
        self._spend(len(value))
        keys = _sorted_names(tuple(value.keys()))
        if keys is None:
            entries = sorted(self._number(entry, depth) for entry in value.items())
            self._words.append((name, *entries))
            return
        self._words.append((name, *keys))
        for key in keys:
            self._walk(value[key], depth + 1)

    def _dataclass(self, value: Any, depth: int) -> None:
        """A container, as in a batch."""
        kind: Any = type(value)
        names = _fields(kind)
        self._words.append((kind.__qualname__, *names))
        for name in names:
            self._walk(getattr(value, name), depth + 1)

    def _set(self, value: AbstractSet[Any], depth: int) -> None:
        self._spend(len(value))
        numbers = sorted(self._number(item, depth) for item in value)
        self._words.append((type(value).__qualname__, *numbers))

    def _number(self, value: Any, depth: int) -> int:
        """That of a part, so that parts can be brought into an order."""
        part = Digest(self._budget)
        part._walk(value, depth + 1)
        number, unchecked = part.taken()
        self._unchecked |= unchecked
        return number

    def _tensor(self, value: torch.Tensor, depth: int) -> None:
        try:  # as most do: the way below takes longer
            content = np.ascontiguousarray(value.numpy())
        except (TypeError, RuntimeError):
            self._odd_tensor(value, depth)
        else:
            self._content((_name_of(value.dtype), *value.shape), content)

    def _odd_tensor(self, value: torch.Tensor, depth: int) -> None:
        """On a device, with a gradient, of a type that NumPy lacks, or not in one piece."""
        if value.layout is torch.jagged:
            self._tensor(value.values(), depth)
            self._tensor(value.offsets(), depth)  # type: ignore[attr-defined]
            return
        if value.layout is torch.sparse_coo and not value.is_meta:
            summed = value.detach().coalesce()
            self._words.append(("sparse", tuple(value.shape)))
            self._tensor(summed.indices(), depth)
            self._tensor(summed.values(), depth)
            return
        odd = value.is_nested or value.is_quantized or value.is_meta
        if odd or value.layout is not torch.strided:
            sizes = [value.size(dim) for dim in range(0 if value.is_nested else value.ndim)]
            self._words.append((f"{value.layout}{value.dtype}", *sizes))
            self._unchecked.add(f"Tensor of {value.layout}, {value.dtype}")
            return
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        self._content((_name_of(dense.dtype), *dense.shape), view_bytes(dense))

    def _packed(self, value: PackedStrings, depth: int) -> None:
        """By its rows, wherever they lie in memory; it is another leaf than a list of them."""
        own = value.narrow()
        self._words.append((type(value).__qualname__, value.dtype.__name__, len(value)))
        for tensor in (own.lengths(), own.where_missing(), own.data):
            self._tensor(tensor, depth)

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> None:
        value = value.astype(str) if value.dtype.char in "gG" else value  # they have padding
        label = (_name_of(value.dtype), *value.shape)
        if value.dtype.hasobject:
            self._words.append(label)
            self._walk(value.tolist(), depth + 1)
        elif value.dtype.kind in "biufc":
            self._content(label, np.ascontiguousarray(value))
        else:
            self._content(label, value.tobytes())

    def _scalar(self, value: np.generic, depth: int) -> None:
        self._array(np.asarray(value), depth)

    def _derived(self, value: Any, depth: int) -> None:
        """A plain value of a class of the user's, whose ``repr`` may say anything."""
        kind = type(value)
        plain = next(plain for base, plain in _UNDERIVED.items() if issubclass(kind, base))
        self._words.append((kind.__qualname__,))
        self._walk(plain(value), depth + 1)

    def _name(self, value: Any, depth: int) -> None:  # noqa: ARG002
        """Classes, functions and members of enums are what they are called."""
        name = value.name if isinstance(value, enum.Enum) else value.__qualname__
        self._words.append((type(value).__qualname__, name))

    def _object(self, value: Any, depth: int) -> None:
        """What it says of itself; that may change with each question, or come to no end."""
        kind = type(value)
        if self._budget is not None:  # within another, of which all this is true
            self._described(value, depth)
            return
        self._objects -= 1
        if self._objects < 0:
            self._words.append((kind.__qualname__,))
            return
        parts = take_object_apart(value)
        if isinstance(parts, np.ndarray):  # which is memory, and stays what it is
            self._words.append((kind.__qualname__,))
            self._array(parts, depth + 1)
            return
        fingerprints = set()
        for _ in range(2):
            part = Digest(Budget())
            part._described(value, depth)
            fingerprints.add(part.taken())
        number, unchecked = fingerprints.pop()
        if fingerprints:  # the other one
            self._by_class(kind)
            return
        self._words.append((kind.__qualname__, number))
        self._unchecked |= unchecked

    def _described(self, value: Any, depth: int) -> None:
        parts = take_object_apart(value)
        self._words.append((type(value).__qualname__,))
        self._walk(parts, depth + 1)


_UNDERIVED: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: memoryview(value).tobytes(),
    int: int.__int__,
    float: float.__float__,
}
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, enum.Enum)
_WAYS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "_tensor"),
    (np.ndarray, "_array"),
    (PackedStrings, "_packed"),
    (_NAMED, "_name"),
    (np.generic, "_scalar"),
    ((list, tuple), "_sequence"),
    (Mapping, "_mapping"),
    (AbstractSet, "_set"),
    (tuple(_UNDERIVED), "_derived"),
)


@lru_cache(maxsize=256)
def _way_of(kind: type) -> Callable[[Digest, Any, int], None]:
    name = next((name for kinds, name in _WAYS if issubclass(kind, kinds)), None)
    if name is None:
        name = "_dataclass" if dataclasses.is_dataclass(kind) else "_object"
    return getattr(Digest, name)  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    return str(dtype)


@lru_cache(maxsize=64)
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@lru_cache(maxsize=64)
def _sorted_names(keys: tuple[Any, ...]) -> tuple[str, ...] | None:
    """Names in their order; None where there are keys of other kinds."""
    return tuple(sorted(keys)) if all(type(key) is str for key in keys) else None
