"""From examples to a batch that keeps their structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import default_collate

from torch_distinput.data.batch.leaf_kind import is_masked, make_masked_array_error
from torch_distinput.data.batch.rows import num_rows, refuse_own_lists
from torch_distinput.data.batch.spec import zero_rows
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import (
    Batch,
    example_leaves,
    flatten_example,
    leaf_names,
    name_child,
    unflatten,
)
from torch_distinput.packed_strings import PackedStrings

PLAIN_DTYPES = frozenset(map(np.dtype, ("?", "B", "b", "h", "i", "l", "e", "f", "d")))

NUMBERS = {bool, int, float}
_NUMBERS = (*NUMBERS, np.number, np.bool_)
_AMONG_FLOATS = (*_NUMBERS, complex, torch.Tensor, np.ndarray)
_NUM_FIRST = 1024
_MOST_NAMED = 4
_CURE = (
    'Pass a collate_fn, or let a map give all examples values of one kind ("" for None); for '
    'sequences of uneven length pad_collate({"input_ids": 0}), which pads '
    "the columns that it names"
)

CollateFn = Callable[[list[Any]], Batch]


def collate_examples(
    examples: Sequence[Any], types: Mapping[str, torch.dtype] | None = None
) -> Batch:
    """Stack examples leaf by leaf; tuples stay tuples and dataclasses keep their class.

    Leaves follow ``torch.utils.data.default_collate``: tensors, arrays and numbers become tensors
    of shape ``(rows, ...)``, strings and bytes become lists. Arrays of strings become an array, and
    packed strings of one row each packed strings.
    Integers among floats become float64.

    Args:
        examples: at least one.
        types: by the names of leaves what numbers there become; see :func:`number_types`.

    Raises:
        ValueError: if the structures or shapes of the examples differ, or numbers have not the
            types that they should have.
    """
    leaves, structure = flatten_example(examples[0])
    if not leaves and not any(flatten_example(example)[0] for example in examples):
        msg = (
            f"Expected examples with tensors, numbers or other values, got {examples[0]!r} as "
            "example 0. Return the example from the dataset, and from the function of a map()."
        )
        raise ValueError(msg)
    rows = [_leaves(number, example, structure) for number, example in enumerate(examples)]
    columns = list(zip(*rows, strict=True))
    names = leaf_names(structure, "example")
    stacked = [stack_values(n, c) for n, c in zip(names, columns, strict=True)]
    if types:
        pairs = zip(names, stacked, strict=True)
        stacked = [_cast(n, s, types[n]) if n in types else s for n, s in pairs]
    return unflatten(structure, stacked)


def collate_with(
    collate_fn: CollateFn, examples: list[Any], *, num_asked: int | None = None
) -> Batch:
    """Call a ``collate_fn``; refuse lists of what is in the examples, which are no columns.

    Args:
        collate_fn: the user's, or one of ours.
        examples: what it gets.
        num_asked: examples that a dataset was asked for which may have given a batch of them.
    """
    batch = collate_fn(examples)
    if collate_fn is not collate_examples and isinstance(examples, (list, tuple)):
        try:
            refuse_own_lists(batch, examples)
        except ValueError:
            if num_asked is None or not _are_columns(examples, num_asked):
                raise
    return batch


def _are_columns(examples: Sequence[Any], num_asked: int) -> bool:
    """Whether they are a batch of so many rows, rather than that many examples."""
    try:
        return len(examples) != num_asked or num_rows(examples) == num_asked
    except (TypeError, ValueError):
        return False


def number_types(examples: Sequence[Any]) -> dict[str, torch.dtype]:
    """What the numbers of a list become: all of its batches have the types of its first examples.

    Else the type of a batch would depend on where it was cut: one may hold no float by chance.
    """
    leaves, structure = flatten_example(examples[0]) if examples else ([], None)
    if structure is None or not any(type(leaf) in NUMBERS for leaf in leaves):
        return {}
    first = (example_leaves(example, structure) or () for example in examples[:_NUM_FIRST])
    named = zip(leaf_names(structure, "example"), zip(*first, strict=False), strict=False)
    kinds = {name: set(map(type, column)) for name, column in named}
    return {name: _number_type(found) for name, found in kinds.items() if found <= NUMBERS}


def _number_type(kinds: set[type]) -> torch.dtype:
    if float in kinds:
        return torch.float64
    return torch.bool if kinds == {bool} else torch.int64


def _cast(name: str, leaf: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        if leaf.dtype == dtype:
            return leaf
        if torch.promote_types(leaf.dtype, dtype) == dtype:
            return leaf.to(dtype)
    msg = (
        f"Expected numbers of {dtype} at {name}, as in the first {_NUM_FIRST} examples, got "
        f"{getattr(leaf, 'dtype', type(leaf).__name__)}: the type of a batch must not depend on "
        "which examples it holds. Write all of them as floats (1.0), or pass a collate_fn."
    )
    raise ValueError(msg)


def _leaves(number: int, example: Any, structure: Structure) -> list[Any]:
    leaves, own = flatten_example(example)
    if own is structure or own == structure:
        return leaves
    reordered = example_leaves(example, structure)
    if reordered is None:
        msg = (
            "All examples of a batch need one structure, got leaves "
            f"{_some_leaves(structure)} in row 0 and {_some_leaves(own)} in row {number}"
            f"{_some_nones(0, structure)}{_some_nones(number, own)}. {_CURE}."
        )
        raise ValueError(msg)
    return reordered


def _some_nones(number: int, structure: Structure) -> str:
    """Where an example holds None, which is no leaf."""
    names = _none_names(structure, "example")[:_MOST_NAMED]
    return f"; row {number} holds None at {', '.join(names)}" if names else ""


def _none_names(structure: Structure, name: str) -> list[str]:
    if structure.kind is type(None):
        return [name]
    pairs = zip(structure.keys, structure.children, strict=True)
    return [none for key, child in pairs for none in _none_names(child, name_child(name, key))]


def _some_leaves(structure: Structure) -> str:
    """The names of the first ones: a list has one for each of its items."""
    names = leaf_names(structure, "example")
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{names[:_MOST_NAMED]}{more}"


def collate(spec: Any) -> CollateFn:
    """Return a collate function that also accepts no examples at all.

    For plain DataLoaders behind a :class:`RebatchSampler`, whose index lists may be empty where
    ``default_collate([])`` raises.

    Args:
        spec: the element spec of a batch, as ``DistributedDataset.element_spec`` gives it: a
            structure with a :class:`TensorSpec` for each leaf. An empty list of examples becomes
            its zero-row batch.
    """
    return _CollateOrNone(spec)


@final
class _CollateOrNone:
    """Picklable, so that it can travel to loader processes."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __call__(self, examples: list[Any]) -> Batch:
        return collate_examples(examples) if examples else zero_rows(self._spec)


