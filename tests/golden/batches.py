"""Records to batches and back, for the interpreter: what ``batch``, ``unbatch`` and kin do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import torch


def stacked(records: Sequence[Any]) -> Any:
    """One batch of records of equal shapes; strings become a list."""
    return _by_column(records, torch.stack)


def padded(records: Sequence[Any]) -> Any:
    """One batch of vectors, padded with zeros to the longest of them."""
    return _by_column(
        records, lambda column: torch.nn.utils.rnn.pad_sequence(column, batch_first=True)
    )


def jagged(records: Sequence[Any]) -> Any:
    """One batch of vectors of any lengths."""
    return _by_column(
        records, lambda column: torch.nested.nested_tensor(column, layout=torch.jagged)
    )


def _by_column(records: Sequence[Any], join: Callable[[list[torch.Tensor]], Any]) -> Any:
    first = records[0]
    if isinstance(first, tuple):
        return tuple(_by_column(column, join) for column in zip(*records, strict=True))
    if isinstance(first, dict):
        return {name: _by_column([record[name] for record in records], join) for name in first}
    return list(records) if isinstance(first, str) else join(list(records))


def rows(batch: Any) -> Iterator[Any]:
    """The records of a batch."""
    if isinstance(batch, tuple):
        return zip(*map(rows, batch), strict=True)
    if isinstance(batch, dict):
        columns = zip(*map(rows, batch.values()), strict=True)
        return (dict(zip(batch, column, strict=True)) for column in columns)
    return iter(batch)


def groups(records: Iterator[Any], size: int, *, drop_rest: bool) -> Iterator[list[Any]]:
    """Records in groups of one size; the last may be short, or is left out."""
    while group := list(islice(records, size)):
        if len(group) == size or not drop_rest:
            yield group


def cycled(records: Iterator[Any], sizes: Sequence[int], *, drop_rest: bool) -> Iterator[list[Any]]:
    """Records in groups of sizes that come round and round; groups of size zero are left out."""
    for size in filter(None, cycle(sizes)):
        group = list(islice(records, size))
        if not group or (drop_rest and len(group) < size):
            return
        yield group
