"""The tokens of documents by index, out of sources of any kind, as flat arrays.

source                                    is read as
a jagged tensor, bytes in PackedStrings   what it is: nothing is copied
a tensor or array of two dimensions       what it is, if it lies in one piece
a table of Hugging Face                   its Arrow column: no Python object for a token
a mixture                                 each of its sources by itself
anything else                             example by example
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, final

import numpy as np
import torch

from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.sources.indexed import ColumnFetch, ExampleFetch
from torch_distinput.data.sources.mixing.mixed_rows import (
    MixedFetch,
    find_sources,
    split_by_source,
)
from torch_distinput.data.sources.table import TableFetch
from torch_distinput.data.user_sources.sequences.packing import tell_of_labels
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.plan.assignment.document_packing import count_up
from torch_distinput.plan.assignment.permutation import Indices

ColumnNames = tuple[str | None, ...]
"""Names of columns; None stands for an example that is its tokens itself."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FlatDocuments:
    """One column of some documents.

    Attributes:
        values: ``(tokens,)`` whole numbers, of other documents too perhaps.
        begins: ``(documents,)``: where each begins.
        lengths: ``(documents,)``: how many tokens each has.
    """

    values: Any
    begins: Indices
    lengths: Indices

    def compact(self) -> FlatDocuments:
        """The same without the values of other documents."""
        if len(self.values) == self.lengths.sum():
            return self
        begins = np.cumsum(self.lengths) - self.lengths
        places = np.repeat(self.begins, self.lengths) + count_up(self.lengths)
        return FlatDocuments(self.values[places], begins, self.lengths)


class DocumentReader(Protocol):
    """Reads documents by index; may travel to a loader process."""

    def measure(self, wanted: Indices) -> Indices:
        """How many tokens documents have."""

    def read(self, wanted: Indices) -> tuple[FlatDocuments, ...]:
        """Read documents: for each column its values."""


def make_reader(fetch: Callable[[Indices], Batch], columns: ColumnNames) -> DocumentReader:
    """Find out how the documents of a source are read best.

    Raises:
        ConfigurationError: a ValueError; there is no such column, or it has no sequences of whole
            numbers.
    """
    if isinstance(fetch, MixedFetch):
        readers = tuple(make_reader(own, columns) for own in fetch.fetches)
        return _MixedReader(readers, fetch.firsts, columns)
    if isinstance(fetch, ColumnFetch):
        batch = fetch.structure.build([column.leaf for column in fetch.columns])
        tell_of_labels(batch, columns)
        return _LeafReader(tuple(_make_column(_pick(batch, name), name) for name in columns))
    if isinstance(fetch, TableFetch):
        if fetch.dataset.format["type"] == "custom":  # a transform of the user's makes the columns
            return _ExampleReader(ExampleFetch(fetch.dataset, collate_examples), columns)
        return _TableReader.of(fetch.dataset, columns)
    assert isinstance(fetch, ExampleFetch), "there is no other source with an index"
    return _ExampleReader(ExampleFetch(fetch.dataset, collate_examples), columns)


@final
@dataclass(frozen=True, slots=True)
class _LeafReader:
    """Columns that are in memory, or mapped to it."""

    columns: tuple[_FlatColumn | _ObjectColumn, ...]

    def measure(self, wanted: Indices) -> Indices:
        return self.columns[0].find(wanted).lengths

    def read(self, wanted: Indices) -> tuple[FlatDocuments, ...]:
        return tuple(column.find(wanted) for column in self.columns)


@final
@dataclass(frozen=True, slots=True)
class _FlatColumn:
    """All documents of a source, in tensors where it has tensors: processes share their memory.

    ``offsets``: where each begins, and the end.
    """

    values: Any
    offsets: Any

    def find(self, wanted: Indices) -> FlatDocuments:
        offsets = np.asarray(self.offsets)
        begins = offsets[wanted]
        return FlatDocuments(np.asarray(self.values), begins, offsets[wanted + 1] - begins)


@final
@dataclass(frozen=True, slots=True)
class _ObjectColumn:
    """An array of sequences."""

    leaf: Any
    name: str | None

    def find(self, wanted: Indices) -> FlatDocuments:
        return _join(self.leaf[wanted], self.name)


