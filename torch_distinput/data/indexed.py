"""Sources that answer by index: columns, map-style datasets, lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_distinput.data import rows
from torch_distinput.data.stream import Collate, source_error
from torch_distinput.data.structure import Batch, map_leaves
from torch_distinput.plan.permutation import Indices


@dataclass(frozen=True, slots=True)
class ColumnFetch:
    """Batches from columns: one ``index_select`` per tensor, no example ever made."""

    columns: Batch

    @staticmethod
    def of(columns: Batch) -> ColumnFetch:
        """Take a tree of tensors and arrays. None is copied: it may be a file mapped to memory."""
        return ColumnFetch(rows.with_shared_tensors(columns))

    @property
    def num_examples(self) -> int:
        """Rows of the columns. Raises ValueError where they differ."""
        return rows.num_rows(self.columns)

    def __call__(self, indices: Indices) -> Batch:
        """Return the rows at the indices."""
        return rows.with_tensors(rows.take_rows(self.columns, indices))

    def example(self, index: int) -> Any:
        """Return one row as an example."""
        row = rows.with_tensors(rows.slice_rows(self.columns, index, index + 1))
        return map_leaves(lambda column: column[0], row)


@dataclass(frozen=True, slots=True)
class ExampleFetch:
    """Batches from ``__getitems__``, or from ``__getitem__`` one by one, collated."""

    dataset: Any
    collate: Collate

    def __call__(self, indices: Indices) -> Batch:
        """Return the collated examples at the indices."""
        return rows.with_tensors(self.collate(self._examples(indices.tolist())))

    def _examples(self, indices: list[int]) -> list[Any]:
        many = getattr(self.dataset, "__getitems__", None)
        if many is None:
            return [self._example(index) for index in indices]
        try:
            return many(indices)  # type: ignore[no-any-return]
        except Exception as error:
            raise source_error(error, f"examples {indices[0]} to {indices[-1]}") from error

    def _example(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            raise source_error(error, f"example {index}") from error
