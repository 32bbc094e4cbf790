"""Collating rows of uneven length: padded to the longest of a replica's batch, or of the step.

Of rows of 2, 5 and 3 tokens, of which rank 0 gets two and rank 1 one::

    longest_of="replica"    rank 0 (2, 5)    rank 1 (1, 3)
    longest_of="step"       rank 0 (2, 5)    rank 1 (1, 5)

The longest of a step is known beforehand to all ranks, of a bucket over a source with an index. Of
what is read in order it travels with the votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.batch.tree import Batch
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.options import check_count

REPLICA, STEP = "replica", "step"
_LONGEST_OF = (REPLICA, STEP)
Fetch = TypeVar("Fetch")


def pad_collate(
    values: Mapping[str, float] | float = 0,
    *,
    multiple_of: int = 1,
    mask: str | None = None,
    longest_of: str = REPLICA,
) -> Callable[[list[Any]], Batch]:
    """Return a ``collate_fn`` that pads rows of uneven length to one length.

    An example is a dict, a tuple, or one sequence. A sequence is a tensor or array of shape
    ``(length, ...)``, or a list of numbers; it becomes a tensor ``(rows, longest, ...)``. What is
    not padded is collated as without it.

    Args:
        values: the columns of a dict to pad, each with the number that fills it up, such as
            ``{"input_ids": 0, "labels": -100}``; or one number, for all sequences of an example.
            Where all lists of a batch are empty, the number tells their dtype: 0 or 0.0.
        multiple_of: lengths are rounded up to a multiple, such as 8 for tensor cores.
        mask: the name of a column that is added to dicts: bool, ``(rows, longest)``, true where the
            first padded column has a token of its own.
        longest_of: ``"replica"``: rows are as long as the longest of this worker's part of the
            step. ``"step"``: of the whole step, over all its padded columns, so that shapes agree
            on all ranks that have rows; for streams and files, and for a :func:`bucket` over a
            source with an index, whose lengths are known.

    Raises:
        TypeError: if ``values`` are no numbers.
        ValueError: if ``longest_of`` is none of the two, ``multiple_of`` is below 1, or no column
            is named. A batch raises it if a column is missing, or its rows cannot be padded.
    """
    numbers = values.values() if isinstance(values, Mapping) else [values]
    if not all(isinstance(each, (int, float)) for each in numbers):
        msg = (
            'pad_collate expects a number, or numbers by column such as {"input_ids": 0}, got '
            f"{values!r}."
        )
        raise TypeError(msg)
    if isinstance(values, Mapping) and not values:
        msg = "pad_collate expects one column or more, got none. To pad nothing, leave it out."
        raise ConfigurationError(msg)
    if longest_of not in _LONGEST_OF:
        expected = " or ".join(map(repr, _LONGEST_OF))
        msg = f"pad_collate expects longest_of to be {expected}, got {longest_of!r}."
        raise ConfigurationError(msg)
    return PadCollate(
        values=dict(values) if isinstance(values, Mapping) else values,
        multiple_of=check_count("multiple_of", multiple_of, minimum=1),
        mask=mask,
        is_of_step=longest_of == STEP,
    )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PadCollate:
    """Pads and collates; made by :func:`pad_collate`. Picklable, for loader processes.

    Attributes:
        values: what fills up which columns; one number for all sequences.
        multiple_of: of which lengths are a multiple.
        mask: the name of the column that tells tokens from padding.
        is_of_step: rows are as long as the longest of the step, which is told beforehand.
        longest: of the step; None: that of the rows.
    """

    values: Mapping[str, float] | float
    multiple_of: int
    mask: str | None
    is_of_step: bool
    longest: int | None = None

    def __call__(self, examples: list[Any]) -> Batch:
        """Pad and collate."""
        if self.is_of_step and self.longest is None:
            msg = (
                'pad_collate(longest_of="step") expects to be told how long the longest row of the '
                "step is, but it was called without. Pass it to distribute_dataset as collate_fn "
                'itself, with a stream, with files or with a bucket(); or use longest_of="replica".'
            )
            raise ConfigurationError(msg)
        first = examples[0]
        if isinstance(first, Mapping):
            return self._collate_columns(examples)
        if self.mask is not None or isinstance(self.values, Mapping):
            msg = (
                "pad_collate expects examples that are dicts, for columns by name and mask=, got "
                f"{type(first).__name__}. Pass one number and no mask, or make dicts of them."
            )
            raise ConfigurationError(msg)
        if isinstance(first, tuple):
            columns = list(zip(*examples, strict=True))
            padded = [self._collate_column(f"example[{n}]", c) for n, c in enumerate(columns)]
            return type(first)(*padded) if hasattr(first, "_fields") else tuple(padded)
        return self._collate_column("example", examples)

    def told(self, longest: int) -> PadCollate:
        """The same for a step whose longest row is known."""
        return replace(self, is_of_step=True, longest=longest)

    def of_rows(self) -> PadCollate:
        """The same for rows by themselves, whatever the others of their step are."""
        return replace(self, is_of_step=False, longest=None)

    def list_fills(self, batch: Any) -> list[tuple[Any, float]]:
        """Each leaf of a batch that may be padded, and what fills it up."""
        if not isinstance(batch, Mapping):
            assert not isinstance(self.values, Mapping), "refused before"
            leaves = batch if isinstance(batch, tuple) else [batch]
            return [(leaf, self.values) for leaf in leaves if isinstance(leaf, int)]
        own = self.values if isinstance(self.values, Mapping) else dict.fromkeys(batch, self.values)
        fills = own if self.mask is None else {**own, self.mask: False}
        return [(batch[name], fill) for name, fill in fills.items() if isinstance(batch[name], int)]

    def _collate_columns(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        first = examples[0]
        if isinstance(self.values, Mapping):
            fills = self.values
        else:
            fills = {name: self.values for name, value in first.items() if _is_sequence(value)}
        for number, example in enumerate(examples):
            if missing := [name for name in fills if name not in example]:
                msg = (
                    f"pad_collate expects columns {', '.join(fills)} in each example, got "
                    f"{', '.join(map(str, example)) or 'none'} in example {number} of a batch. "
                    f"Leave {', '.join(missing)} out, or give each example all of them."
                )
                raise ConfigurationError(msg)
        plain = [{k: v for k, v in example.items() if k not in fills} for example in examples]
        batch = collate_examples(plain) if any(plain) else {}
        padded = {
            name: self._pad(name, [example[name] for example in examples], fill)
            for name, fill in fills.items()
        }
        columns = {name: padded.get(name, batch.get(name)) for name in first}
        if self.mask is not None:
            columns[self.mask] = self._make_mask(columns, padded, examples)
        return columns

    def _make_mask(
        self, columns: Mapping[str, Any], padded: Mapping[str, torch.Tensor], examples: Any
    ) -> torch.Tensor:
        assert self.mask is not None, "asked by the caller"
        if self.mask in columns or not padded:
            got = "one of that name" if padded else "no sequence in them"
            msg = (
                f"pad_collate expects to add a column {self.mask!r} to examples with a sequence, "
                f"got examples with {got}: {', '.join(map(str, columns))}."
            )
            raise ConfigurationError(msg)
        name, rows = next(iter(padded.items()))
        lengths = torch.tensor([len(example[name]) for example in examples], device=rows.device)
        return torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]

    def _collate_column(self, where: str, column: Sequence[Any]) -> Any:
        if not _is_sequence(column[0]):
            return collate_examples(column)
        assert not isinstance(self.values, Mapping), "refused before"
        return self._pad(where, column, self.values)

    def _pad(self, where: str, column: Sequence[Any], fill: float) -> torch.Tensor:
        """Rows of one column as a tensor."""
        tensors = [_as_tensor(where, row) for row in column]
        # A list without numbers does not tell their type. Where no other row does, the fill tells.
        has_type = [type(row) is not list or bool(row) for row in column]
        some = next(compress(tensors, has_type), torch.tensor(type(fill)(0)))
        pairs = zip(has_type, tensors, strict=True)
        tensors = [tensor if has else tensor.to(some.dtype) for has, tensor in pairs]
        kinds = {(tensor.dtype, tuple(tensor.shape[1:])) for tensor in tensors}
        if len(kinds) > 1:
            shown = ", ".join(sorted(f"{dtype} (length, *{shape})" for dtype, shape in kinds))
            msg = (
                f"pad_collate expects rows of one dtype that differ in their length alone, got "
                f"{shown} at {where}. Make them alike by a map, or in the dataset."
            )
            raise ValueError(msg)
        _check_fill(where, fill, tensors[0].dtype)
        width = self._find_width(where, max(map(len, tensors)))
        padded = pad_sequence(tensors, batch_first=True, padding_value=fill)
        if padded.shape[1] == width:
            return padded
        wider = padded.new_full((len(tensors), width, *padded.shape[2:]), fill)
        wider[:, : padded.shape[1]] = padded
        return wider

    def _find_width(self, where: str, longest: int) -> int:
        told = longest if self.longest is None else self.longest
        if longest > told:
            msg = (
                f"Expected rows of at most {told} at {where}, as length= of bucket() said of the "
                f"examples of this step, got one of {longest}. Let length= count what is padded."
            )
            raise SourceError(msg)
        return -(-told // self.multiple_of) * self.multiple_of


def told_longest(fetch: Fetch, longest: int) -> Fetch:
    """A fetch of examples by index, for a step whose longest row is known."""
    collate = getattr(fetch, "collate", None)
    assert isinstance(collate, PadCollate), "else nobody asks for the longest"
    return replace(fetch, collate=collate.told(longest))  # type: ignore[type-var]


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.ndim > 0
    return isinstance(value, list)


def _as_tensor(where: str, row: Any) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = (
            f"pad_collate expects tensors, arrays or lists of numbers, got a {type(row).__name__} "
            f"at {where}: {error}. Name the columns to pad: pad_collate({{'input_ids': 0}})."
        )
        raise ValueError(msg) from error
    if not tensor.ndim:
        msg = (
            f"pad_collate expects sequences, got a number at {where}. Leave it out of the columns "
            "to pad."
        )
        raise ValueError(msg)
    return tensor


def _check_fill(where: str, fill: float, dtype: torch.dtype) -> None:
    """Refuse a number that the dtype would change without a word."""
    if dtype.is_floating_point or dtype.is_complex:
        is_held = not math.isfinite(fill) or abs(fill) <= torch.finfo(dtype).max
    elif dtype is torch.bool:
        is_held = fill in (0, 1)
    else:
        bounds = torch.iinfo(dtype)
        is_held = bounds.min <= fill <= bounds.max and fill == int(fill)
    if not is_held:
        msg = (
            f"pad_collate expects a number that {dtype} holds to fill {where}, got {fill!r}. Use "
            "another, or another dtype."
        )
        raise ConfigurationError(msg)
