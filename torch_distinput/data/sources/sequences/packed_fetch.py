"""Batches of packed rows: the tokens of their documents, and what tells the documents apart.

tokens          5 6 7 | 8 9 | . .       documents 5 6 7 and 8 9 in a row of 7 tokens
labels          6 7 - | 9 - | - -       shifted: the next token, unless the document ends
labels          - 6 7 | - 9 | - -       not shifted: what a model shifts itself
position_ids    0 1 2 | 0 1 | 0 1       padding counts as a document of its own
document_ids    1 1 1 | 2 2 | 0 0
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.jagged import make_jagged
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.sources.sequences.documents import (
    DocumentReader,
    FlatDocuments,
    make_signed,
)
from torch_distinput.data.stream.chunk import Ids
from torch_distinput.data.user_sources.sequences.packing import (
    ERROR,
    JAGGED_ROWS,
    LABELS,
    MADE_COLUMNS,
    TOKENS,
    DocumentPacking,
)
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.plan.assignment.document_packing import PackedRows, RowLayout, count_up
from torch_distinput.plan.assignment.permutation import Indices

NO_LABEL = -100
"""What torch's losses and all models leave out."""


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedFetch:
    """Rows by index.

    Attributes:
        reader: reads documents.
        plan: which pieces of which documents are in each row.
        lengths: of all documents.
        order: the index by which each is read; None: its number.
        packing: what else was asked for.
        shared: the same numbers as tensors: loader processes that are spawned share their memory.
    """

    reader: DocumentReader
    plan: PackedRows
    lengths: Indices
    order: Indices | None
    packing: DocumentPacking
    shared: tuple[torch.Tensor, ...] = field(init=False)

    makes_batches = True  # in memory of their own

    def __post_init__(self) -> None:
        """Keep one set of tensors: each that is pickled anew would take memory of its own."""
        plan = self.plan
        order = () if self.order is None else (self.order,)
        arrays = (plan.first_pieces, plan.documents, plan.starts, plan.lengths, self.lengths)
        object.__setattr__(self, "shared", tuple(map(torch.from_numpy, (*arrays, *order))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the numbers, some 40 bytes for a document, as tensors."""
        return _open_shared, (self.reader, self.shared, self.packing)

    def __call__(self, indices: Indices) -> Batch:
        """Return the rows at the indices."""
        layout = self.plan.lay_out(indices)
        numbers, which = np.unique(layout.documents, return_inverse=True)
        read = self.reader.read(numbers if self.order is None else self.order[numbers])
        for name, column in zip(self.packing.columns, read, strict=True):
            check_lengths(self.lengths[numbers], column.lengths, numbers, column=name)
        pieces = [
            FlatDocuments(column.values, column.begins[which], column.lengths[which])
            for column in read
        ]
        return make_rows(layout, pieces, self.packing)

    def examples(self, indices: Indices) -> list[Any]:
        """Return the rows at the indices, each by itself."""
        return list(rows.iterate_rows(self(indices)))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The same, as a dataset is asked for examples."""
        return self.examples(np.array(indices, dtype=np.int64))


def _open_shared(
    reader: DocumentReader, shared: tuple[torch.Tensor, ...], packing: DocumentPacking
) -> PackedFetch:
    """The fetch in another process."""
    first_pieces, documents, starts, own, lengths, *rest = (each.numpy() for each in shared)
    order = rest[0] if rest else None
    plan = PackedRows(
        row_length=packing.row_length,
        first_pieces=first_pieces,
        documents=documents,
        starts=starts,
        lengths=own,
    )
    return PackedFetch(reader=reader, plan=plan, lengths=lengths, order=order, packing=packing)


def check_lengths(planned: Indices, got: Indices, ids: Ids, *, column: str | None) -> None:
    """Refuse documents that are not as long as their rows take them for.

    ``ids``: they name the documents. ``column``: what was read of them.

    Raises:
        SourceError: it names the first of them.
    """
    wrong = np.flatnonzero(planned != got)
    if len(wrong):
        first = wrong[0]
        where = "" if column is None else f" in column {column!r}"
        msg = (
            f"Expected {planned[first]} values{where} of document {ids[first].tolist()}, as many "
            "tokens as its row was planned with (document_lengths says how many, if given), got "
            f"{got[first]}. Let a document have as many tokens each time it is read, a label for "
            "each of them, and document_lengths count tokens."
        )
        raise SourceError(msg)


def refuse_long(lengths: Indices, packing: DocumentPacking, ids: Ids) -> None:
    """Refuse documents that are longer than a row, if that was asked for.

    ``ids``: they name the documents.

    Raises:
        ConfigurationError: a ValueError; it names the first of them.
    """
    longer = np.flatnonzero(lengths > packing.row_length)
    if packing.long_documents == ERROR and len(longer):
        first = longer[0]
        msg = (
            f"pack expects documents of at most length={packing.row_length} tokens with "
            f"long_documents={ERROR!r}, got {lengths[first]} tokens in document "
            f"{ids[first].tolist()}, and {len(longer)} of {len(lengths)} documents that are "
            'longer. Use a larger length, long_documents="split", or leave them out.'
        )
        raise ConfigurationError(msg)


def make_rows(layout: RowLayout, pieces: list[FlatDocuments], packing: DocumentPacking) -> Batch:
    """Make a batch of rows.

    Args:
        layout: which tokens of their documents the pieces are.
        pieces: for each column that is read, the document of each piece.
        packing: what was asked for.
    """
    within = count_up(layout.lengths)
    taken = [_take(*column, layout, within) for column in zip(pieces, packing.columns, strict=True)]
    tokens, targets = taken[0], taken[-1]
    if packing.shift_labels:
        labels = _shift(targets, layout, pieces[-1], packing.columns[-1])
    else:
        labels = _mark(targets, layout)
    numbers = np.repeat(layout.numbers.astype(np.int32), layout.lengths)
    spread = _Jagged(layout) if packing.layout == JAGGED_ROWS else _Dense(layout)
    leaves = (
        spread.lay(labels, NO_LABEL),
        spread.count(within),
        spread.lay(numbers, 0),
        spread.lay(labels != NO_LABEL, 0),
    )
    named = dict(zip(MADE_COLUMNS, leaves, strict=True))
    return {packing.tokens or TOKENS: spread.lay(tokens, packing.pad_id), **named}


def join_jagged(examples: Sequence[Mapping[str, torch.Tensor]], row_length: int) -> Batch:
    """Rows without padding, each by itself, as a batch of nested tensors."""
    filled = [len(row[LABELS]) for row in examples]
    offsets = torch.tensor([0, *itertools.accumulate(filled)], device="cpu")
    return {
        name: make_jagged(torch.cat([row[name] for row in examples]), offsets, row_length)
        for name in examples[0]
    }


def _take(
    pieces: FlatDocuments, column: str | None, layout: RowLayout, within: Indices
) -> Indices:
    """The values of pieces, one behind the other."""
    places = np.repeat(pieces.begins + layout.starts, layout.lengths)
    places += within
    return _to_int64(pieces.values[places], column)


def _to_int64(values: Any, column: str | None) -> Indices:
    found: Indices = make_signed(values, column).astype(np.int64, copy=False)
    return found


def _shift(
    values: Indices, layout: RowLayout, pieces: FlatDocuments, column: str | None
) -> Indices:
    """For each token the next one of its document, which may be in another row."""
    if not len(values):
        return values
    lasts = np.cumsum(layout.lengths) - 1
    after = layout.starts + layout.lengths
    goes_on = after < pieces.lengths
    nexts = pieces.begins + np.where(goes_on, after, 0)
    labels = np.roll(values, -1)
    labels[lasts] = np.where(goes_on, _to_int64(pieces.values[nexts], column), NO_LABEL)
    return labels


def _mark(values: Indices, layout: RowLayout) -> Indices:
    """Each token itself, but for those that begin a document, for a model that shifts."""
    labels = values.copy()
    labels[np.cumsum(layout.lengths) - layout.lengths] = NO_LABEL
    return labels


@final
class _Dense:
    """Rows with padding at their ends."""

    def __init__(self, layout: RowLayout) -> None:
        self._shape = (layout.num_rows, layout.row_length)
        self._space = np.arange(layout.row_length) - layout.filled[:, None]
        self._is_filled = self._space < 0
        self._is_full = bool((layout.filled == layout.row_length).all())

    def lay(self, values: Any, padding: int) -> torch.Tensor:
        """Put the values of all rows into them."""
        if self._is_full:
            return torch.from_numpy(values.reshape(self._shape))
        out = np.full(self._shape, padding, dtype=values.dtype)
        out[self._is_filled] = values
        return torch.from_numpy(out)

    def count(self, within: Indices) -> torch.Tensor:
        """Put in places in documents; padding is one more."""
        out = self._space
        out[self._is_filled] = within
        return torch.from_numpy(out)


@final
class _Jagged:
    """Rows without padding."""

    def __init__(self, layout: RowLayout) -> None:
        self._offsets = torch.from_numpy(np.append(0, np.cumsum(layout.filled)))
        self._longest = layout.row_length

    def lay(self, values: Any, padding: int) -> torch.Tensor:  # noqa: ARG002
        """The values of all rows as a nested tensor; torch pads its rows to one length if asked."""
        return make_jagged(torch.from_numpy(values), self._offsets, self._longest)

    def count(self, within: Indices) -> torch.Tensor:
        """The same for places in documents."""
        return self.lay(within, 0)
