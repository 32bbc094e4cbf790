"""The containers of a tree, and code written once for them: apart and together without a walk.

Batches of one source look alike, and a walk over a small tree costs more than slicing its tensors.
What is generated is plain: an unpacking, a type test and a name for each node.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.lazy_property import LazyProperty
from torch_distinput.packed_strings import PackedStrings

_log = logging.getLogger(__name__)
_PLAIN = frozenset({torch.Tensor, np.ndarray, PackedStrings, str, bytes, bool, int, float})
"""Types that are leaves by themselves."""
_SHOWN = (dict, list, tuple)
"""Containers whose values are compared with what was put into them."""
MOST_LEAVES = 256
"""Leaves of a tree for which code is made."""


@final
@dataclasses.dataclass(frozen=True)
class Structure:
    """The containers of a tree, without its leaves."""

    kind: type | None
    """The container's class; None for a leaf, ``NoneType`` for None."""
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()

    @LazyProperty
    def build(self) -> Callable[[Sequence[Any]], Any]:
        """Puts leaves back."""
        return compile_build(self) if self.num_leaves <= MOST_LEAVES else self._build

    @LazyProperty
    def num_leaves(self) -> int:
        """How many leaves a tree of this structure has."""
        return 1 if self.kind is None else sum(child.num_leaves for child in self.children)

    def _build(self, leaves: Sequence[Any]) -> Any:
        """The same without code of its own, which would be longer than it is worth."""
        if self.kind is None or self.kind is type(None):
            return leaves[0] if leaves else None
        bounds = pairwise(accumulate((child.num_leaves for child in self.children), initial=0))
        parts = zip(self.children, bounds, strict=True)
        return assembler(self)([child.build(leaves[slice(*bound)]) for child, bound in parts])

    def __reduce__(self) -> Any:
        """Leave the code behind: it is made again where it is needed."""
        return Structure, (self.kind, self.keys, self.children)


def compile_build(structure: Structure) -> Callable[[Sequence[Any]], Any]:
    """Return a function that puts leaves, in order, back into the structure."""
    code = _Code()
    names: list[str] = []
    tree = code.expression(structure, names)
    unpack = [f"({', '.join(names)},) = leaves"] if names else []
    return code.function("leaves", [*unpack, f"return {tree}"])


def compile_leaves(
    structure: Structure,
    parts_of: Callable[[Any], Any],
    is_row_list: Callable[[Any], bool],
    stand_ins: Mapping[type, tuple[type, ...]],
) -> Callable[[Any], list[Any] | None]:
    """Return a function that lists the leaves of a tree; None if its structure is another.

    ``parts_of``: None for a leaf. ``stand_ins``: for some classes others whose trees have their
    structure.
    """
    code = _Code(stand_ins)
    code.scope.update(plain=_PLAIN, parts_of=parts_of, is_row_list=is_row_list)
    names: list[str] = []
    lines = list(code.unpacked(structure, "tree", names))
    return code.function("tree", [*lines, f"return [{', '.join(names)}]"])


