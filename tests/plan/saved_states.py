"""A state as it is saved, of two workers that read a stream each; a test names what it is about."""

from __future__ import annotations

from typing import Any


def saved_state(**fields: Any) -> dict[str, Any]:
    """The keys in the order in which they are saved, with values of their own for ``fields``."""
    state = {
        "version": 2,
        "recipe": [["seed", 3]],
        "epoch": 5,
        "steps": 6,
        "examples": 24,
        "grid": [2, 1, 4, "even"],
        "rounds": 7,
        "rows": [8, 9],
        "reaches": [0, 0],
        "streams": [[0, 0, [0, 0, None, 0, None]], [0, 0, [0, 1, None, 3, None]]],
        "deals": [],
    }
    return state | fields
