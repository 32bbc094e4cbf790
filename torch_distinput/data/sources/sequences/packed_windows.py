"""Rows packed of windows of a stream: as many documents as a window has, each window by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from torch_distinput.data.batch.collate import CollateFn, collate_examples, collate_with
from torch_distinput.data.batch.rows import iterate_rows
from torch_distinput.data.sources.sequences.documents import FlatDocuments, read_examples
from torch_distinput.data.sources.sequences.lengths import digest_lengths
from torch_distinput.data.sources.sequences.packed_fetch import (
    check_lengths,
    join_jagged,
    make_rows,
    refuse_long,
)
from torch_distinput.data.sources.sequences.window_plan import MadeRows, RowPlan, WindowKey
from torch_distinput.data.stream.chunk import Ids
from torch_distinput.data.user_sources.sequences.packing import (
    DOCUMENT_IDS,
    JAGGED_ROWS,
    DocumentPacking,
)
from torch_distinput.plan.assignment.document_packing import PackedRows, pack_documents
from torch_distinput.plan.assignment.permutation import Indices

PACK = "pack"
"""The kind of place in packed rows of a stream."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PackingPlan(RowPlan):
    """Packs the documents of a window.

    Attributes:
        packing: what was asked for, without the source.
        collate_fn: the caller's, or None.
    """

    packing: DocumentPacking
    collate_fn: CollateFn | None

    @property
    def kind(self) -> str:
        """See :data:`PACK`."""
        return PACK

    @property
    def recipe(self) -> Mapping[str, Any]:
        """As of documents by index, but for their lengths, which are not known beforehand."""
        return {"length of a row": self.packing.row_length, "how": self.packing.how}

    def make_rows(self, examples: Sequence[Any], ids: Ids, key: WindowKey) -> MadeRows:  # noqa: ARG002
        """Plan the rows of a window, and keep its tokens."""
        columns = read_examples(examples, self.packing.columns)
        lengths = columns[0].lengths
        for name, column in zip(self.packing.columns[1:], columns[1:], strict=True):
            check_lengths(lengths, column.lengths, ids, column=name)
        refuse_long(lengths, self.packing, ids)
        plan = pack_documents(
            lengths, self.packing.row_length, how=self.packing.how, window=len(examples)
        )
        return PackedWindow(plan=plan, columns=columns, names=ids, packing=self.packing)

    def count_contents(self, examples: Sequence[Any]) -> Indices:
        """Documents are numbered from 1 on; padding has no number, and is at the end."""
        places = self.packing.row_length
        found = []
        for row in examples:
            numbers = row[DOCUMENT_IDS].numpy()
            num_tokens = np.count_nonzero(numbers)
            found.append((numbers[num_tokens - 1], num_tokens, places))
        return np.array(found, dtype=np.int64)

    def collate(self, examples: list[Any]) -> Any:
        """Do as the caller says; else put rows together in the layout that was asked for."""
        if self.collate_fn is not None:
            return collate_with(self.collate_fn, examples)
        if self.packing.layout == JAGGED_ROWS:
            return join_jagged(examples, self.packing.row_length)
        return collate_examples(examples)


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedWindow(MadeRows):
    """The rows of a window, made when they are asked for.

    Attributes:
        plan: which pieces of which documents are in each row.
        columns: their tokens, and labels if they have any.
        names: the ids of the documents.
        packing: what was asked for.
    """

    plan: PackedRows
    columns: tuple[FlatDocuments, ...]
    names: Ids
    packing: DocumentPacking

    @property
    def ids(self) -> Ids:
        """The id of the document with which each row begins, and the token: no two are alike."""
        firsts = self.plan.first_pieces[:-1]
        names = self.names.reshape(len(self.names), -1)[self.plan.documents[firsts]]
        return np.column_stack([names, self.plan.starts[firsts]])

    @property
    def digest(self) -> str:
        """Of the lengths of the documents."""
        return digest_lengths(self.columns[0].lengths)

    def take(self, start: int, stop: int) -> Sequence[Any]:
        """The rows from ``start`` to ``stop``."""
        layout = self.plan.lay_out(np.arange(start, stop))
        pieces = [
            FlatDocuments(
                column.values, column.begins[layout.documents], column.lengths[layout.documents]
            )
            for column in self.columns
        ]
        return list(iterate_rows(make_rows(layout, pieces, self.packing)))
