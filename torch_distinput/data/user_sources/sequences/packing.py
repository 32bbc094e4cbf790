"""Documents packed into rows of one length, as a user writes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count, check_flag
from torch_distinput.plan.assignment.document_packing import BEST_FIT, WAYS_TO_PACK

_log = logging.getLogger(__name__)
SPLIT, ERROR = "split", "error"
DENSE_ROWS, JAGGED_ROWS = "dense", "jagged"
TOKENS, LABELS, DOCUMENT_IDS = "input_ids", "labels", "document_ids"
LOSS_MASK = "loss_mask"
MADE_COLUMNS = (LABELS, "position_ids", DOCUMENT_IDS, LOSS_MASK)
"""The columns of packed rows beside their tokens."""
_SMALLEST_ID, _LARGEST_ID = -(2**63), 2**63 - 1


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentPacking:
    """A source of documents, and how they are packed; made by :func:`pack`.

    Attributes:
        source: gives the documents.
        row_length: tokens of a row.
        tokens: the column of a document's tokens; None: the document is its tokens.
        labels: the column of its labels; None: its tokens.
        document_lengths: where its length comes from; None: from its tokens.
        how: what a row is made of.
        window: documents that are packed together.
        long_documents: what becomes of those that are longer than a row.
        shift_labels: whether a label is of the next token.
        pad_id: the token of padding.
        layout: of the leaves of a batch.
    """

    source: Any
    row_length: int
    tokens: str | None
    labels: str | None
    document_lengths: Any
    how: str
    window: int
    long_documents: str
    shift_labels: bool
    pad_id: int
    layout: str

    def __repr__(self) -> str:
        """Show what is packed by its class: it may be large."""
        return f"pack({type(self.source).__name__}, length={self.row_length})"

    @property
    def columns(self) -> tuple[str | None, ...]:
        """The columns that are read."""
        return (self.tokens,) if self.labels is None else (self.tokens, self.labels)


def pack(
    source: Any,
    *,
    length: int,
    tokens: str | None = TOKENS,
    labels: str | None = None,
    document_lengths: str
    | Callable[[Any], int]
    | Sequence[int]
    | np.ndarray[Any, Any]
    | torch.Tensor
    | None = None,
    how: str = BEST_FIT,
    window: int = 1_000,
    long_documents: str = SPLIT,
    shift_labels: bool = True,
    pad_id: int = 0,
    layout: str = DENSE_ROWS,
) -> DocumentPacking:
    """Pack documents of many lengths into rows of one.

    A source like any other, whose examples are rows: to be passed to ``distribute_dataset``, with a
    ``global_batch_size`` in rows, or to :func:`mix`. Each token of each document comes once an
    epoch. ``shuffle=True`` of ``distribute_dataset`` shuffles rows; of a FileDataset, its files.

    A batch is a dict of tensors of shape ``(rows, length)``: the tokens (int64) under the name of
    their column, ``labels`` (int64; -100 where there is none), ``position_ids`` (int64; from 0 in
    each document and in padding), ``document_ids`` (int32; 1, 2, ... in each row, 0 in padding) and
    ``loss_mask`` (bool; where there is a label). Other columns of the source are left out; a log
    line says so of its labels and its loss mask.

    Args:
        source: documents: a dict of columns, a list, a dataset, a stream, a FileDataset, a mixture.
        length: tokens of a row.
        tokens: the column of whole numbers that a document's tokens are, or of ``bytes``; None: a
            document is a sequence of tokens itself.
        labels: the column of its labels, one for each token, -100 where there is to be no loss;
            None: the tokens.
        document_lengths: of documents with an index, how many tokens each has: an array, the name
            of a column or a function of an example. None: each document is read once to count its
            tokens, unless their number is known without.
        how: ``"best_fit"``: a document that fits into a row is whole, and each goes into the row in
            which it leaves least space. ``"concatenate"``: one document behind the other, cut where
            a row is full; nothing but the last row is padded, or of a stream that of each window.
        window: documents that are packed together for the best fit; of a stream, which is read
            window by window, in any case.
        long_documents: longer than a row: ``"split"`` cuts them into whole rows and a rest,
            ``"error"`` refuses them.
        shift_labels: True: the label of a token is the next one of its document, also where that is
            in another row, and the last token has none. False: each token is its own label, but
            the first of a document in a row has none, as models of Hugging Face expect, which shift
            labels themselves.
        pad_id: the token of padding.
        layout: ``"dense"``, or ``"jagged"``: nested tensors, whose rows have no padding.

    Raises:
        TypeError: if a size is no whole number.
        ValueError: if a size is too small, or one of the words is none of those above.
    """
    _check_word("how", how, WAYS_TO_PACK)
    _check_word("long_documents", long_documents, (SPLIT, ERROR))
    _check_word("layout", layout, (DENSE_ROWS, JAGGED_ROWS))
    _check_columns(tokens, labels)
    return DocumentPacking(
        source=source,
        row_length=check_count("length", length, minimum=1),
        tokens=tokens,
        labels=labels,
        document_lengths=document_lengths,
        how=how,
        window=check_count("window", window, minimum=1),
        long_documents=long_documents,
        shift_labels=check_flag("shift_labels", shift_labels),
        pad_id=_check_pad_id(pad_id),
        layout=layout,
    )


def _check_pad_id(pad_id: object) -> int:
    checked = check_count("pad_id", pad_id, minimum=_SMALLEST_ID)
    if checked > _LARGEST_ID:
        msg = f"pack expects a pad_id that an int64 holds, got {checked}. Choose another."
        raise ConfigurationError(msg)
    return checked


def _check_word(name: str, word: object, words: tuple[str, ...]) -> None:
    if word not in words:
        msg = f"pack expects {name} to be {' or '.join(map(repr, words))}, got {word!r}."
        raise ConfigurationError(msg)


def _check_columns(tokens: str | None, labels: str | None) -> None:
    """Refuse names that are none, or those of what is made beside the tokens."""
    for name, column in (("tokens", tokens), ("labels", labels)):
        if column is not None and not isinstance(column, str):
            msg = f"pack expects {name} to be the name of a column or None, got {column!r}."
            raise TypeError(msg)
    if tokens in MADE_COLUMNS:
        msg = (
            f"pack expects tokens in a column of another name, got {tokens!r}: rows have "
            f"{', '.join(MADE_COLUMNS)} of their own. Rename the column."
        )
        raise ConfigurationError(msg)
    if labels is not None and (tokens is None or labels == tokens):
        msg = (
            f"pack expects labels in a column beside that of the tokens, got labels={labels!r} and "
            f"tokens={tokens!r}. Name both, or leave labels out: they are the tokens then."
        )
        raise ConfigurationError(msg)


def tell_of_labels(document: Any, columns: tuple[str | None, ...]) -> None:
    """Say that labels are made of the tokens, where documents have some of their own.

    Args:
        document: one of them, or all by columns.
        columns: those that are read.
    """
    if isinstance(document, Mapping) and len(columns) == 1:
        for name in (LABELS, LOSS_MASK):
            if name in document:
                _warn_of_labels(name)
                return


@lru_cache
def _warn_of_labels(name: str) -> None:
    """Say it once."""
    _log.warning(
        "pack makes labels of the tokens, and leaves out the %r of its source. If some tokens are "
        "not to be trained on, as those of a prompt, pass labels= with the name of a column that "
        "has -100 there; if all are, leave %r out of the source.",
        name,
        name,
    )
