"""The border of tensor code: host values as tensors of the type that a layer computes in."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Literal, Protocol

import numpy as np
import torch

from torch_distinput.data.batch.collate import has_rounded
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.columns.collate import refuse_masks
from torch_distinput.preprocessing.strings.packed import (
    PaddedStrings,
    flatten_nested,
    is_missing,
    is_none,
    pack_strings,
)

MISSING_NUMBERS = ("error", "ignore")
_ROWS = (list, tuple, np.ndarray)

Takes = Literal["strings", "floats", "integers", "integers or NaN", "any"]
"""What a column is in a model: packed strings, float32 with NaN for None, int64, float64 with NaN
for None, or what its values are."""


class Owner(Protocol):
    """The layer that refuses values."""

    def describe(self) -> str:
        """Name it."""

    def get_config(self) -> dict[str, Any]:
        """Return its configuration."""


def require(holds: torch.Tensor, explain: Callable[[], str]) -> None:
    """Refuse values that a layer cannot take; inside an exported graph, where it runs.

    Raises:
        ValueError: in eager code; the graph raises a RuntimeError with the same words.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(holds.all(), explain())  # noqa: SLF001 - its only name
    elif not bool(holds.all()):
        raise ValueError(explain())


def convert(
    column: Any, takes: AbstractSet[Takes], owner: Owner, max_bytes: int | None
) -> torch.Tensor | PaddedStrings:
    """Return a column as a model takes it: of one type, whatever is in it.

    Args:
        column: host values, or what a model takes already.
        takes: what each of the layers of the column takes.
        owner: one of them, to be named in messages.
        max_bytes: of each packed string.
    """
    if isinstance(column, PaddedStrings):
        return column
    if "strings" in takes:
        return pack_strings(column, max_bytes)
    if takes == {"floats"}:
        return to_floats(column, owner, "ignore")
    if takes == {"integers"}:
        numbers, absent = to_numbers(column, owner)
        # NaN stays, and is refused where the model runs; a zero stands where None was.
        if absent is not None and absent.any() and (absent & ~numbers.isnan()).any():
            raise ValueError(_explain_gap(owner, "integers", absent.numpy()))
        return numbers
    if takes <= {"integers", "integers or NaN"}:
        return _fill_gaps(column, owner)
    return _convert_any(column, max_bytes, are_numbers=takes != {"any"})


def to_floats(values: Any, owner: Owner, missing: str = "error") -> torch.Tensor:
    """Return numbers as a float32 tensor; None becomes NaN with ``missing="ignore"``.

    Raises:
        TypeError: for what is not a number.
        ValueError: for None with ``missing="error"``, or lists of unequal lengths.
    """
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise TypeError(_explain_kind(owner, "numbers", f"a tensor of dtype {values.dtype}"))
        return values.to(torch.float32)
    array, absent = _to_array(values, owner, "numbers", is_none)
    if absent.any():
        if missing == "error":
            raise ValueError(_explain_gap(owner, "numbers", absent))
        array = np.where(absent, np.nan, array)
    return torch.from_numpy(_narrow(values, array))


def to_integers(values: Any, owner: Owner) -> torch.Tensor:
    """Return integers as an int64 tensor.

    Raises:
        TypeError: for what is not an integer.
        ValueError: for None, lists of unequal lengths, or what int64 cannot hold.
    """
    if isinstance(values, torch.Tensor):
        if values.is_floating_point() or values.is_complex():
            raise TypeError(_explain_kind(owner, "integers", f"a tensor of dtype {values.dtype}"))
        return _to_signed_tensor(values, owner)
    array, absent = _to_array(values, owner, "integers", is_none)
    if absent.any():
        raise ValueError(_explain_gap(owner, "integers", absent))
    if array.size and array.dtype.kind not in "iub":
        raise TypeError(_explain_kind(owner, "integers", f"an array of dtype {array.dtype}"))
    return torch.from_numpy(_to_signed(array, owner))


def to_numbers(values: Any, owner: Owner) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return numbers, int64 or floating, and where None or NaN stands; no mask if it cannot.

    Integers beside None stay exact: float64 holds them up to 2**53 only.

    Raises:
        TypeError: for what is not a number.
        ValueError: for lists of unequal lengths, or integers that int64 cannot hold.
    """
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise TypeError(_explain_kind(owner, "numbers", f"a tensor of dtype {values.dtype}"))
        if values.is_floating_point():
            return values, values.isnan()
        return _to_signed_tensor(values, owner), None
    array, absent = _to_array(values, owner, "numbers", is_missing)
    if array.dtype.kind == "f":
        _check_exact(values, array, owner)
        array = array.astype(np.float64)
        return torch.from_numpy(array), torch.from_numpy(np.asarray(absent | np.isnan(array)))
    return torch.from_numpy(_to_signed(array, owner)), torch.from_numpy(absent)


def _to_array(
    values: Any, owner: Owner, expected: str, is_gap: Callable[[Any], bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers, and where there is a gap between them: a zero stands there."""
    refuse_masks(values)
    try:
        array = np.asarray(values)
        if array.dtype == object and any(isinstance(v, _ROWS) for v in array.flat):
            array = np.asarray(array.tolist())  # rows that stand in an array, as of pandas
        absent = np.zeros(array.shape, bool)
        if array.dtype == object:
            absent = np.array(list(map(is_gap, array.flat)), bool).reshape(array.shape)
            array = _fill(array, absent) if absent.any() else _unbox(array)
            absent = absent if absent.any() else np.zeros(array.shape, bool)
    except ValueError as error:
        got = f"{values!r:.60} ({error})"
        msg = (
            f"{owner.describe()} takes {expected} in lists of equal lengths, got {got}. Pad the "
            "shorter ones."
        )
        raise ValueError(msg) from None
    if array.dtype == np.float64 and _were_integers(values, array):
        raise ValueError(_explain_too_large(owner, f", got {array.max():.0f}"))
    if array.dtype.kind not in "iufb":
        wide = " of at most 64 bits" if array.dtype == object else ""
        raise TypeError(_explain_kind(owner, expected + wide, f"{values!r:.60} ({array.dtype})"))
    return array, absent