def _make_column(leaf: Any, name: str | None) -> _FlatColumn | _ObjectColumn:
    leaf = leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
    if getattr(leaf, "is_nested", False) and leaf.values().ndim == 1:
        column = _FlatColumn(leaf.values(), leaf.offsets())
    elif isinstance(leaf, PackedStrings) and leaf.dtype is bytes and leaf.missing is None:
        column = _FlatColumn(leaf.data, leaf.offsets)
    elif isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim == 2:
        ends = np.arange(len(leaf) + 1) * leaf.shape[1]
        column = _FlatColumn(leaf.reshape(-1), ends)
    elif isinstance(leaf, np.ndarray) and leaf.ndim == 1 and leaf.dtype == object:
        return _ObjectColumn(leaf, name)
    else:
        shape = f", shape {tuple(leaf.shape)}" if hasattr(leaf, "shape") else ""
        raise _make_no_tokens_error(name, f"a {type(leaf).__name__} of {leaf.dtype}{shape}")
    _check_whole(np.asarray(column.values[:0]), name)
    return column


@final
@dataclass(frozen=True, slots=True)
class _TableReader:
    """Columns of a ``datasets.Dataset``, as Arrow has them."""

    table: Any
    columns: ColumnNames

    @staticmethod
    def of(dataset: Any, columns: ColumnNames) -> _TableReader:
        names = dict.fromkeys(dataset.column_names)
        tell_of_labels(names, columns)
        for name in columns:
            _pick(names, name)
        return _TableReader(dataset.select_columns(list(columns)).with_format("arrow"), columns)

    def measure(self, wanted: Indices) -> Indices:
        return self._find(self._take(wanted), self.columns[0]).lengths

    def read(self, wanted: Indices) -> tuple[FlatDocuments, ...]:
        table = self._take(wanted)
        return tuple(self._find(table, name) for name in self.columns)

    def _take(self, wanted: Indices) -> Any:
        indices = wanted.tolist()
        is_range = bool((np.diff(wanted) == 1).all())
        try:
            return self.table[indices[0] : indices[-1] + 1] if is_range else self.table[indices]
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"examples {indices[0]} to {indices[-1]}") from error

    @staticmethod
    def _find(table: Any, name: str | None) -> FlatDocuments:
        column = table.column(name)
        if not hasattr(column.type, "value_type") or column.null_count:
            return _join(column.to_pylist(), name)
        lengths = np.concatenate([np.asarray(chunk.value_lengths()) for chunk in column.chunks])
        parts = [np.asarray(chunk.flatten()) for chunk in column.chunks]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)  # long ones: without a copy
        _check_whole(values, name)
        return FlatDocuments(values, np.cumsum(lengths) - lengths, lengths.astype(np.int64))


@final
@dataclass(frozen=True, slots=True)
class _ExampleReader:
    """Examples as the source has them."""

    fetch: ExampleFetch
    columns: ColumnNames

    def measure(self, wanted: Indices) -> Indices:
        name, examples = self.columns[0], self.fetch.examples(wanted)
        tell_of_labels(examples[0], self.columns)
        rows = [_pick(example, name) for example in examples]
        _join(rows[:1], name)  # refuses what are no tokens before the first step
        return np.array([_length_of(row, name) for row in rows], dtype=np.int64)

    def read(self, wanted: Indices) -> tuple[FlatDocuments, ...]:
        return read_examples(self.fetch.examples(wanted), self.columns)


def read_examples(examples: Sequence[Any], columns: ColumnNames) -> tuple[FlatDocuments, ...]:
    """Take documents out of examples: for each column its values.

    Raises:
        ConfigurationError: a ValueError; there is no such column, or it has no sequences of whole
            numbers.
    """
    tell_of_labels(examples[0], columns)
    return tuple(_join([_pick(example, name) for example in examples], name) for name in columns)


