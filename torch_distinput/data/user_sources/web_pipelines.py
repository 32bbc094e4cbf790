"""What a WebDataset pipeline does by itself: taking a node's shards, and shuffling without a seed.

Its stages are functions and small objects in a list. They go by their names, so that nothing need
be imported; a splitter of the user's own is not recognised.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch_distinput.data.user_sources.parts import parts_of

SINGLE_NODE = "single_node_only"
SPLITTERS = ("split_by_node", SINGLE_NODE)


def is_pipeline(source: Any) -> bool:
    """Whether a part of it is a pipeline of WebDataset."""
    return any(map(_is_pipeline, parts_of(source)))


def find_splitter(source: Any) -> str | None:
    """The name of the stage that takes a node's part, or refuses several nodes; None if none."""
    names = (_name(stage) for stage in pipeline_stages(source))
    return next((name for name in names if name in SPLITTERS), None)


def find_unseeded_shuffle(source: Any) -> bool:
    """Whether a stage shuffles in an order that no other process, and no restart, has."""
    return any(
        _name(stage) == "_shuffle"
        and stage.kw.get("seed") is None
        and len(stage.args) < 4  # size, initial, generator, seed
        for stage in pipeline_stages(source)
    )


def pipeline_stages(source: Any) -> Iterator[Any]:
    """Yield the stages of pipelines, but for shuffles that change nothing.

    ``shardshuffle=False`` is one, in a buffer of no shards and with a random seed.
    """
    for part in parts_of(source):
        if _is_pipeline(part):
            yield from (stage for stage in part.pipeline if not _keeps_order(stage))


def _keeps_order(stage: Any) -> bool:
    args = getattr(stage, "args", ())
    return _name(stage) == "_shuffle" and bool(args) and args[0] <= 1


def _is_pipeline(part: Any) -> bool:
    return isinstance(getattr(part, "pipeline", None), list) and any(
        kind.__module__.partition(".")[0] == "webdataset" for kind in type(part).__mro__
    )


def _name(stage: Any) -> str:
    """The name of a stage's function, without the arguments that were given to it."""
    function = stage.func if isinstance(stage, partial) else getattr(stage, "f", stage)
    return str(getattr(function, "__name__", ""))
