"""Examples into columns, and columns into the shape that layers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.collate import has_rounded
from torch_distinput.data.batch.leaf_kind import is_masked, make_masked_array_error
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.strings.packed import PackedColumn, PaddedStrings

_SINGLE = frozenset({int, float, bool, str, bytes, type(None)})
_NUMBERS = (int, float, np.number, np.bool_, np.ndarray)


def join_parts(column: Any) -> Any:
    """Join the parts of a column whose examples are lists or tuples: ``(rows, parts, ...)``.

    Collating makes a tuple of them, with all first items in the first part, and so on (as
    ``default_collate`` does of tuples). A tuple of single values is a column as a list of them is.
    Anything else is returned as it is.

    Raises:
        TypeError: for a list that may be of parts or of rows.
    """
    _refuse_parts(column)
    if type(column) is tuple and all(map(is_single, column)):
        return list(column)
    if type(column) is not tuple or not all(_has_rows(part) for part in column):
        return column
    parts = [join_parts(part) for part in column]
    if all(isinstance(part, torch.Tensor) for part in parts):
        return torch.stack(parts, dim=1)
    return [list(row) for row in zip(*parts, strict=True)]


def take_only_column(batch: Any) -> Any:
    """Return a batch that is one column, for a layer by itself.

    Raises:
        TypeError: for a batch of several.
    """
    if isinstance(batch, Mapping) or (type(batch) is tuple and len(batch) > 1):
        got = list(batch) if isinstance(batch, Mapping) else f"a tuple of {len(batch)}"
        msg = f"A single layer adapts to batches that are its column, got {got}. Use Features."
        raise TypeError(msg)
    _refuse_parts(batch)
    return batch[0] if type(batch) is tuple else batch


def _refuse_parts(column: Any) -> None:
    """Refuse a list of tensors, or of tuples: torch's ``default_collate`` makes it of parts.

    Of examples whose value is a list, the first has all first items; of rows, the first row.
    """
    if type(column) is not list or not column:
        return
    if all(type(p) is tuple or (isinstance(p, torch.Tensor) and p.ndim > 0) for p in column):
        msg = (
            f"Expected a column of rows, got a list of {len(column)} {type(column[0]).__name__}s, "
            "which default_collate makes of the parts of examples that are lists: all first items, "
            "all second ones, and so on. Pass collate_fn=features.collate to the DataLoader; "
            "or torch.stack(column, dim=1) where these are parts, and torch.stack(column), or a "
            "list of lists, where they are rows."
        )
        raise TypeError(msg)


def collate_columns(examples: Sequence[Any], names: Sequence[str] | None = None) -> Any:
    """Collate examples without asking what is in them: None and lists are values like others.

    Dicts give a dict of columns, of those names or of all there are; what one lacks is None.
    Anything else gives one column. Tensors and arrays become a tensor, other values an array of
    objects, numbers as well: a batch may have None among them, or whole numbers only, where that of
    another worker has not, and workers compare the kinds of their columns.
    """
    if all(isinstance(example, Mapping) for example in examples):
        if names is None:
            names = tuple(dict.fromkeys(name for example in examples for name in example))
        columns = ([example.get(name) for example in examples] for name in names)
        return {name: _collate_values(values) for name, values in zip(names, columns, strict=True)}
    return _collate_values(list(examples))


def _collate_values(values: list[Any]) -> Any:
    if values and all(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
        return collate_column(values)
    refuse_masks(values)
    return box_rows(values)


def collate_column(values: list[Any]) -> Any:
    """Return a whole column as a tensor if it is of numbers, else as an array of objects."""
    found = stack_numbers(values)
    return box_rows(values) if found is values else found


def stack_rows(values: list[Any], *, are_strings: bool) -> Any:
    """The values of a column as a batch of it: a tensor of numbers, or a list, of lists if so.

    Strings may all be NaN, which is what pandas takes for a missing one.
    """
    refuse_masks(values)
    found = values if are_strings else stack_numbers(values)
    if found is values and any(type(value) is tuple for value in values):
        return [list(value) if type(value) is tuple else value for value in values]
    return found


def stack_numbers(values: list[Any]) -> Any:
    """Return the values of a column as one tensor if they are numbers; otherwise as they are."""
    refuse_masks(values)
    if values and all(isinstance(value, torch.Tensor) for value in values):
        return torch.stack(values)
    if values and all(isinstance(value, _NUMBERS) for value in values):
        array = np.asarray(values)
        if array.dtype.kind in "iufb" and not has_rounded(values, array):
            return torch.from_numpy(array)
    return values


def refuse_masks(values: Any) -> None:
    """Refuse an array with a mask, or a list of them: NumPy would take masked values for data.

    Raises:
        TypeError: for one.
    """
    is_list = isinstance(values, list) and values and isinstance(values[0], np.ndarray)
    if any(map(is_masked, set(map(type, values)) if is_list else {type(values)})):
        raise make_masked_array_error("a column")


def box_rows(values: Sequence[Any]) -> np.ndarray:
    """An array with one object for each row, whatever it is: NumPy's own strings are cut at NUL."""
    out = np.empty(len(values), dtype=object)
    if _SINGLE.issuperset(map(type, values)):
        out[:] = values
        return out
    for row, value in enumerate(values):
        out[row] = value  # one by one: together, lists would be taken for a second dimension
    return out


def add_dimension(column: Any) -> Any:
    """Give each row of a column of single values a dimension of its own: ``(rows, 1)``."""
    if isinstance(column, PaddedStrings):
        if column.lengths.ndim != 1:
            return column
        return PaddedStrings(column.data.unsqueeze(1), column.lengths.unsqueeze(1))
    if isinstance(column, PackedStrings):
        return PackedColumn(column, (len(column), 1))
    if isinstance(column, torch.Tensor):
        return column.unsqueeze(1) if column.ndim == 1 else column
    if isinstance(column, np.ndarray):
        single = column.ndim == 1 and not any(map(_has_rows, column.tolist()))
        return column[:, None] if single else column
    if isinstance(column, list) and not any(map(_has_rows, column)):
        return box_rows(column)[:, None]  # also of no rows
    if hasattr(column, "__array__"):  # of pandas, polars or Arrow
        return add_dimension(np.asarray(column))
    return column


def is_single(value: Any) -> bool:
    """Whether it is the value of one example, not a column of several."""
    if isinstance(value, PaddedStrings):
        return value.lengths.ndim == 0
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim == 0
    return isinstance(value, (str, bytes, int, float, np.generic, type(None)))


def _has_rows(part: Any) -> bool:
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return part.ndim > 0
    return isinstance(part, (list, tuple, PackedStrings))