def _join_rows(column: Sequence[PackedStrings]) -> PackedStrings:
    sizes = set(map(len, column))
    if sizes != {1}:
        msg = f"packed strings have one row in each example, got {sorted(sizes)[:4]}"
        raise ValueError(msg)
    return PackedStrings.concat(column)


def _are_plain(arrays: Sequence[Any]) -> bool:
    """Whether all arrays are of one dtype that torch knows."""
    dtype = arrays[0].dtype
    return dtype in PLAIN_DTYPES and all(array.dtype is dtype for array in arrays)


def _refuse_rounding(kinds: set[type]) -> None:
    """Torch makes floats of whatever is behind a float: of a Decimal, too."""
    odd = sorted(kind.__name__ for kind in kinds if not issubclass(kind, _AMONG_FLOATS))
    if odd:
        msg = f"expected numbers that float64 holds, got {', '.join(odd)}"
        raise TypeError(msg)


def _join_numbers(column: Sequence[Any]) -> torch.Tensor:
    """Numbers of several types, in the one that holds them: the first would not tell it."""
    array = np.array(column)
    if has_rounded(column, array):
        msg = "expected numbers that float64 holds, got whole ones beyond 2**53 among others"
        raise ValueError(msg)
    return torch.from_numpy(array)


def has_rounded(values: Sequence[Any], array: np.ndarray) -> bool:
    """Whether NumPy has made floats of integers that floats do not hold: beside floats, say."""
    if array.dtype != np.float64 or not (np.abs(array) >= 2.0**53).any():
        return False
    return any(isinstance(value, (int, np.integer)) and abs(int(value)) > 2**53 for value in values)


def stack_values(name: str, column: Sequence[Any]) -> Any:
    """Make a leaf of the values that examples have for it; ``name`` is for messages."""
    if isinstance(column[0], torch.Tensor) and column[0].is_quantized:
        msg = f"Expected no quantized tensors, got one at {name}. Use dequantize() or int_repr()."
        raise ValueError(msg)
    kinds = set(map(type, column))
    if any(map(is_masked, kinds)):
        raise make_masked_array_error(name)
    try:
        if kinds == {torch.Tensor} and column[0].layout is torch.strided:
            return torch.stack(tuple(column))  # in a loader process default_collate would share it
        if kinds == {np.ndarray}:
            if _are_plain(column):  # as default_collate does, without a tensor for each
                return torch.from_numpy(np.stack(column))
            if all(leaf.dtype.kind in "OUS" for leaf in column):  # strings, or other objects
                return np.stack([leaf.astype(object) for leaf in column])
        if kinds == {PackedStrings}:
            return _join_rows(column)
        if bytearray in kinds and kinds <= {bytes, bytearray}:
            return list(map(bytes, column))  # default_collate would make a column of each byte
        if len(kinds) > 1 and all(issubclass(kind, _NUMBERS) for kind in kinds):
            return _join_numbers(column)
        if type(column[0]) is float:
            _refuse_rounding(kinds)
        return default_collate(list(column))
    except (TypeError, RuntimeError, ValueError) as error:
        shapes = sorted({str(tuple(getattr(leaf, "shape", ()))) for leaf in column})
        msg = (
            f"Cannot stack {len(column)} values of type {type(column[0]).__name__} with shapes "
            f"{', '.join(shapes)} at {name}: {error}. {_CURE}."
        )
        raise ValueError(msg) from error
