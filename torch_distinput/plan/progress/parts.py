"""States in which a worker's shards are one stream, read by who deals shards out one by one.

Earlier releases dealt out the shards of a stream in parts, one for each worker, that stayed whole.
Their states, of version 2 too, hold where each part stands. Here that becomes a place of its own
kind, and all shards count as touched, so that none is assigned again in that epoch:

    [0, 1, null, 12, null]    ->    [0, 1, null, 12, ["part", ["skip", 0], ["from", null]]]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEALING = "dealing of shards"
"""The fact of a recipe that says how shards are dealt out; states of whole parts lack it."""
BY_SHARD = "one by one"
PART = "part"
"""The kind of place in such a part."""


def keep_parts_whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of whole parts as one in which they go on as parts."""
    return {
        **state,
        "recipe": [*state["recipe"], [DEALING, BY_SHARD]],
        "reaches": [None] * len(state["streams"]),
        "streams": [
            [batch, row, *map(_keep_whole, segments)] for batch, row, *segments in state["streams"]
        ],
    }


def _keep_whole(segment: list[Any]) -> list[Any]:
    assignment, worker, num_files, skip, place = segment
    if not assignment:  # later assignments had nothing left to assign
        place = [PART, ["skip", 0], ["from", place]]
    return [assignment, worker, num_files, skip, place]
