"""What a Hugging Face stream is made of: which of its kinds can be parted, or tell where they are.

Such a stream is a chain of stages, from what reads the shards to the format. Nothing of that is
public, so classes go by their names, and a stage that is not listed here has neither property.

    a state of its own  HF's ``state_dict()`` is exact: what follows a state that was loaded is what
                        would have followed. Not with the buffer of a ``shuffle``, whose examples
                        are lost, and not in other releases: 4.7 loses examples behind a ``map``.
    single shards       ``shard(num_shards, i)`` for each i gives all examples, and each of them as
                        it is in the whole. Not where a stage counts beyond the end of a shard:
                        ``take``, ``skip``, ``repeat``, ``batch``, numbers of examples in a ``map``,
                        or turns among several streams.
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from torch_distinput.data.user_sources.parts import deals_shards, reachable_parts

_log = logging.getLogger(__name__)
INNER_STAGES = ("ex_iterable", "ex_iterables")
"""Attributes of a stage: what it reads."""
_FIRST = "_torch_distinput_first"
"""An attribute of the copy of a stage that is played: the stage as it was when it began first."""
_EXACT_RELEASES = ("5.2",)
"""Releases of ``datasets`` whose states were tested at every example."""

_MODULE = "datasets.iterable_dataset"
_READERS = {"ExamplesIterable", "ArrowExamplesIterable"}
_ROW_BY_ROW = {
    *("RebatchedArrowExamplesIterable", "FormattedExamplesIterable", "SelectColumnsIterable"),
    *("MappedExamplesIterable", "FilteredExamplesIterable"),
}
_JOINED = {"VerticallyConcatenatedMultiSourcesExamplesIterable"}
_SINGLE = _READERS | _ROW_BY_ROW | _JOINED
_COUNTING = {
    "TakeExamplesIterable": "take",
    "SkipExamplesIterable": "skip",
    "CyclingMultiSourcesExamplesIterable": "interleave_datasets",
    "RandomlyCyclingMultiSourcesExamplesIterable": "interleave_datasets",
}
_EXACT = _SINGLE | {
    *("TakeExamplesIterable", "SkipExamplesIterable", "RepeatExamplesIterable"),
    *("CyclingMultiSourcesExamplesIterable", "RandomlyCyclingMultiSourcesExamplesIterable"),
}


def find_stages(stream: Any) -> Iterator[Any]:
    """Yield the stages of a Hugging Face stream, the last one first; none of other sources."""
    waiting = [last_stage(stream)]
    while waiting:
        stage = waiting.pop()
        if stage is None:
            continue
        yield stage
        for name in INNER_STAGES:
            inner = getattr(stage, name, None)
            waiting += inner if isinstance(inner, (list, tuple)) else [inner]


def last_stage(stream: Any) -> Any:
    """The last stage of a Hugging Face stream, as it was when it began first; else None.

    Of its own: what wraps a stream may hand on all that it has not.
    """
    stage = getattr(stream, "_ex_iterable", None) if _is_stream(stream) else None
    return getattr(stage, _FIRST, stage)


def _is_stream(part: Any) -> bool:
    return any(kind.__module__ == _MODULE for kind in type(part).__mro__)


def renew_stages(source: Any) -> None:
    """Give the Hugging Face streams in a source their stages as they were when it began first.

    All that are told the epoch. A stream shifts the seeds of its stages by the epoch when it
    begins. It does so to copies, but, up to datasets 4.7, not behind a ``take`` or ``skip``: there
    the order of an epoch would depend on those before it.
    """
    for part in reachable_parts(source, _is_stream):
        if (kept := last_stage(part)) is not None:
            part._ex_iterable = _copy_stages(kept)  # noqa: SLF001 - it has no public name


def _copy_stages(stage: Any) -> Any:
    first = getattr(stage, _FIRST, stage)
    own = copy.copy(first)
    setattr(own, _FIRST, first)
    for name in INNER_STAGES:
        inner = getattr(own, name, None)
        if isinstance(inner, (list, tuple)):
            setattr(own, name, [_copy_stages(each) for each in inner])
        elif inner is not None:
            setattr(own, name, _copy_stages(inner))
    return own


def has_exact_state(source: Any) -> bool:
    """Whether its ``state_dict()`` is where it is, exactly, so that none of it is read again."""
    stages = list(find_stages(source))
    if not stages or not deals_shards(source) or not hasattr(source, "load_state_dict"):
        return False
    kinds = {type(stage).__name__ for stage in stages}
    return kinds <= _EXACT and not any(map(_is_async, stages)) and _is_tested()


def has_single_shards(source: Any) -> bool:
    """Whether its shards, one by one, have all of its examples, as they are in the whole."""
    stages = list(find_stages(source))
    return bool(stages) and deals_shards(source) and all(map(_is_single, stages))


def find_counting_stage(source: Any) -> str | None:
    """The call of a stage that has other examples in the parts of a stream than in the whole.

    In each part ``take`` and ``skip`` count a part of their number, and turns end by themselves.
    """
    for stage in find_stages(source):
        is_whole = getattr(stage, "stopping_strategy", "").endswith("without_replacement")
        if (call := _COUNTING.get(type(stage).__name__)) and not is_whole:
            return call
    return None


def has_buffer(source: Any) -> bool:
    """Whether it is shuffled in a buffer."""
    return any(type(stage).__name__.startswith("BufferShuffled") for stage in find_stages(source))


def _is_single(stage: Any) -> bool:
    if type(stage).__name__ not in _SINGLE:
        return False
    if getattr(stage, "with_indices", False) or getattr(stage, "drop_last_batch", False):
        return False
    if getattr(stage, "batched", False):
        size = getattr(stage, "batch_size", None)
        return size is not None and size > 0 and not _makes_batches(stage)
    return True


def _makes_batches(stage: Any) -> bool:
    """Whether its function is that of ``batch()``, whose rows are batches."""
    function = getattr(stage, "function", None)
    while isinstance(function, partial):
        function = function.func
    name, module = (getattr(function, key, "") for key in ("__name__", "__module__"))
    return name.startswith("_batch") and module.partition(".")[0] == "datasets"


def _is_async(stage: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(stage, "function", None))


def _is_tested() -> bool:
    version = getattr(sys.modules.get("datasets"), "__version__", "")
    is_tested = any(version == own or version.startswith(f"{own}.") for own in _EXACT_RELEASES)
    if not is_tested:
        _say_untested(version)
    return is_tested


@lru_cache
def _say_untested(version: str) -> None:
    """Say it once."""
    _log.warning(
        "datasets %s is not among the releases whose states were tested here (%s). After a "
        "restart its streams are read again, from the beginning of a shard or of all data, and "
        "skipped: exact, but slower.",
        version,
        ", ".join(_EXACT_RELEASES),
    )