@final
class _Code:
    """Lines under way, and the objects that they name."""

    def __init__(self, stand_ins: Mapping[type, tuple[type, ...]] | None = None) -> None:
        self.scope: dict[str, Any] = {}
        self._stand_ins = stand_ins or {}

    def function(self, argument: str, lines: list[str]) -> Callable[[Any], Any]:
        body = "\n".join(f"    {line}" for line in lines)
        # Keys and classes are objects with a name of ours; only fields of dataclasses are spelled.
        exec(f"def made({argument}):\n{body}\n", self.scope)  # noqa: S102
        return self.scope["made"]  # type: ignore[no-any-return]

    def name(self, value: Any) -> str:
        made = f"c{len(self.scope)}"
        self.scope[made] = value
        return made

    def expression(self, structure: Structure, names: list[str]) -> str:
        """The tree over its leaves, to which it gives names."""
        kind = structure.kind
        if kind is None:
            names.append(f"v{len(names)}")
            return names[-1]
        if kind is type(None):
            return "None"
        values = [self.expression(child, names) for child in structure.children]
        if kind is tuple:
            return f"({''.join(f'{value}, ' for value in values)})"
        if kind is dict:
            pairs = zip(map(self.name, structure.keys), values, strict=True)
            return f"{{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"
        whole = f"[{', '.join(values)}]"
        return whole if kind is list else f"{self.name(assembler(structure))}({whole})"

    def unpacked(self, structure: Structure, tree: str, names: list[str]) -> Iterator[str]:
        """Lines that give each leaf a name, or return None."""
        kind = structure.kind
        if kind is None:
            names.append(tree)
            is_no_leaf = f"type({tree}) not in plain and parts_of({tree}) is not None"
            yield f"if {is_no_leaf}: return None"
            return
        if kind is type(None):
            yield f"if {tree} is not None: return None"
            return
        kinds = (kind, *self._stand_ins.get(kind, ()))
        test = " and ".join(f"type({tree}) is not {self.name(one)}" for one in kinds)
        yield f"if {test}: return None"
        children = [f"{tree}_{number}" for number in range(len(structure.children))]
        yield from self._children(structure, tree, children)
        for child, variable in zip(structure.children, children, strict=True):
            yield from self.unpacked(child, variable, names)

    def _children(self, structure: Structure, tree: str, children: list[str]) -> Iterator[str]:
        kind, values = structure.kind, tree
        assert kind is not None, "a leaf has no children"
        if issubclass(kind, Mapping):
            yield f"if tuple({tree}.keys()) != {self.name(structure.keys)}: return None"
            values = f"{tree}.values()"
        elif issubclass(kind, (tuple, list)):
            rows = f" or is_row_list({tree})" if issubclass(kind, list) else ""
            yield f"if len({tree}) != {len(children)}{rows}: return None"
        else:  # a dataclass, whose fields are attributes
            for key, child in zip(structure.keys, children, strict=True):
                yield f"{child} = {tree}.{key}"
            return
        if children:
            yield f"({', '.join(children)},) = {values}"


def assembler(structure: Structure) -> Callable[[list[Any]], Any]:
    """How a container other than the builtin ones is made of its values."""
    kind: Any = structure.kind
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return kind._make  # type: ignore[no-any-return]
    if issubclass(kind, (Mapping, tuple, list)):
        children = zip(structure.keys, structure.children, strict=True)
        keys = [key for key, child in children if issubclass(child.kind or list, _SHOWN)]
        if issubclass(kind, Mapping):
            build = partial(_build_or_plain, kind, dict, keys)
            return lambda values: build(dict(zip(structure.keys, values, strict=True)))
        return partial(_build_or_plain, kind, tuple if issubclass(kind, tuple) else list, keys)
    return partial(_build_dataclass, kind, structure.keys)


def _build_or_plain(kind: Any, plain: type, keys: list[Any], values: Any) -> Any:
    """A container of the user's class, or a plain one where the class needs more than its values.

    Or makes something else of them, as a constructor does that scales: it was run before. It is
    tried each time: whether it fails may depend on the kind of values, which are tensors in a batch
    and :class:`PerReplica` in a result of several replicas.
    """
    # What it holds, and not what a __getitem__ of its own makes of that.
    holder: Any = plain if issubclass(kind, plain) else operator
    try:
        made = kind(values)
        if len(made) != len(values):
            why = f"{len(made)} of {len(values)} values arrived"
        elif all(_is_kept(holder.__getitem__(made, key), values[key]) for key in keys):
            return made
        else:
            why = "it makes others of them"
    except Exception as error:  # noqa: BLE001 - whatever the user's class makes of them
        why = f"{type(error).__name__}: {error}"
    if kind not in _said_plain:
        _said_plain.add(kind)
        _log.info("%s cannot be made of its values (%s): a %s instead", kind, why, plain.__name__)
    return plain(values)


def _is_kept(one: Any, other: Any) -> bool:
    """Whether a constructor has kept a value, or what is in it in a container of its own."""
    if one is other:
        return True
    kind = next((kind for kind in _SHOWN if isinstance(other, kind)), None)
    if not isinstance(one, kind or ()):
        return kind is dict  # an object was made of it
    if len(one) != len(other):
        return False
    if kind is dict and isinstance(one, dict):
        items = dict.items(other)
        return all(key in one and _is_kept(dict.__getitem__(one, key), own) for key, own in items)
    return all(map(operator.is_, one, other)) or all(map(_is_kept, one, other))


_said_plain: weakref.WeakSet[type] = weakref.WeakSet()


def _build_dataclass(kind: Any, names: tuple[str, ...], values: list[Any]) -> Any:
    """Set the fields directly: ``__post_init__`` was written for examples, not for batches."""
    instance: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance
