"""Map-style datasets of Hugging Face: columns for all indices at once, not a dict for each row.

``dataset[indices]`` is a dict of columns, from which ``__getitems__`` makes a dict for each row, to
be taken apart again when they are collated. The batch is the same, by whatever way:

    a tensor, or an array of numbers    is the leaf
    strings, or bytes                   are the leaf, a list
    numbers                             are stacked
    anything else                       is collated, value by value: also the error is the same
    a table (format "arrow")            becomes leaves as a Parquet file does
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import (
    NUMBERS,
    PLAIN_DTYPES,
    collate_examples,
    stack_values,
)
from torch_distinput.data.batch.tree import Batch, flatten_example
from torch_distinput.data.sources.indexed import ExampleFetch
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.plan.assignment.permutation import Indices

_MODULE = "datasets.arrow_dataset"


def gives_columns(dataset: Any) -> bool:
    """Whether it is a ``datasets.Dataset`` that is asked for rows in its own way."""
    methods = (getattr(type(dataset), name, None) for name in ("__getitem__", "__getitems__"))
    return all(getattr(method, "__module__", "") == _MODULE for method in methods)


@final
@dataclass(frozen=True, slots=True)
class TableFetch:
    """Batches of columns from a ``datasets.Dataset``, with any format or none."""

    dataset: Any

    def __call__(self, indices: Indices) -> Batch:
        """Return the rows at the indices."""
        wanted = indices.tolist()
        try:
            found = self.dataset[wanted]
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"examples {wanted[0]} to {wanted[-1]}") from error
        if isinstance(found, Mapping):
            count = len(wanted)
            batch: Batch = {name: _leaf(name, found[name], count) for name in found}
        elif hasattr(found, "combine_chunks"):
            batch = _leaves_of_table(found)
        else:  # a data frame
            return ExampleFetch(self.dataset, collate_examples)(indices)
        rows.check_row_count(batch, len(wanted))
        return batch

    def examples(self, indices: Indices) -> list[Any]:
        """Return the rows at the indices, not collated."""
        return ExampleFetch(self.dataset, collate_examples).examples(indices)


def _leaf(name: str, column: Any, count: int) -> Any:
    """What collating the values of a column makes of them."""
    if type(column) is torch.Tensor:
        if column.dim() and column.layout is torch.strided and not column.is_quantized:
            return column
    elif type(column) is np.ndarray:
        if column.ndim and column.dtype in PLAIN_DTYPES:
            return torch.from_numpy(column if column.flags.writeable else column.copy())
    elif type(column) is list:
        types = set(map(type, column))
        if types in ({str}, {bytes}):
            return column
        if types <= NUMBERS:
            return stack_values(f"example[{name!r}]", column)
    values: list[dict[Any, Any]] = [{name: column[row]} for row in range(count)]
    if not any(flatten_example(value)[0] for value in values):  # examples may have others
        values = [{**value, None: 0} for value in values]
    return collate_examples(values)[name]


def _leaves_of_table(table: Any) -> Batch:
    from torch_distinput.data.formats.arrow.columns import batch_columns  # noqa: PLC0415 - pyarrow

    (batch,) = table.combine_chunks().to_batches()
    try:
        return batch_columns(batch, "the dataset")
    except ConfigurationError as error:
        msg = f'{error} Or use with_format("torch") or "numpy", or select_columns().'
        raise ConfigurationError(msg) from error
