"""What packed rows of a stream are filled with: counted where rows are finished."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_distinput.data.batch.mixed import MixedRows
from torch_distinput.data.sources.indexed import IndexedStream
from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.sources.sequences.window_plan import RowPlan
from torch_distinput.data.sources.sequences.windowed_stream import WindowedStream
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.plan.assignment.permutation import Indices


def count_packed(stream: Stream, data: Any) -> Indices | None:
    """Count what rows are filled with; None unless all rows of the stream are packed.

    ``data``: the rows, as the stream hands them over.

    Returns:
        ``(rows, 3)``: of each row its documents, tokens and places, in some order.
    """
    return _count(stream, data) if _is_packed(stream) else None


def _is_packed(stream: Stream) -> bool:
    if isinstance(stream, MixedStream):
        return all(map(_is_packed, stream.streams))
    if isinstance(stream, IndexedStream):
        return stream.packed_contents is not None
    if not isinstance(stream, WindowedStream):
        return False
    return isinstance(stream.plan, RowPlan) or _is_packed(stream.inner)  # bucketed rows, perhaps


def _count(stream: Stream, data: Any) -> Indices:
    if isinstance(stream, MixedStream):
        assert isinstance(data, MixedRows), "made by its reader"
        pairs = zip(stream.streams, data.parts, strict=True)
        return np.concatenate([_count(own, part) for own, part in pairs if part is not None])
    if isinstance(stream, IndexedStream):
        assert stream.packed_contents is not None, "asked before"
        contents: Indices = stream.packed_contents[data]
        return contents
    assert isinstance(stream, WindowedStream), "asked before"
    if isinstance(stream.plan, RowPlan):
        return stream.plan.count_contents(data)
    return _count(stream.inner, data)
