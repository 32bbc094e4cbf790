"""How many loader processes or threads to run, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """What a DataLoader of ours is made with; the keywords are DataLoader's own.

    Attributes:
        num_threads: threads that fetch, where there are no processes.
        dataset: what ``get_worker_info().dataset`` is in a loader process, if anything of the
            user's.
        init_fn: the user's ``worker_init_fn``.
    """

    num_workers: int = 0
    num_threads: int = 0
    keywords: Mapping[str, Any] = field(default_factory=dict)
    persistent: bool = False
    dataset: Any = None
    init_fn: Callable[[int], None] | None = None
