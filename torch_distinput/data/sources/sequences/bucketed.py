"""From buckets to a source that can be read: an order of indices, or windows of a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from torch_distinput.data.sources.classify import SourceKind, classify
from torch_distinput.data.sources.sequences.lengths import measure_rows
from torch_distinput.data.sources.sequences.pad_collate import PadCollate
from torch_distinput.data.sources.sequences.window_plan import OrderPlan, WindowKey
from torch_distinput.data.sources.sequences.windowed_stream import in_windows
from torch_distinput.data.sources.source import (
    IndexedSource,
    ReadySource,
    Request,
    Source,
    StreamSource,
)
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.token_budget import size_of
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.bounds import BatchBudget, Size
from torch_distinput.plan.assignment.bucketing import (
    Bucketing,
    find_buckets,
    make_window_key,
    round_window,
    sort_window,
)
from torch_distinput.plan.assignment.budget_batches import check_fits
from torch_distinput.plan.assignment.permutation import Indices

_log = logging.getLogger(__name__)
BUCKET = "bucket"
"""The kind of place in a bucketed stream."""


def open_buckets(
    buckets: Buckets, request: Request, open_source: Callable[[Any, Request], Source]
) -> Source:
    """Open the source inside, and put its examples into buckets.

    Raises:
        TypeError: it is no source.
        ConfigurationError: it cannot be bucketed, or its lengths are none.
        SourceError: the length function, or the source, raised.
    """
    _refuse_batches(buckets)
    window = _find_window(buckets, request)
    own = request
    if isinstance(request.collate_fn, PadCollate) and request.collate_fn.is_of_step:
        own = replace(request, collate_fn=request.collate_fn.of_rows())
    opened = open_source(buckets.source, own)
    if isinstance(opened, IndexedSource):
        return _bucket_indexed(buckets, opened, window, pads_step=own is not request)
    assert not isinstance(opened, ReadySource), "there is a batch size, and no DataLoader"
    measure_rows(buckets.length, ())  # refuses an array
    stream = _bucket_stream(buckets, opened, window)
    return stream if own is request else replace(stream, step_padding=own.collate_fn)


def _refuse_batches(buckets: Buckets) -> None:
    kind = classify(buckets.source)
    if kind is SourceKind.LOADER:
        msg = (
            f"bucket() needs examples to put in order, got a {type(buckets.source).__name__}, "
            "which makes its own batches. Pass its dataset; global_batch_size, shuffle and "
            "collate_fn are those of distribute_dataset."
        )
        raise ConfigurationError(msg)
    if kind is SourceKind.BUCKETS:
        msg = f"Expected one bucket() around a source, got {buckets!r}. Leave one of them out."
        raise ConfigurationError(msg)


def refuse_inner_buckets(source: Any) -> None:
    """Refuse buckets as a source of a mixture.

    Raises:
        ConfigurationError: it is some.
    """
    if classify(source) is SourceKind.BUCKETS:
        msg = (
            f"{source!r} sorts examples for global batches, of which those of a mixture have only "
            "some of each source. Put the mixture into buckets: bucket(mix(...), ...)."
        )
        raise ConfigurationError(msg)


def open_padded_to_steps(
    source: Any, request: Request, open_source: Callable[[Any, Request], Source]
) -> Source:
    """Open a source whose rows are padded to the longest of their step, if workers vote on it.

    Raises:
        ConfigurationError: they do not, and know no lengths.
    """
    collate = request.collate_fn
    assert isinstance(collate, PadCollate), "asked by the caller"
    opened = open_source(source, replace(request, collate_fn=collate.of_rows()))
    if isinstance(opened, StreamSource):
        return replace(opened, step_padding=collate.of_rows())
    msg = (
        'pad_collate(longest_of="step") needs lengths that are known beforehand where a source has '
        f'an index: of a bucket() over it; or a stream or files. Got {opened.name}. Use '
        'longest_of="replica", or bucket().'
    )
    raise ConfigurationError(msg)


def pads_steps(request: Request) -> bool:
    """Whether rows are to be padded to the longest of their step."""
    return isinstance(request.collate_fn, PadCollate) and request.collate_fn.is_of_step


def _size_of(source: StreamSource) -> int:
    """Examples of a global batch, which change places as a whole."""
    size = source.request.global_batch_size
    if source.request.budget is not None:
        msg = (
            f"Expected a number of examples as global_batch_size for bucket() over {source.name}, "
            f"got {size!r}: a window must hold whole batches, but batches of a token budget are "
            "cut after the windows are sorted. Give a number, leave bucket() out, or pass a source "
            "with an index."
        )
        raise ConfigurationError(msg)
    assert isinstance(size, int), "checked for all sources of examples"
    return size


def _find_window(buckets: Buckets, request: Request) -> int:
    size = request.size
    if not isinstance(size, int):
        return buckets.window  # its batches are found in it
    window = round_window(buckets.window, size)
    if window == size:
        _log.warning(
            "A window of %d examples holds one global batch of %d, so that bucket() sorts nothing. "
            "Give it a window of several global batches.",
            buckets.window,
            size,
        )
    elif window != buckets.window:
        _log.info(
            "The windows of bucket() have %d examples instead of %d: whole global batches of %d.",
            window,
            buckets.window,
            size,
        )
    return window


def _describe(buckets: Buckets, window: int, size: Size) -> dict[str, Any]:
    """What decides the order: batches of another size would be others."""
    facts: dict[str, Any] = {"boundaries": list(buckets.boundaries), "window": window}
    if isinstance(size, BatchBudget):
        return {**facts, "tokens of a global batch": [size.num_tokens, size.max_length]}
    return {**facts, "examples of a global batch": size}


def _measure_budget(source: IndexedSource) -> tuple[Request, Indices | None]:
    """The request with lengths that are measured, and what each index counts for in its budget."""
    budget = source.request.budget
    if budget is None:
        return source.request, None
    lengths = source.find_lengths(budget.length).read()
    size = size_of(budget)
    counted = size.cap(lengths)
    check_fits(np.arange(len(counted)), counted, size)
    measured = replace(budget, length=lengths)
    return replace(source.request, global_batch_size=measured), counted


def _bucket_indexed(
    buckets: Buckets, source: IndexedSource, window: int, *, pads_step: bool
) -> IndexedSource:
    """Measure all examples, also those that a mixture leaves out: indices name them all."""
    assert source.num_examples is not None, "no DataLoader is bucketed"
    size, measured = source.request.size, source.find_lengths(buckets.length)
    assert size is not None, "checked for all sources of examples"
    request, counted = _measure_budget(source)
    lengths = measured.read()
    facts = {**_describe(buckets, window, size), "lengths": measured.digest()}
    return replace(
        source,
        name=repr(buckets),
        request=request,
        padded_lengths=lengths if pads_step else None,
        bucketing=Bucketing(
            buckets=find_buckets(lengths, buckets.boundaries),
            window=window,
            size=size,
            shuffle=source.request.shuffle,
            counted=counted,
        ),
        facts={**source.facts, **{f"bucket: {name}": value for name, value in facts.items()}},
    )


def _bucket_stream(buckets: Buckets, source: StreamSource, window: int) -> StreamSource:
    size = _size_of(source)
    plan = BucketPlan(
        length=buckets.length,
        boundaries=buckets.boundaries,
        global_batch_size=size,
        shuffle=source.request.shuffle,
    )
    return in_windows(source, plan, window, name=repr(buckets), words="in buckets")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class BucketPlan(OrderPlan):
    """Puts the rows of a window in the order of their buckets, and its batches in another.

    Attributes:
        length: tells how long a row is.
        boundaries: the longest of each bucket but the last.
        global_batch_size: rows of a batch.
        shuffle: batches come in an order of the epoch.
    """

    length: Any
    boundaries: tuple[int, ...]
    global_batch_size: int
    shuffle: bool

    @property
    def kind(self) -> str:
        """See :data:`BUCKET`."""
        return BUCKET

    @property
    def recipe(self) -> Mapping[str, Any]:
        """As of examples by index, whose lengths are known beforehand."""
        return {
            "boundaries": list(self.boundaries),
            "examples of a global batch": self.global_batch_size,
        }

    def order(self, examples: Sequence[Any], key: WindowKey) -> Indices:
        """Sort a window."""
        buckets = find_buckets(measure_rows(self.length, examples), self.boundaries)
        words = make_window_key(key.seed, key.epoch, key.number) if self.shuffle else None
        return sort_window(buckets, self.global_batch_size, key=words)
