"""Numbers at the border of tensor code: host values as tensors of the type a layer computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_distinput.preprocessing.adapt.columns import has_rounded
from torch_distinput.preprocessing.layers.layer import Layer, require
from torch_distinput.preprocessing.strings.packed import flattened

MISSING_NUMBERS = ("error", "ignore")


def check_missing(missing: str, allowed: tuple[str, ...]) -> str:
    """Return the policy for values that are not there, or refuse it."""
    if missing not in allowed:
        msg = f"Expected missing to be one of {', '.join(map(repr, allowed))}, got {missing!r}."
        raise ValueError(msg)
    return missing


def float_tensor(values: Any, layer: Layer, missing: str = "error") -> torch.Tensor:
    """Return numbers as a float32 tensor; None becomes NaN with ``missing="ignore"``.

    Raises:
        TypeError: for what is not a number.
        ValueError: for None with ``missing="error"``, or lists of unequal lengths.
    """
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise TypeError(_refusal(layer, "numbers", f"a tensor of dtype {values.dtype}"))
        return values.to(torch.float32)
    array, absent = _array(values, layer, "numbers", _is_none)
    if absent.any():
        if missing == "error":
            raise ValueError(_gap(layer, "numbers", absent))
        array = np.where(absent, np.nan, array)
    with np.errstate(over="ignore"):  # becomes infinite, as in torch
        return torch.from_numpy(array.astype(np.float32))


def integer_tensor(values: Any, layer: Layer) -> torch.Tensor:
    """Return integers as an int64 tensor.

    Raises:
        TypeError: for what is not an integer.
        ValueError: for None, lists of unequal lengths, or what int64 cannot hold.
    """
    if isinstance(values, torch.Tensor):
        if values.is_floating_point() or values.is_complex():
            raise TypeError(_refusal(layer, "integers", f"a tensor of dtype {values.dtype}"))
        return _signed_tensor(values, layer)
    array, absent = _array(values, layer, "integers", _is_none)
    if absent.any():
        raise ValueError(_gap(layer, "integers", absent))
    if array.size and array.dtype.kind not in "iub":
        raise TypeError(_refusal(layer, "integers", f"an array of dtype {array.dtype}"))
    return torch.from_numpy(_signed(array, layer))


def number_tensor(values: Any, layer: Layer) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return numbers, int64 or floating, and where None or NaN stands; no mask if it cannot.

    Integers beside None stay exact: float64 holds them up to 2**53 only.

    Raises:
        TypeError: for what is not a number.
        ValueError: for lists of unequal lengths, or integers that int64 cannot hold.
    """
    if isinstance(values, torch.Tensor):
        if values.is_complex():
            raise TypeError(_refusal(layer, "numbers", f"a tensor of dtype {values.dtype}"))
        if values.is_floating_point():
            return values, values.isnan()
        return _signed_tensor(values, layer), None
    array, absent = _array(values, layer, "numbers", _is_gap)
    if array.dtype.kind == "f":
        _check_exact(values, array, layer)
        array = array.astype(np.float64)
        return torch.from_numpy(array), torch.from_numpy(absent | np.isnan(array))
    return torch.from_numpy(_signed(array, layer)), torch.from_numpy(absent)


def _array(
    values: Any, layer: Layer, expected: str, is_gap: Callable[[Any], bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers, and where there is a gap between them: a zero stands there."""
    try:
        array = np.asarray(values)
        absent = np.zeros(array.shape, bool)
        if array.dtype == object:
            absent = np.array(list(map(is_gap, array.flat)), bool).reshape(array.shape)
            array = _filled(array, absent) if absent.any() else _unboxed(array)
            absent = absent if absent.any() else np.zeros(array.shape, bool)
    except ValueError as error:
        got = f"{values!r:.60} ({error})"
        msg = f"{layer.described()} takes {expected} in lists of equal lengths, got {got}."
        raise ValueError(msg) from None
    if array.dtype == np.float64 and isinstance(values, list) and _were_integers(values, array):
        raise ValueError(_too_large(layer, f", got {array.max():.0f}"))
    if array.dtype.kind not in "iufb":
        wide = " of at most 64 bits" if array.dtype == object else ""
        raise TypeError(_refusal(layer, expected + wide, f"{values!r:.60} ({array.dtype})"))
    return array, absent


def _were_integers(values: list[Any], array: np.ndarray) -> bool:
    """Whether NumPy has made floats of integers, as it does of large ones beside others."""
    if not (np.abs(array) >= 2.0**63).any():
        return False
    flat, _ = flattened(values)
    return all(isinstance(value, (int, np.integer)) for value in flat)


def _check_exact(values: Any, array: np.ndarray, layer: Layer) -> None:
    """Refuse integers that became other numbers: in another batch they would be themselves."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return
    flat, _ = flattened(values)
    if has_rounded(flat, array):
        largest = max((int(v) for v in flat if isinstance(v, (int, np.integer))), key=abs)
        msg = (
            f"{layer.described()} takes integers up to 2**53 beside floats, which round them; got "
            f"{largest}. Convert the column to integers first."
        )
        raise ValueError(msg)


def _filled(array: np.ndarray, absent: np.ndarray) -> np.ndarray:
    present = np.array(array[~absent].tolist())
    filled = np.zeros(array.shape, present.dtype if present.size else np.int64)
    filled[~absent] = present
    return filled


def _unboxed(array: np.ndarray) -> np.ndarray:
    return np.array(array.tolist()) if array.size else array.astype(np.int64)


def _is_none(value: Any) -> bool:
    return value is None


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))


def _signed(array: np.ndarray, layer: Layer) -> np.ndarray:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(_too_large(layer, f", got {array.max()}"))
    return array.astype(np.int64)


def _signed_tensor(values: torch.Tensor, layer: Layer) -> torch.Tensor:
    signed = values.to(torch.int64)
    if values.dtype == torch.uint64:
        require(signed >= 0, lambda: _too_large(layer, ""))
    return signed


def _too_large(layer: Layer, got: str) -> str:
    return f"{layer.described()} takes integers below 2**63{got}. Convert the column first."


def _gap(layer: Layer, expected: str, absent: np.ndarray) -> str:
    config = layer.get_config()
    cure = ", or pass missing='ignore'" if expected == "numbers" and "missing" in config else ""
    cure = ", or pass missing='mask'" if "mask_value" in config else cure
    return (
        f"{layer.described()} expected {expected}, got None {int(absent.sum())} times in "
        f"{absent.size} values. Fill them in{cure}."
    )


def _refusal(layer: Layer, expected: str, got: str) -> str:
    return f"{layer.described()} takes {expected}, got {got}. Convert the column first."