@final
@dataclass(frozen=True, slots=True)
class _MixedReader:
    """The sources of a mixture; ``firsts``: the index with which each begins."""

    readers: tuple[DocumentReader, ...]
    firsts: Indices
    columns: ColumnNames

    def measure(self, wanted: Indices) -> Indices:
        lengths = np.empty(len(wanted), dtype=np.int64)
        for number, own in self._split(wanted):
            lengths[own] = self.readers[number].measure(wanted[own] - self.firsts[number])
        return lengths

    def read(self, wanted: Indices) -> tuple[FlatDocuments, ...]:
        parts = [
            (own, self.readers[number].read(wanted[own] - self.firsts[number]))
            for number, own in self._split(wanted)
        ]
        order = np.argsort(np.concatenate([own for own, _ in parts]))
        columns = zip(*(columns for _, columns in parts), strict=True)
        return tuple(map(partial(_concat, order), columns, self.columns))

    def _split(self, wanted: Indices) -> list[tuple[int, Indices]]:
        return split_by_source(find_sources(wanted, self.firsts))


def _concat(
    order: Indices, parts: Sequence[FlatDocuments], name: str | None
) -> FlatDocuments:
    """The documents of several sources in one order."""
    parts = [part.compact() for part in parts]
    firsts = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
    begins = [part.begins + first for part, first in zip(parts, firsts, strict=False)]
    return FlatDocuments(
        np.concatenate([make_signed(part.values, name) for part in parts]),
        np.concatenate(begins)[order],
        np.concatenate([part.lengths for part in parts])[order],
    )


def _pick(example: Any, name: str | None) -> Any:
    """A column of columns, or of an example."""
    if name is None:
        return example
    if isinstance(example, Mapping) and name in example:
        return example[name]
    got = f"columns {', '.join(map(str, example))}" if isinstance(example, Mapping) else "no names"
    msg = (
        f"pack expects documents with a column {name!r}, got a source with {got}. Name the column "
        "by tokens=, or pass tokens=None if a document is a sequence of tokens itself."
    )
    raise ConfigurationError(msg)


def _join(rows: Sequence[Any], name: str | None) -> FlatDocuments:
    """Documents that are Python's sequences, tensors or arrays, one behind the other."""
    arrays = [_as_array(row, name) for row in rows]
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    values = np.concatenate(arrays)
    return FlatDocuments(values, np.cumsum(lengths) - lengths, lengths)


def _as_array(row: Any, name: str | None) -> Any:
    count = _length_of(row, name)
    if isinstance(row, (bytes, bytearray)):
        return np.frombuffer(row, dtype=np.uint8)
    array = np.asarray(row.detach().cpu() if isinstance(row, torch.Tensor) else row)
    if not count:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1:
        raise _make_no_tokens_error(name, f"one of shape {array.shape}")
    _check_whole(array, name)
    return make_signed(array, name)


def make_signed(values: Any, name: str | None) -> Any:
    """The same values, but those of uint64 as int64: with other types NumPy makes floats of them.

    Raises:
        ConfigurationError: a ValueError; one of them is no int64, and would wrap round.
    """
    if values.dtype != np.uint64:
        return values
    if len(values) and int(values.max()) > np.iinfo(np.int64).max:
        msg = (
            f"pack expects tokens below 2**63 in {_place(name)}, as batches have them in int64, "
            f"got {int(values.max())} in uint64. Give them smaller numbers, by a map for example; "
            "negative labels, such as -100, need a signed type."
        )
        raise ConfigurationError(msg)
    return values.astype(np.int64)


def _length_of(row: Any, name: str | None) -> int:
    is_sized = hasattr(row, "__len__") and getattr(row, "ndim", 1) > 0
    if isinstance(row, (str, Mapping)) or not is_sized:
        raise _make_no_tokens_error(name, f"a {type(row).__name__}")
    return len(row)


def _check_whole(values: Any, name: str | None) -> None:
    if values.dtype.kind not in "iu":
        raise _make_no_tokens_error(name, f"values of {values.dtype}")


def _make_no_tokens_error(name: str | None, got: str) -> ConfigurationError:
    msg = (
        f"pack expects a sequence of whole numbers in {_place(name)}, or bytes, got {got}. Turn "
        "text into tokens first, by a map for example."
    )
    return ConfigurationError(msg)


def _place(name: str | None) -> str:
    return "a document" if name is None else f"column {name!r}"
