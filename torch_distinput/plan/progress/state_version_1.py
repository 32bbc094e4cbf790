"""States of version 1, which load for good: as version 2, but for the places in their streams.

A place was a flat row of numbers and texts, put together like a stack; nothing was also written as
no place, "all" as 2**31:

    [assignment, worker, num_files, skip, *flat]

How many of the numbers are whose depends on the operations and on the reader. So who reads the
data takes them apart: the ``state_version_1`` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_distinput.plan.progress.place import Start, list_place

VERSION_1 = 1
Flat = tuple[Any, ...]
"""Numbers and texts, not empty; of several streams a tuple for each."""
ReadFlat = Callable[[Flat], Start]
_ALL = 1 << 31


def upgrade(state: Mapping[str, Any], read: ReadFlat) -> dict[str, Any]:
    """Return a state of version 1 as one of version 2.

    Args:
        state: the state.
        read: takes the places apart, of a data set with the recipe of the state.
    """
    return {
        **state,
        "version": 2,
        "reaches": list(map(_number, state["reaches"])),
        "streams": [
            [batch, row, *(_segment(segment, read) for segment in segments)]
            for batch, row, *segments in state["streams"]
        ],
        "deals": [list(map(_number, files_touched)) for files_touched in state["deals"]],
    }


def _segment(listed: list[Any], read: ReadFlat) -> list[Any]:
    assignment, worker, num_files, skip, *flat = listed
    place = list_place(read(_tupled(flat))) if flat else None
    return [assignment, worker, _number(num_files), skip, place]


def _number(value: int) -> int | None:
    return None if value == _ALL else value


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
