"""From rows of Python values, as parsers of text give them, to columns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.jagged import make_jagged
from torch_distinput.data.batch.tree import map_leaves
from torch_distinput.packed_strings import PackedStrings

Wanted: TypeAlias = "Sequence[str] | Mapping[str, Any] | None"
"""All columns, some, or some with their types."""

_log = logging.getLogger(__name__)
_NUMBERS = {
    torch.bool,
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_OR_LISTS = ", or (dtype, ...) for lists of any length"
INT64 = range(-(1 << 63), 1 << 63)


def check_wanted(wanted: Wanted, *, lists: bool = True) -> None:
    """Refuse a choice of columns that means nothing; ``lists``: whether a column may hold some."""
    if wanted is None:
        return
    sound = isinstance(wanted, (Mapping, Sequence)) and not isinstance(wanted, str)
    if not sound or not all(isinstance(name, str) for name in wanted):
        msg = (
            f"Expected columns to be names, or names with types, got {wanted!r}. Write for example "
            'columns=["a", "b"], or columns={"a": torch.int64, "b": str}.'
        )
        raise ValueError(msg)
    for name, given in wanted.items() if isinstance(wanted, Mapping) else ():
        dtype, ragged = _split_type(given)
        number = isinstance(dtype, torch.dtype) and dtype in _NUMBERS and (lists or not ragged)
        if given is not str and not number:
            msg = (
                f"Expected the type of column {name!r} to be str, or a torch dtype such as "
                f"torch.int64 or torch.float32{_OR_LISTS if lists else ''}, got {given!r}."
            )
            raise ValueError(msg)


def _split_type(given: Any) -> tuple[Any, bool]:
    """A type, and whether rows of it are lists of any length: ``(torch.int64, ...)``."""
    ragged = isinstance(given, tuple) and len(given) == 2 and given[1] is ...
    return (given[0], True) if ragged else (given, False)


def record_columns(records: Sequence[Mapping[str, Any]], wanted: Wanted, prefix: str = "") -> Any:
    """Turn one mapping per row into a dict of columns.

    Raises:
        ValueError: names the column whose values do not fit together, and the cure.
    """
    types = wanted if isinstance(wanted, Mapping) else {}
    return {
        name: _column(f"{prefix}{name}", values, types.get(name))
        for name, values in _values_by_name(records, wanted).items()
    }


def _values_by_name(records: Sequence[Mapping[str, Any]], wanted: Wanted) -> dict[str, list[Any]]:
    if wanted is not None or len(set(map(len, records))) == 1:
        names = next(iter(records), {}) if wanted is None else wanted
        with suppress(KeyError):  # as many names as the first one, and all of its: the same
            return {name: list(map(itemgetter(name), records)) for name in names}
    known = dict.fromkeys(chain.from_iterable(records))
    if wanted is not None:
        types = wanted if isinstance(wanted, Mapping) else {}
        unknown = set(wanted) - known.keys() - {name for name in types if types[name] is str}
        if unknown:
            name = min(unknown)
            raise _make_unknown_error(name, list(known), len(records), is_typed=name in types)
    names = known if wanted is None else wanted
    return {name: [record.get(name) for record in records] for name in names}


def pack_lists(batch: Any) -> Any:
    """Columns with packed strings in the place of lists of text."""
    return map_leaves(
        lambda leaf: PackedStrings.from_list(leaf, str) if type(leaf) is list else leaf, batch
    )


def _column(name: str, values: list[Any], wanted: Any = None) -> Any:
    """Make one column: of the given type, or of the one that the values have.

    Numbers and lists of numbers become tensors, mappings a dict of columns, text a list, in which
    None stands for what is missing; all else is an array of objects, so are lists without numbers.
    """
    dtype, ragged = _split_type(wanted)
    kinds = set(map(type, values))
    if dtype is str:
        return _text(name, values, kinds)
    if dtype is not None and not values and not ragged:
        return torch.empty(0, dtype=dtype, device="cpu")
    if kinds <= {str, type(None)} and dtype is None:
        return values
    if type(None) in kinds and (dtype is not None or _needs_all(kinds, values)):
        raise _make_missing_error(name, values)
    if kinds == {dict} and dtype is None:
        return record_columns(values, None, f"{name}.")
    if kinds <= {bool, int, float} and not ragged:
        found = _numbers(name, values, kinds, dtype)
        if found is not None:
            return found
    if kinds == {list} or (ragged and not kinds):
        found = _lists(name, values, dtype, ragged=ragged)
        if found is not None:
            return found
    if dtype is not None:
        odd = [value for value in values if not _is_number(value)]
        odd = odd or [value for value in values if isinstance(value, list) is not ragged]
        raise _make_unfit_error(name, dtype, odd[0])
    if len(kinds) > 1:
        _say_mixed(name, ", ".join(sorted(kind.__name__ for kind in kinds)))
    return _objects(values)


@lru_cache
def _say_mixed(name: str, kinds: str) -> None:
    """Say it once for a column: with other rows, or on another rank, it may be of one type."""
    _log.warning(
        "The column %r holds values of several types (%s) and becomes an array of objects. Where "
        "rows of one type come together it does not, which is an error then. Write the values "
        "alike, or give the column's type by the reader's columns=. (Logged once.)",
        name,
        kinds,
    )


def _numbers(name: str, values: list[Any], kinds: set[type], dtype: Any) -> torch.Tensor | None:
    """A tensor of bool, int64 or float64, or of the given type; None if the values are mixed."""
    if bool in kinds and len(kinds) > 1:
        if dtype is None:
            return None
        raise _make_unfit_error(
            name, dtype, next(v for v in values if (type(v) is bool) != (dtype is torch.bool))
        )
    if dtype is not None and not dtype.is_floating_point and float in kinds:
        value = next(value for value in values if type(value) is float)
        raise _make_unfit_error(name, dtype, value)
    if kinds == {bool}:
        dense = torch.tensor(values, dtype=torch.bool, device="cpu")
    elif kinds == {int}:
        dense = _integers(name, values, dtype)
    else:
        dense = _floats(name, values)
        if dtype is None and int in kinds and (dense.abs() >= 2.0**53).any():
            for value in values:  # an id of 64 bits among floats would become another
                if type(value) is int and int(float(value)) != value:
                    raise _make_unfit_error(name, torch.float64, value)
    return dense if dtype is None else cast_numbers(name, dense, dtype)


def cast_numbers(name: str, dense: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Change the type where no value is another afterwards, but for the rounding of floats.

    Infinity is no rounding.
    """
    if dense.dtype == dtype:
        return dense
    rounds = dense.is_floating_point() and not dtype.is_floating_point
    if rounds or torch.bool in (dense.dtype, dtype):
        raise _make_unfit_error(name, dtype, dense.flatten()[0].item() if dense.numel() else "none")
    changed = dense.to(dtype)
    if not dtype.is_floating_point and not torch.equal(changed.to(torch.int64), dense):
        raise _make_unfit_error(name, dtype, dense[changed.to(torch.int64) != dense][0].item())
    if dtype.is_floating_point and changed.isinf().any():
        beyond = dense[changed.isinf() & dense.isfinite()]
        if len(beyond):
            raise _make_unfit_error(name, dtype, beyond[0].item())
    return changed


