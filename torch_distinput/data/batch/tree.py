"""A batch as a tree: containers, and leaves that have rows.

Containers are mappings, tuples (also named), dataclasses, and lists of containers or tensors;
those of a class that cannot be made of its values alone are put together as a dict, tuple or list.
Leaves are tensors (also jagged), NumPy arrays, packed strings, and lists of strings, bytes or other
plain objects: one object a row. ``None`` belongs to the structure and has no rows. No private torch
pytree.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from inspect import getattr_static
from itertools import starmap
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.structure import MOST_LEAVES, Structure, compile_leaves
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.values import PerReplica, TensorSpec

_log = logging.getLogger(__name__)

Batch = Any
"""A tree whose leaves all have the same number of rows."""


@final
class Examples(list[Any]):
    """Examples of a stream that are not collated yet: a leaf with one example a row."""


_LEAF = Structure(None)
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
_LeavesOf = Callable[[Any], "list[Any] | None"]
_Known = dict[type, list[tuple[_LeavesOf, Structure]]]
_MOST_KNOWN = 8
"""Structures of one outer type for which code is made; what looks different each time is walked."""
_MOST_TYPES = 64
"""Outer types; more are made as a program runs, and do not come again."""
_DEEPEST = 150
"""Containers around a leaf: what walks over a tree calls itself."""
_LEAVES = {torch.Tensor, np.ndarray, PackedStrings, str, bytes, torch.Size}
_BUILTIN = {dict, list, tuple, type(None), defaultdict}
_PLAIN_ROWS = {str, bytes, int, float, bool}
_PLAIN_ENDS = {*_PLAIN_ROWS, type(None)}
_OFTEN_ROWS = {*_PLAIN_ENDS, list}
_WHOLE = (torch.Tensor, np.ndarray, PackedStrings, PerReplica, TensorSpec)
"""What is a column, or stands for one: a list that holds any of them is a container."""
_Parts = tuple[tuple[Any, ...], Sequence[Any]] | None


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves in order, and the structure that puts them back."""
    return _flatten(tree, _parts, _known_batches)


def flatten_example(example: Any) -> tuple[list[Any], Structure]:
    """Flatten one example: it has no rows, so a list in it is a container like a tuple."""
    return _flatten(example, _example_parts, _known_examples)


def example_leaves(example: Any, like: Structure) -> list[Any] | None:
    """The leaves of an example in the order of another's; keys of mappings may come in any order.

    None if the structures differ.
    """
    return _leaves_like(example, like, _example_parts)


def leaves_like(tree: Any, like: Structure) -> list[Any] | None:
    """The leaves of a batch in the order of another's; None if the structures differ."""
    leaves, structure = flatten(tree)
    if structure is like or structure == like:  # as nearly all, without a walk
        return leaves
    return _leaves_like(tree, like, _parts)


def _leaves_like(
    example: Any, like: Structure, parts_of: Callable[[Any], _Parts]
) -> list[Any] | None:
    parts = parts_of(example)
    if parts is None or like.kind is None:
        return [example] if parts is None and like.kind is None else None
    values = dict(zip(*parts, strict=True))
    if _kind(example, parts_of) is not like.kind or values.keys() != set(like.keys):
        return None
    children = zip(like.keys, like.children, strict=True)
    found = [_leaves_like(values[key], child, parts_of) for key, child in children]
    if any(part is None for part in found):
        return None
    return [leaf for part in found if part for leaf in part]


def flatten_values(tree: Any) -> tuple[list[Any], Structure]:
    """Flatten values that are not batches: None is a leaf like any other."""
    leaves: list[Any] = []
    return leaves, _walk(tree, leaves, _value_parts)


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put leaves back into a structure."""
    return structure.build(leaves)


def map_leaves(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply ``fn`` to each leaf, together with the leaves of other trees of the same structure."""
    leaves, structure = flatten(tree)
    columns = [flatten(other)[0] for other in others]
    return structure.build(list(starmap(fn, zip(leaves, *columns, strict=True))))


def leaf_names(structure: Structure, prefix: str = "batch") -> list[str]:
    """A readable name for each leaf, as in ``batch['x'][0]``."""
    if structure.kind is None:
        return [prefix]
    pairs = zip(structure.keys, structure.children, strict=True)
    return [name for key, child in pairs for name in leaf_names(child, name_child(prefix, key))]


def name_child(name: str, key: Any) -> str:
    """What is found in a container by a key; by one name in all processes, so without addresses."""
    return f"{name}[{_ADDRESS.sub('', repr(key))}]"


def _flatten(
    tree: Any, parts_of: Callable[[Any], _Parts], known: _Known
) -> tuple[list[Any], Structure]:
    """Try the code of structures seen before; walk over the first tree of another."""
    same_type = known.get(type(tree), ())
    for leaves_of, structure in same_type:
        leaves = leaves_of(tree)
        if leaves is not None:
            return leaves, structure
    leaves = []
    structure = _walk(tree, leaves, parts_of)
    if len(same_type) < _MOST_KNOWN and len(leaves) <= MOST_LEAVES:
        leaves_of = compile_leaves(structure, parts_of, is_row_list, _stand_ins(parts_of))
        # Also where it finds none, as a class stands for another: else it were made each time.
        if len(known) >= _MOST_TYPES:
            known.clear()
        known[type(tree)] = [*same_type, (leaves_of, structure)]
    return leaves, structure


