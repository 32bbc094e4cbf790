"""From documents to a source of packed rows: by index if they have one, else in windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from torch_distinput.data.sources.indexed import ExampleFetch
from torch_distinput.data.sources.sequences.documents import DocumentReader, make_reader
from torch_distinput.data.sources.sequences.lengths import digest_lengths, measure_examples
from torch_distinput.data.sources.sequences.packed_fetch import PackedFetch, refuse_long
from torch_distinput.data.sources.sequences.packed_windows import PackingPlan
from torch_distinput.data.sources.sequences.windowed_stream import in_windows
from torch_distinput.data.sources.source import IndexedSource, Request, Source, StreamSource
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.parts import parts_of
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.mixture import STEPS, Mixture
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.document_packing import PackedRows, pack_documents
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.random_generators import seeded_generators

_log = logging.getLogger(__name__)
_BLOCK = 1024
"""Documents that are read at a time to count their tokens."""


def open_packing(
    packing: DocumentPacking, request: Request, open_source: Callable[[Any, Request], Source]
) -> Source:
    """Open the documents, count their tokens, and plan rows of them.

    ``open_source``: opens the source of the documents.

    Raises:
        TypeError: it is no source.
        ConfigurationError: it cannot be packed, or does not fit the request.
        SourceError: it raised.
    """
    _refuse_recipes(packing.source)
    _refuse_steps(packing.source)
    own = replace(request, shuffle=False, drop_last=False, collate_fn=None)
    documents = open_source(packing.source, own)
    if isinstance(documents, IndexedSource):
        return _pack_indexed(packing, documents, request)
    if request.shuffle:  # here it is documents that come in another order: there is none of rows
        documents = open_source(packing.source, replace(own, shuffle=True))
    assert isinstance(documents, StreamSource), "there is a batch size, and no DataLoader"
    return _pack_stream(packing, documents, request)


def _pack_indexed(
    packing: DocumentPacking, documents: IndexedSource, request: Request
) -> IndexedSource:
    reader = make_reader(documents.fetch, packing.columns)
    order = _find_order(documents)
    # A dataset may give no example before it was told an epoch.
    with AtEpoch(documents.dataset, 0), seeded_generators():
        lengths = _find_lengths(packing, documents, reader, order)
    refuse_long(lengths, packing, np.arange(len(lengths)))
    plan = pack_documents(lengths, packing.row_length, how=packing.how, window=packing.window)
    _say_waste(packing, lengths, plan)
    fetch = PackedFetch(
        reader=reader,
        plan=plan,
        lengths=lengths,
        order=order,
        packing=replace(packing, source=None),  # the reader has what is read of it
    )
    collate = request.collate_fn
    return IndexedSource(
        name=repr(packing),
        fetch=fetch if collate is None else ExampleFetch(fetch, collate),
        num_examples=plan.num_rows,
        request=request,
        loader=request.loader_for(packing),
        inner_sources=(documents,),
        facts=_describe(packing, documents.facts, lengths),
        packed_contents=plan.count_contents(),
    )


def _find_order(documents: IndexedSource) -> Indices | None:
    """The indices of a mixture in their order; None for 0, 1, 2, ..."""
    if documents.mixture is None:
        return None
    order = documents.make_order(0, 0)
    return order.take_range(0, order.num_examples)


def _find_lengths(
    packing: DocumentPacking,
    documents: IndexedSource,
    reader: DocumentReader,
    order: Indices | None,
) -> Indices:
    """The length of each document, in order."""
    count = documents.num_indices
    assert count is not None, "only a DataLoader has none"
    if packing.document_lengths is not None:
        found = measure_examples(
            packing.document_lengths, documents.fetch, count, name="document_lengths"
        )
        return found if order is None else found[order]
    wanted = np.arange(count) if order is None else order
    blocks = [wanted[first : first + _BLOCK] for first in range(0, len(wanted), _BLOCK)]
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *map(reader.measure, blocks)])


def _refuse_recipes(source: Any) -> None:
    """Refuse what has made rows, or an order, for global batches."""
    for part in parts_of(source):
        if isinstance(part, (Buckets, DocumentPacking)):
            msg = (
                f"pack expects documents, got {part!r}, which has made rows, or an order, for "
                "global batches. Pack the documents themselves, once."
            )
            raise ConfigurationError(msg)


def _refuse_steps(source: Any) -> None:
    """A step takes rows, which are made of more documents or fewer."""
    if isinstance(source, Mixture) and source.unit == STEPS and len(source.points) > 1:
        msg = (
            "Expected a schedule in examples in a mixture that is packed, got steps, whose rows "
            'have no fixed number of documents. Use unit="examples": those are documents.'
        )
        raise ConfigurationError(msg)


def _pack_stream(packing: DocumentPacking, source: StreamSource, request: Request) -> StreamSource:
    if packing.document_lengths is not None:
        msg = (
            "pack expects document_lengths for documents with an index, got them for "
            f"{source.name}, which is read in order, window by window. Leave them out: its "
            "documents are counted when they are read."
        )
        raise ConfigurationError(msg)
    plan = PackingPlan(packing=replace(packing, source=None), collate_fn=request.collate_fn)
    rows = in_windows(source, plan, packing.window, name=repr(packing), words="packed")
    return replace(rows, request=request)


def _say_waste(packing: DocumentPacking, lengths: Indices, plan: PackedRows) -> None:
    """Nothing is left out, but rows have padding, and documents are cut."""
    pieces = np.bincount(plan.documents, minlength=len(lengths))
    _log.info(
        "%s (%s): %d documents in %d rows, %.2f %% of them padding; %d documents are cut, %d have "
        "no tokens",
        packing,
        packing.how,
        len(lengths),
        plan.num_rows,
        100 * plan.waste,
        int((pieces > 1).sum()),
        int((lengths == 0).sum()),
    )


def _describe(
    packing: DocumentPacking, facts: Mapping[str, Any], lengths: Indices
) -> dict[str, Any]:
    """What decides the rows: of a state, and compared between workers."""
    described = {
        "length of a row": packing.row_length,
        "how rows are packed": packing.how,
        "window of documents": packing.window,
        "lengths of documents": digest_lengths(lengths),
    }
    return {**facts, **described}