def _objects(values: list[Any]) -> NDArray[Any]:
    """Any values, one a row."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def _rows_of_lists(
    name: str, values: torch.Tensor, lengths: NDArray[np.int64], *, ragged: bool
) -> torch.Tensor:
    """Rows of these lengths: jagged if so wanted, else dense, and then of one length.

    A tensor that is the one or the other by what a batch happens to hold would be no type.
    """
    if ragged:
        offsets = torch.from_numpy(np.concatenate(([0], lengths.cumsum())))
        return make_jagged(values, offsets)
    if (lengths != lengths[0]).any():
        msg = (
            f"Expected lists of one length in column {name!r}, got {lengths.min()} to "
            f"{lengths.max()} numbers. Pass columns={{{name!r}: ({values.dtype}, ...)}}, with the "
            "other columns, for a jagged tensor."
        )
        raise ValueError(msg)
    return values.view(len(lengths), int(lengths[0]))


def _text(name: str, values: list[Any], kinds: set[type]) -> list[Any]:
    if not kinds <= {str, type(None)}:
        odd = next(value for value in values if not isinstance(value, (str, type(None))))
        raise _make_unfit_error(name, str, odd)
    return values


def _integers(name: str, values: list[int], dtype: Any) -> torch.Tensor:
    if dtype is not None and dtype.is_floating_point:
        return _floats(name, values)
    try:
        return torch.from_numpy(np.fromiter(values, np.int64, len(values)))
    except OverflowError:
        large = next(value for value in values if value not in INT64)
        raise _make_unfit_error(name, torch.int64, large) from None


def _floats(name: str, values: Sequence[float]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(values, np.float64))
    except OverflowError:
        size = int(max(values, key=abs)).bit_length()
        raise _make_unfit_error(name, torch.float64, f"an integer of {size} bits") from None


def _lists(
    name: str, values: list[list[Any]], dtype: Any, *, ragged: bool
) -> torch.Tensor | None:
    flat = list(chain.from_iterable(values))
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if not flat:
        if dtype is None:
            return None  # lists of text, perhaps, as other rows may show
        empty = torch.empty(0, dtype=dtype, device="cpu")
        return _rows_of_lists(name, empty, lengths, ragged=ragged)
    kinds = set(map(type, flat))
    if not kinds <= {bool, int, float}:
        return None
    dense = _numbers(name, flat, kinds, dtype)
    return None if dense is None else _rows_of_lists(name, dense, lengths, ragged=ragged)


def _needs_all(kinds: set[type], values: list[Any]) -> bool:
    """Whether these values make a column in which nothing can stand for a missing one."""
    if kinds <= {bool, int, float, type(None)} or kinds == {dict, type(None)}:
        return True
    lists = [value for value in values if value]  # an empty one may be of text
    if kinds != {list, type(None)} or not lists:
        return False
    return _lists("", lists, torch.float64, ragged=True) is not None


def _is_number(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, (bool, int, float)) for item in value)
    return isinstance(value, (bool, int, float))


def _make_unknown_error(
    name: str, names: list[str], num_records: int, *, is_typed: bool
) -> ValueError:
    lacking = f"none of {num_records} records has it" if num_records > 1 else "it is not there"
    text = f"; text that is missing often needs its type there: {{{name!r}: str}}"
    return ValueError(
        f"Expected column {name!r}, but {lacking}; there are {names}. Write a value into the file, "
        f"or check columns={'' if is_typed else text}."
    )


def _make_missing_error(name: str, values: list[Any]) -> ValueError:
    count = sum(value is None for value in values)
    return ValueError(
        f"Expected a value of column {name!r} in every record, but it is null or missing in "
        f"{count} of {len(values)} read together. Leave the column out with columns=, write values "
        "into the file, or read lines with reader='text' and parse them in .map()."
    )


def _make_unfit_error(name: str, dtype: Any, value: Any) -> ValueError:
    got = value if isinstance(value, str) and value.startswith("an integer") else repr(value)
    return ValueError(
        f"Expected values of column {name!r} that fit {dtype if dtype is not str else 'str'}, "
        f"got {got[:100]}. Choose another type in columns={{{name!r}: ...}}, or leave it out."
    )