def _were_integers(values: Any, array: np.ndarray) -> bool:
    """Whether NumPy has made floats of integers, as it does of large ones beside others."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return False
    if not (np.abs(array) >= 2.0**63).any():
        return False
    flat, _ = flatten_nested(values)
    return all(isinstance(value, (int, np.integer)) for value in flat)


def _check_exact(values: Any, array: np.ndarray, owner: Owner) -> None:
    """Refuse integers that became other numbers: in another batch they would be themselves."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return
    flat, _ = flatten_nested(values)
    if has_rounded(flat, array):
        largest = max((int(v) for v in flat if isinstance(v, (int, np.integer))), key=abs)
        msg = (
            f"{owner.describe()} takes integers up to 2**53 beside floats, which round them; got "
            f"{largest}. Convert the column to integers first."
        )
        raise ValueError(msg)


def _narrow(values: Any, array: np.ndarray) -> np.ndarray:
    """Round each number to float32 once: of large integers beside floats NumPy made float64."""
    with np.errstate(over="ignore"):  # becomes infinite, as in torch
        narrow: np.ndarray = array.astype(np.float32)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return narrow
        if array.dtype == np.float64 and (np.abs(array) >= 2.0**53).any():
            for place, value in enumerate(flatten_nested(values)[0]):
                if isinstance(value, (int, np.integer)):
                    narrow.flat[place] = np.asarray(value).astype(np.float32)
    return narrow


def _fill(array: np.ndarray, absent: np.ndarray) -> np.ndarray:
    present = np.array(array[~absent].tolist())
    filled = np.zeros(array.shape, present.dtype if present.size else np.int64)
    filled[~absent] = present
    return filled


def _unbox(array: np.ndarray) -> np.ndarray:
    return np.array(array.tolist()) if array.size else array.astype(np.int64)


def _to_signed(array: np.ndarray, owner: Owner) -> np.ndarray:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(_explain_too_large(owner, f", got {array.max()}"))
    return array.astype(np.int64)


def _to_signed_tensor(values: torch.Tensor, owner: Owner) -> torch.Tensor:
    signed = values.to(torch.int64)
    if values.dtype == torch.uint64:
        require(signed >= 0, lambda: _explain_too_large(owner, ""))
    return signed


def _explain_too_large(owner: Owner, got: str) -> str:
    return f"{owner.describe()} takes integers below 2**63{got}. Convert the column first."


def _explain_gap(owner: Owner, expected: str, absent: np.ndarray) -> str:
    config = owner.get_config()
    cure = ", or pass missing='ignore'" if expected == "numbers" and "missing" in config else ""
    cure = ", or pass missing='mask'" if "mask_value" in config else cure
    return (
        f"{owner.describe()} expected {expected}, got None {int(absent.sum())} times in "
        f"{absent.size} values. Fill them in{cure}."
    )


def _explain_kind(owner: Owner, expected: str, got: str) -> str:
    return f"{owner.describe()} takes {expected}, got {got}. Convert the column first."


def _fill_gaps(column: Any, owner: Owner) -> torch.Tensor:
    """Integers as float64, with NaN where there is none."""
    values, absent = to_numbers(column, owner)
    if absent is None:
        absent = torch.zeros_like(values, dtype=torch.bool)
    if not values.is_floating_point() and bool((values.abs() > 2**53).any()):
        msg = (
            f"{owner.describe()} takes integers up to 2**53 in a model where some may be missing, "
            f"as they are NaN among float64; got {int(values.abs().max())}. Fill None in first, "
            "and leave missing= out."
        )
        raise ValueError(msg)
    return torch.where(absent, torch.nan, values.to(torch.float64))


def _convert_any(
    column: Any, max_bytes: int | None, *, are_numbers: bool
) -> torch.Tensor | PaddedStrings:
    """Let the values say what a column is; without any, it is one of integers, or of strings."""
    if isinstance(column, torch.Tensor):
        return column
    if isinstance(column, PackedStrings):
        return pack_strings(column, max_bytes)
    refuse_masks(column)
    if hasattr(column, "__array__"):  # of pandas, polars or Arrow
        column = np.asarray(column)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iufb":
        return torch.from_numpy(np.array(column, column.dtype.newbyteorder("=")))
    flat, shape = flatten_nested(column)
    there = [value for value in flat if not is_none(value)]
    first = next((value for value in there if not is_missing(value)), None)
    # Batches have numbers in arrays, so a list of nothing is one of strings.
    if isinstance(first, (str, bytes)) or not (there or are_numbers):
        return pack_strings(column, max_bytes)
    # As NumPy types them, which the layers do on the host: torch's floats would be float32.
    kind = None if flat else np.int64
    numbers = np.array([np.nan if is_missing(value) else value for value in flat], kind)
    if has_rounded(there, numbers):
        msg = (
            "Expected integers up to 2**53 beside floats, and beside None, which is NaN among "
            f"float64 in a model; got {max(there, key=abs)}. Fill None in first."
        )
        raise ValueError(msg)
    return torch.from_numpy(numbers).reshape(shape)
