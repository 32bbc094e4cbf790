"""What one worker tells the others of all of them, so that they need not read every status.

Of who goes on as all do it says nothing. Whoever is told of is told with the whole status: the
silent, the failed, those that left, those that are behind, and those that do what few others do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_distinput.cluster.liveness.status import Status
from torch_distinput.errors import PEER_ERRORS

_OF_PEERS = tuple(f"{kind.__name__}:" for kind in PEER_ERRORS)
"""How the words of errors begin that are about another worker."""
_MOST_SILENT = 64
_MOST = 8
"""Of each other kind: everybody reads them, and a message names no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a watcher posts, each time in place of the one before.

    Attributes:
        term: how many watchers there were before.
        beat: how many summaries of its own the watcher has posted before.
        watcher: its name on the board.
        votes: on where to stop: the highest vote of those who may vote, if there is one; and None
            if somebody has not voted.
        told: statuses by the workers' names on the board, and for how many seconds each has been
            silent.
    """

    term: int
    beat: int
    watcher: int
    votes: tuple[int | None, ...]
    told: dict[int, tuple[Status, float]]

    @classmethod
    def read(cls, text: str) -> Summary:
        """Parse what :meth:`written` made."""
        said = json.loads(text)
        said["votes"] = tuple(said["votes"])
        said["told"] = {
            int(name): (Status.read(status), silence)
            for name, (status, silence) in said["told"].items()
        }
        return cls(**said)

    def written(self) -> str:
        """Write it."""
        told = {name: (status.written(), silence) for name, (status, silence) in self.told.items()}
        said = {key: getattr(self, key) for key in ("term", "beat", "watcher", "votes")}
        return json.dumps({**said, "told": told})


def is_of_peer(words: str) -> bool:
    """Whether an error is about another worker than the one it was raised in."""
    return words.startswith(_OF_PEERS)


def sum_up_votes(votes: Collection[int | None]) -> tuple[int | None, ...]:
    """What counts of the votes: the highest one, and whether one is missing."""
    cast = [vote for vote in votes if vote is not None]
    return (*([max(cast)] if cast else []), *([None] if len(cast) < len(votes) else []))


def choose_told(
    statuses: Mapping[int, Status],
    *,
    silence: Mapping[int, float],
    failed_at: Mapping[int, float],
) -> set[int]:
    """Choose the workers that all others should hear of.

    Args:
        statuses: by worker.
        silence: seconds, of those who miss a beat.
        failed_at: when it was heard that a worker failed.
    """
    failed = {worker: status.failed.words for worker, status in statuses.items() if status.failed}
    newest = sorted(failed, key=lambda worker: -failed_at.get(worker, 0.0))
    left = {worker: status.steps for worker, status in statuses.items() if status.has_left}
    present = {worker: status for worker, status in statuses.items() if not status.has_left}
    words = Counter(status.activity for status in present.values())
    voteless = [worker for worker, status in present.items() if status.vote is None]
    has_voting = len(voteless) < len(present)
    return {
        *sorted(silence, key=lambda worker: -silence[worker])[:_MOST_SILENT],
        *[worker for worker in newest if not is_of_peer(failed[worker])][:_MOST],
        *[worker for worker in newest if is_of_peer(failed[worker])][:_MOST],
        *_least(left, left.__getitem__),
        *_least(present, lambda worker: words[present[worker].activity]),
        *_least(present, lambda worker: present[worker].reached),
        *(voteless[:_MOST] if has_voting else ()),
    }


def _least(workers: Iterable[int], key: Callable[[int], Any]) -> list[int]:
    return sorted(workers, key=key)[:_MOST]
