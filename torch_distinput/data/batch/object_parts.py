"""What an object of any class consists of, as it says itself; for :mod:`fingerprint`."""

from __future__ import annotations

import array
import copyreg
from contextlib import suppress
from dis import get_instructions
from functools import lru_cache
from itertools import islice
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any, final

import numpy as np

_MOST_PARTS = 1 << 16
_MOST_BYTES = 64 << 20
"""Of one object: a larger one counts by its class, for this must not be what takes the time."""

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}
_CODES = {int: "q", float: "d"}


class TooLargeError(Exception):
    """More than is looked at."""


@final
class Budget:
    """What may still be looked at of one object."""

    __slots__ = ("_bytes", "_parts")

    def __init__(self) -> None:
        """Look at nothing yet."""
        self._parts, self._bytes = _MOST_PARTS, _MOST_BYTES

    def spend(self, parts: int, num_bytes: int) -> None:
        """Look at so much more; raises TooLargeError."""
        self._parts -= parts
        self._bytes -= num_bytes
        if self._parts < 0 or self._bytes < 0:
            raise TooLargeError


def take_object_apart(value: Any) -> Any:
    """What an object consists of; raises where it does not say it."""
    if has_own(value, "__array_interface__"):  # an image of PIL, say
        return np.asarray(value)
    if has_own(value, "__array__") and getattr(value, "nbytes", _MOST_BYTES) < _MOST_BYTES:
        return np.asarray(value)
    try:
        view = memoryview(value)
    except TypeError:
        return _kept_by_pickle(value)
    if view.nbytes > _MOST_BYTES:
        raise TooLargeError
    return view.format, view.shape, view.tobytes()


def has_own(value: Any, name: str) -> bool:
    """Whether it is really there, and not made up by a ``__getattr__``.

    A property of a class may raise AttributeError, to say that this object has it not.
    """
    is_own = has_method(value, name) or name in getattr(value, "__dict__", ())
    return is_own and hasattr(value, name)


def has_method(value: Any, name: str) -> bool:
    """Whether its class has it, where Python itself looks for ``__iter__`` and the like.

    ``hasattr(type(value), name)`` would find what the class of the class has, too.
    """
    return any(name in vars(kind) for kind in type(value).__mro__)


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object keeps, in its ``__dict__`` and in ``__slots__``; no property is asked."""
    kept = None
    with suppress(Exception):  # it has none, or is a proxy for what is not there yet
        kept = value.__dict__
    found = dict(kept) if isinstance(kept, dict) else {}
    for name, member in _slots_of(type(value)):  # type: ignore[arg-type] # a class has a hash
        with suppress(AttributeError):  # not set
            found[name] = member.__get__(value)
    return found


@lru_cache(maxsize=256)
def _slots_of(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    return [
        (name, member)
        for each in kind.__mro__
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType) and not name.startswith("__")
    ]


def read_closure(function: FunctionType) -> list[Any]:
    """The values of the names that a function has from those around it."""
    return [_read_cell(cell) for cell in function.__closure__ or ()]


def _read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


@lru_cache(maxsize=256)
def find_globals(code: CodeType) -> frozenset[str]:
    """The global names that code loads, and that of functions inside; not those of attributes."""
    loaded = {step.argval for step in get_instructions(code) if step.opname in _LOADS}
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return frozenset(loaded.union(*map(find_globals, inner)))


def find_names(code: CodeType) -> set[str]:
    """The global names and attributes in code, and in that of functions inside."""
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*map(find_names, inner))


def _kept_by_pickle(value: Any) -> Any:
    """What pickle would keep, without its text: that has sets in the order of their hashes."""
    reduce = copyreg.dispatch_table.get(type(value))
    kept = value.__reduce_ex__(5) if reduce is None else reduce(value)
    if isinstance(kept, str):
        return kept
    made, arguments, state, items, pairs = (*kept, None, None, None)[:5]
    if isinstance(state, dict):  # a hash that it keeps is another in each process
        state = {name: state[name] for name in state if not _is_kept_hash(name)}
    rest = [list(islice(some, _MOST_PARTS + 1)) for some in (items, pairs) if some is not None]
    return made, arguments, state, rest


def _is_kept_hash(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("_") and name.strip("_").endswith("hash")


def pack_numbers(values: Any) -> array.array[Any] | None:
    """Many numbers of one kind as memory; None if they are not, or too large for it."""
    kinds = set(map(type, values))
    code = _CODES.get(kinds.pop()) if len(kinds) == 1 else None
    try:
        return None if code is None else array.array(code, values)
    except OverflowError:
        return None
