"""How long examples are, or what they cost: the whole numbers that plans are made from.

    given as              examples with an index              rows that are read in order
    an array, a list      number i is that of example i       refused, as they have no index
    the name of a column  the column, in large pieces         that column of the rows
    a function            called once for each example        called once for each row

A column of whole numbers holds the lengths themselves. Of any other column each row counts by its
own length: ``"input_ids"`` by its tokens, a text by its characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np
import torch

from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.sources.table import TableFetch
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.plan.assignment.permutation import Indices

_BLOCK = 1024
"""Examples that are read at a time."""


def measure_examples(
    length: Length,
    fetch: Callable[[Indices], Any],
    num_examples: int,
    *,
    name: str = "length",
) -> Indices:
    """Return the length of each example of a source with an index.

    Args:
        length: an array, the name of a column, or a function of an example.
        fetch: the source's.
        num_examples: indices that it answers for.
        name: of the argument, for messages.

    Raises:
        ConfigurationError: a ValueError; lengths that are no whole numbers or too small, an array
            of another length than the source, or no such column.
        SourceError: the function, or the source, raised.
    """
    if isinstance(length, str):
        found = [_measure_column(length, fetch, block) for block in _blocks(num_examples)]
    elif callable(length):
        found = [_call_for_each(length, fetch, block, name) for block in _blocks(num_examples)]
    else:
        found = [_read_array(length, num_examples, name)]
    lengths = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    return _check(lengths, name)


def measure_rows(
    length: Length,
    examples: Sequence[Any],
    *,
    name: str = "length",
    first: int = 0,
) -> Indices:
    """Return the length of each of some rows of a stream; as :func:`measure_examples`.

    ``first``: the number of the first of them, for messages.
    """
    if isinstance(length, str):
        found = _as_integers([_pick(row, length) for row in examples])
        return _check(found, name, first)
    if callable(length):
        return _check(_call(length, examples, name, first), name, first)
    msg = (
        f"Expected {name} to be the name of a column or a function for rows that are read in "
        f"order, got {type(length).__name__}: they have no index to look them up by."
    )
    raise ConfigurationError(msg)


def digest_lengths(lengths: Indices) -> str:
    """Name lengths: ranks that have others would plan other steps."""
    return blake2b(lengths.tobytes(), digest_size=8).hexdigest()


def _blocks(num_examples: int) -> Iterator[Indices]:
    for first in range(0, num_examples, _BLOCK):
        yield np.arange(first, min(num_examples, first + _BLOCK))


def _read_array(length: Any, num_examples: int, name: str) -> Any:
    array = length.numpy(force=True) if isinstance(length, torch.Tensor) else np.asarray(length)
    if array.shape != (num_examples,):
        msg = (
            f"Expected {name} to have a whole number for each of {num_examples} examples, got an "
            f"array of shape {array.shape}. Pass the lengths of this source, in its order."
        )
        raise ConfigurationError(msg)
    return array


def _measure_column(column: str, fetch: Any, wanted: Indices) -> Any:
    if isinstance(fetch, ColumnFetch):
        return _measure_leaf(_pick(fetch(wanted), column))
    if isinstance(fetch, TableFetch):
        _pick(dict.fromkeys(fetch.dataset.column_names), column)  # refuses one that is not there
        found = fetch.dataset.select_columns([column]).with_format(None)[wanted.tolist()]
        return _measure_leaf(found[column])
    return _as_integers([_pick(example, column) for example in fetch.examples(wanted)])


def _pick(batch: Any, column: str) -> Any:
    if type(batch) is dict and column in batch:  # as nearly all
        return batch[column]
    if isinstance(batch, Mapping) and column in batch:
        return batch[column]
    names = f"columns {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else "no names"
    msg = f"Expected a column {column!r}, got a source with {names}. Name one, or pass a function."
    raise ConfigurationError(msg)


def _measure_leaf(leaf: Any) -> Any:
    """The whole numbers of a column, or the lengths of its rows."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return leaf.offsets().diff().numpy()  # type: ignore[attr-defined]
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        array = np.asarray(leaf)
        return array if array.ndim == 1 else np.full(len(array), array.shape[1])
    return _as_integers(leaf.to_list() if isinstance(leaf, PackedStrings) else list(leaf))


def _as_integers(values: Sequence[Any]) -> Any:
    return _as_array([_length_of(value) for value in values])


def _as_array(values: list[Any]) -> Any:
    """Numbers as an array: of integers, where they are nothing else, which need no second look."""
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:  # told by the name of the example
            pass
    return np.array(values, dtype=object)


def _length_of(value: Any) -> Any:
    """A number as it is; of anything else its length."""
    if type(value) is list:  # as nearly all
        return len(value)
    if getattr(value, "shape", None) == ():
        return value.item()
    return len(value) if hasattr(value, "__len__") else value


def _call_for_each(length: Callable[[Any], int], fetch: Any, wanted: Indices, name: str) -> Any:
    return _call(length, fetch.examples(wanted), name, first=int(wanted[0]))


def _call(
    length: Callable[[Any], int], examples: Sequence[Any], name: str, first: int = 0
) -> Any:
    found: list[Any] = []
    if length is len and examples:
        _refuse_columns(examples[0], name)
    try:
        found.extend(map(length, examples))
    except SourceError:
        raise
    except Exception as error:
        raise source_error(error, f"{name}= of example {first + len(found)}") from error
    return _as_array([value.item() if hasattr(value, "item") else value for value in found])


def _refuse_columns(example: Any, name: str) -> None:
    """Refuse the len of a dict or tuple with a column in it: it says how many there are."""
    if isinstance(example, Mapping):
        columns = list(example)
        cure = f"Name a column, such as {name}={columns[0]!r}" if columns else "Name a column"
    elif isinstance(example, tuple) and _are_columns(example):
        cure = f"Write {name}=lambda example: len(example[0])"
    else:
        return
    msg = (
        f"Expected {name} to measure an example, got len of a {type(example).__name__}, which is "
        f"its number of columns, {len(example)}. {cure}."
    )
    raise ConfigurationError(msg)


def _are_columns(values: tuple[Any, ...]) -> bool:
    """Whether they have names or rows; those of a tuple of tokens have neither."""
    kinds = (list, tuple, Mapping)
    return hasattr(values, "_fields") or any(
        isinstance(value, kinds) or getattr(value, "ndim", 0) > 0 for value in values
    )


def _check(lengths: Any, name: str, first: int = 0) -> Indices:
    """Refuse what is no whole number, or too small; name the first such example."""
    if np.issubdtype(lengths.dtype, np.integer):
        wrong = np.flatnonzero(lengths < 0)
    else:
        wrong = np.flatnonzero([not _is_whole(value) or value < 0 for value in lengths])
    if len(wrong):
        index = int(wrong[0])
        msg = (
            f"Expected {name} to give whole numbers from 0 on, got "
            f"{lengths.tolist()[index]!r} for example {first + index}. Give an int, such as "
            "len(tokens)."
        )
        raise ConfigurationError(msg)
    return _as_int64(lengths, name, first)


def _as_int64(lengths: Any, name: str, first: int) -> Indices:
    """Refuse what is too large to be one: an array would wrap round without a word."""
    if len(lengths) and int(lengths.max()) > np.iinfo(np.int64).max:
        worst = int(lengths.argmax())
        msg = (
            f"Expected {name} to give whole numbers below 2**63, got {int(lengths[worst])} for "
            f"example {first + worst}. Divide all of them by the same number."
        )
        raise ConfigurationError(msg)
    return np.asarray(lengths, dtype=np.int64)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
