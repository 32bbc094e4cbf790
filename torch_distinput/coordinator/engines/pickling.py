"""Stand-in."""

from __future__ import annotations

import pickle
from typing import Any


def dumps(value: Any) -> bytes:
    """Pickle."""
    return pickle.dumps(value)