def _walk(
    tree: Any, leaves: list[Any], parts_of: Callable[[Any], _Parts], depth: int = 0
) -> Structure:
    parts = parts_of(tree)
    if parts is None:
        leaves.append(tree)
        return _LEAF
    if depth == _DEEPEST:
        msg = (
            f"Expected containers nested at most {_DEEPEST} deep, got a {type(tree).__name__} in "
            f"{depth} others. Flatten it, or give it as a string."
        )
        raise ValueError(msg)
    keys, values = parts
    if type(tree) not in _BUILTIN:
        _warn_of_attributes(tree, keys)
    children = tuple(_walk(value, leaves, parts_of, depth + 1) for value in values)
    return Structure(_kind(tree, parts_of), keys, children)


def _warn_of_attributes(tree: Any, keys: tuple[Any, ...]) -> None:
    """Say once of a class that a batch of it is made of its values alone."""
    kind = type(tree)
    if not (isinstance(tree, (dict, list, tuple)) or dataclasses.is_dataclass(tree)):
        return  # its values may be kept in an attribute
    names = [name for name in getattr(tree, "__dict__", ()) if isinstance(name, str)]
    names = [name for name in names if name not in keys and not name.startswith("_")]
    lost = [name for name in names if not hasattr(kind, name)]  # else it is made again, as cached
    if lost and kind not in _said_attributes:
        _said_attributes.add(kind)
        _log.warning(
            "Batches of %s are made of its values alone. What it has in other attributes is lost, "
            "but for what its constructor makes again: %s. Make it a value, or a field of a "
            "dataclass, with a row for each example.",
            kind.__name__,
            ", ".join(lost),
        )


_said_attributes: weakref.WeakSet[type] = weakref.WeakSet()


def _kind(tree: Any, parts_of: Callable[[Any], _Parts]) -> type:
    """The class that puts a container back together."""
    if isinstance(tree, defaultdict):
        return dict  # its factory is no part of a batch
    has_fields = dataclasses.is_dataclass(tree) and not isinstance(tree, (Mapping, tuple, list))
    if has_fields and _keeps_elsewhere(tree):
        return dict  # it cannot be made by setting its fields
    if isinstance(tree, (list, torch.Size)) and parts_of is _example_parts:
        return tuple
    return type(tree)


def _keeps_elsewhere(tree: Any) -> bool:
    """Whether no field of a dataclass is an attribute or slot of it, as of a tensorclass."""
    kind, own = type(tree), getattr(tree, "__dict__", ())
    names = [field.name for field in dataclasses.fields(tree)]
    return bool(names) and not any(
        name in own or hasattr(getattr_static(kind, name, None), "__set__") for name in names
    )


def _stand_ins(parts_of: Callable[[Any], _Parts]) -> dict[type, tuple[type, ...]]:
    """What :func:`_kind` makes of classes, the other way round."""
    listed: dict[type, tuple[type, ...]] = {dict: (defaultdict,)}
    return {**listed, tuple: (list, torch.Size)} if parts_of is _example_parts else listed


def _example_parts(tree: Any) -> _Parts:
    """A list in an example is a container, and so is a shape: a column for each number of it."""
    return _parts(tuple(tree) if isinstance(tree, (list, torch.Size)) else tree)


def _value_parts(tree: Any) -> _Parts:
    return None if tree is None else _parts(tree)


def _parts(tree: Any) -> _Parts:
    """Keys and values of a container; None for a leaf."""
    kind = type(tree)
    if kind in _LEAVES:
        return None  # told by its type alone, as almost all are
    if kind is list and tree and type(tree[0]) in _PLAIN_ROWS and type(tree[-1]) in _PLAIN_ENDS:
        return None  # without a look at each row: a column would be at the end
    if kind is dict:
        return tuple(tree), list(tree.values())
    if isinstance(tree, (torch.Tensor, np.ndarray, str, bytes, PerReplica, TensorSpec)):
        return None
    if tree is None:
        return (), ()
    if isinstance(tree, Mapping):
        return tuple(tree.keys()), list(tree.values())
    if isinstance(tree, tuple) or (isinstance(tree, list) and not is_row_list(tree)):
        return tuple(range(len(tree))), tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(field.name for field in dataclasses.fields(tree))
        return names, [getattr(tree, name) for name in names]
    return None


def is_row_list(value: list[Any]) -> bool:
    """Whether a list is a leaf, one object a row: no tensor or array, and no container first."""
    if isinstance(value, Examples) or not value:
        return True
    first = next((item for item in value if item is not None), "")
    if isinstance(first, _WHOLE) or _parts(first) is not None:
        return False
    # The first may be a list of strings, which is a row or a column: the others tell.
    kinds = set(map(type, value))
    if list in kinds:
        kinds |= {type(item[0]) for item in value if type(item) is list and item}
    may_hold = any(map(_is_container_class, kinds - _OFTEN_ROWS))
    return not may_hold or not any(map(_holds_column, value))


def _is_container_class(kind: type) -> bool:
    """Whether its objects are columns, or may hold some; asked once for all rows of a class."""
    is_dataclass = dataclasses.is_dataclass(kind)
    return is_dataclass or issubclass(kind, (*_WHOLE, Mapping, tuple, list))


def _holds_column(item: Any) -> bool:
    """Whether an item of a list is a column, or a container that holds one."""
    if isinstance(item, _WHOLE):
        return True
    parts = _parts(item)
    return parts is not None and any(map(_holds_column, parts[1]))


_known_batches: _Known = {}
_known_examples: _Known = {}
