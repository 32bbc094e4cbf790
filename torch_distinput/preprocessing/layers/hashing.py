"""Values into a fixed number of bins, by hash: of one column, or of several crossed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch

from torch_distinput.options import check_count
from torch_distinput.preprocessing.columns.tensors import Takes, require, to_integers
from torch_distinput.preprocessing.layers.encoding import encode
from torch_distinput.preprocessing.layers.layer import Layer, check_choice
from torch_distinput.preprocessing.strings.byte_rows import MISSING, to_bytes
from torch_distinput.preprocessing.strings.hashes.decimal_text import decimal_text
from torch_distinput.preprocessing.strings.hashes.farmhash import cross, fingerprint64
from torch_distinput.preprocessing.strings.hashes.words import choose_bucket
from torch_distinput.preprocessing.strings.oov_slots import choose_slots, parse_salt
from torch_distinput.preprocessing.strings.packed import (
    HostStrings,
    PaddedStrings,
    apply_in_blocks,
    apply_to_packed,
    check_strings,
    find_packed,
    flatten_nested,
    is_missing,
    nest,
)

_MODES = ("int", "one_hot", "multi_hot", "count")


@final
class Hashing(Layer):
    """The bin of each string or integer, by its hash (``keras.layers.Hashing``).

    Takes strings, packed ones, or :func:`pack_strings` of them, or integers, which count by their
    decimal text; of any shape. Gives int64 of the same shape, or float32 vectors
    (:func:`~torch_distinput.preprocessing.layers.encoding.encode`). The hash is FarmHash's
    Fingerprint64.

    Args:
        num_bins: how many bins there are, that of the mask included.
        mask_value: the string or integer that goes to bin 0, and nothing else does.
        salt: one or two integers that key another hash, SipHash, which nobody can aim at.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"`` or ``"count"``.
        missing: a string that is None is refused (``"error"``), or goes where ``mask_value`` does
            (``"mask"``).
    """

    takes: Takes = "any"

    def __init__(
        self,
        num_bins: int,
        mask_value: str | int | None = None,
        salt: int | Sequence[int] | None = None,
        output_mode: str = "int",
        *,
        missing: str = "error",
    ) -> None:
        """See the class."""
        self.num_bins = check_count("num_bins", num_bins, minimum=1)
        if type(mask_value) not in (str, int, type(None)):
            msg = f"mask_value must be a str or an int, got {mask_value!r:.60}."
            raise TypeError(msg)
        self.mask_value = mask_value
        self.salt = parse_salt(salt)
        self.output_mode = check_choice("output_mode", output_mode, _MODES)
        self.missing = check_choice("missing", missing, ("error", "mask"))
        if missing == "mask" and mask_value is None:
            msg = (
                "missing='mask' needs a mask_value, got None. Pass mask_value=, or leave missing= "
                "out."
            )
            raise ValueError(msg)
        super().__init__(
            num_bins=num_bins,
            mask_value=mask_value,
            salt=self.salt,
            output_mode=output_mode,
            missing=missing,
        )

    def forward(self, inputs: Any) -> torch.Tensor:
        """Find the bins of strings or integers."""
        inputs = self._fill_mask(inputs)
        if isinstance(inputs, PaddedStrings):
            bins = self._bin_strings(inputs)
        elif (column := find_packed(inputs)) is not None:
            bins = apply_to_packed(column, self._bin_strings)
        elif (strings := find_strings(inputs)) is not None:
            bins = apply_in_blocks(strings, self._bin_strings)
        else:
            numbers = to_integers(inputs, self)
            text = PaddedStrings(*decimal_text(numbers.reshape(-1)))
            masked = torch.zeros_like(numbers, dtype=torch.bool)
            if isinstance(self.mask_value, int):
                masked = torch.eq(numbers, self.mask_value)
            bins = self._bin(text, masked).reshape(numbers.shape)
        if self.output_mode == "int":
            return bins
        return encode(bins, self.output_mode, self.num_bins, dtype=torch.float32)

    def _bin_strings(self, strings: PaddedStrings) -> torch.Tensor:
        return self._bin(strings, self._are_masked(strings))

    def _bin(self, strings: PaddedStrings, masked: torch.Tensor) -> torch.Tensor:
        data, lengths = strings.rows()
        if self.missing == "error":
            require(lengths != MISSING, lambda: f"{self.describe()} got None. Fill it in.")
        if self.mask_value is None or self.num_bins == 1:
            bins = choose_slots(data, lengths, self.num_bins, self.salt)
        else:
            bins = choose_slots(data, lengths, self.num_bins - 1, self.salt) + 1
            bins = torch.where(masked.reshape(-1), 0, bins)
        return bins.reshape(strings.lengths.shape)

    def _fill_mask(self, inputs: Any) -> Any:
        """Put the mask, where it is an integer, in the place of None among integers.

        In a model that is NaN among float64, as ``Features.pack`` makes it. So are strings of
        which a batch has none.
        """
        if self.missing == "error":
            return inputs
        if not isinstance(self.mask_value, int):
            return self._as_strings(inputs)
        if isinstance(inputs, torch.Tensor) and inputs.dtype == torch.float64:
            filled = torch.where(inputs.isnan(), self.mask_value, inputs)
            is_exact = (filled == filled.trunc()) & (filled.abs() <= 2**53)
            require(is_exact, lambda: f"{self.describe()} takes integers up to 2**53 among NaN.")
            return filled.to(torch.int64)
        if isinstance(inputs, (PaddedStrings, torch.Tensor)) or find_packed(inputs) is not None:
            return inputs
        flat, shape = flatten_nested(inputs)
        is_text = any(isinstance(value, (str, bytes)) for value in flat)
        if is_text or not any(is_missing(value) or isinstance(value, float) for value in flat):
            return inputs
        return nest([self._fill(value) for value in flat], shape)

    def _as_strings(self, inputs: Any) -> Any:
        """Take a batch of NaN alone, or of nothing, for one of None: who made it saw no string."""
        if torch.compiler.is_compiling():
            return inputs
        floats = inputs
        if isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
            floats = inputs.to(torch.float64).numpy(force=True)  # NumPy has no bfloat16
        if not isinstance(floats, np.ndarray) or floats.dtype.kind != "f":
            return inputs
        return np.full(floats.shape, None, object) if np.isnan(floats).all() else inputs

    def _fill(self, value: Any) -> Any:
        """Beside NaN, NumPy and pandas make floats of integers."""
        if is_missing(value):
            return self.mask_value
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
        return int(value) if is_whole else value

    def _are_masked(self, strings: PaddedStrings) -> torch.Tensor:
        """Where the mask, or None, stands."""
        if not isinstance(self.mask_value, str):
            return strings.lengths == MISSING
        mask = to_bytes(self.mask_value)
        is_mask = strings.lengths == len(mask)
        if len(mask) > strings.data.shape[-1]:
            is_mask = torch.zeros_like(is_mask)
        elif mask:
            wanted = torch.tensor(list(mask), dtype=torch.uint8, device=strings.data.device)
            is_mask = is_mask & (strings.data[..., : len(mask)] == wanted).all(-1)
        return is_mask | (strings.lengths == MISSING)


@final
class HashedCrossing(Layer):
    """The bin of each combination of values of several columns (``keras.layers.HashedCrossing``).

    Takes a tuple or list of two or more columns of strings or integers, each ``(rows,)`` or
    ``(rows, 1)``; gives int64 of that shape, or float32 vectors with ``"one_hot"``. None is
    refused.

    Args:
        num_bins: how many bins there are.
        output_mode: ``"int"`` or ``"one_hot"``.
    """

    takes: Takes = "any"

    def __init__(self, num_bins: int, output_mode: str = "int") -> None:
        """See the class."""
        self.num_bins = check_count("num_bins", num_bins, minimum=1)
        self.output_mode = check_choice("output_mode", output_mode, ("int", "one_hot"))
        super().__init__(num_bins=num_bins, output_mode=output_mode)

    def forward(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Find the bins of rows of columns."""
        if not isinstance(inputs, (tuple, list)) or isinstance(inputs, PaddedStrings):
            msg = (
                f"{self.describe()} takes a tuple of columns, got {type(inputs).__name__}. Pass "
                'them together, as in layer((a, b)) or Features(x=(("a", "b"), layer)).'
            )
            raise TypeError(msg)
        columns = [self._hash(column) for column in inputs]
        shapes = [tuple(column.shape) for column in columns]
        if len(columns) < 2 or any(shape != shapes[0] for shape in shapes):
            msg = (
                f"{self.describe()} takes two or more columns of one shape, got {len(columns)} of "
                f"shapes {shapes}. Pass another column, or reshape these to one shape."
            )
            raise ValueError(msg)
        bins = choose_bucket(cross(columns), self.num_bins)
        if self.output_mode == "int":
            return bins
        return encode(bins, self.output_mode, self.num_bins, dtype=torch.float32)

    def _hash(self, column: Any) -> torch.Tensor:
        """The hash of each string, and integers as they are; int64 of their shape."""
        if isinstance(column, PaddedStrings):
            return self._hash_strings(column)
        if (packed := find_packed(column)) is not None:
            return apply_to_packed(packed, self._hash_strings)
        strings = find_strings(column)
        if strings is not None:
            return apply_in_blocks(strings, self._hash_strings)
        return to_integers(column, self)

    def _hash_strings(self, strings: PaddedStrings) -> torch.Tensor:
        data, lengths = strings.rows()
        require(lengths != MISSING, lambda: f"{self.describe()} got None. Fill it in.")
        return fingerprint64(data, lengths.clamp_min(0)).reshape(strings.lengths.shape)


def find_strings(values: Any) -> HostStrings | None:
    """Return host values that are strings, or nothing but None; None for any others."""
    if isinstance(values, torch.Tensor):
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind in "iubf":
        return None
    flat, shape = flatten_nested(values)
    if not all(isinstance(value, (str, bytes)) or is_missing(value) for value in flat):
        return None
    return check_strings(flat, shape)
