"""Ranks that meet in the store of torch.distributed: no collective is needed, and no group.

Two threads may meet others at the same time, where one reads a dataset ahead.

    thread      writes                                guarded by
    exchange    _joins, _firsts: one of each meeting  _lock
    caller      is_over, and at an error written, of  only once it waits no more
                its own meeting
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from torch_distinput.cluster.channels.broadcast_channel import BroadcastChannel
from torch_distinput.cluster.channels.connecting import connect
from torch_distinput.cluster.channels.vote_channels import VoteChannel, VoteConnections
from torch_distinput.cluster.liveness.store_board import StoreBoard
from torch_distinput.cluster.store_exchange import StoreExchange
from torch_distinput.cluster.store_join import StoreJoin
from torch_distinput.communicator import Board, Gone, Merge, check_process, nobody
from torch_distinput.threads import new_lock

_KEPT_JOINS = 3
_KEPT_FIRSTS = 64
"""Texts that are left for ranks which come to their topics late, while they come to others."""


@final
class StoreMeeting:
    """Some ranks of the default group, as one of them meets the others.

    Attributes:
        ranks: in the default group, in the order of their numbers here; each of them may have an
            order of its own where it only opens a board.
        rank: this one's number.
        size: how many there are.
    """

    def __init__(self, ranks: Sequence[int], *, what: str = "") -> None:
        """Take ranks, and what the meeting is for if the same ranks have several."""
        self._process = os.getpid()
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(dist.get_rank())
        self.size = len(self.ranks)
        self._words = self._own_store(what)
        self._joins: list[StoreJoin] = []
        self._firsts: list[StoreJoin] = []
        self._lock = new_lock()
        self._num_channels = 0
        self._connections: VoteConnections | None = None

    def _own_store(self, what: str) -> Store:
        """A corner of the default store for this meeting, found alike by all its ranks.

        Ranks make their meetings in one order; the store itself counts them, so that a process
        that joins another job starts from zero.
        """
        store = _get_default_store()
        members = f"{what}{sorted(self.ranks)}".encode()
        corner = f"torch_distinput/{hashlib.blake2b(members, digest_size=8).hexdigest()}"
        number = store.add(f"{corner}/{self.ranks[self.rank]}", 1)
        return PrefixStore(f"{corner}/{number}", store)

    @property
    def _store(self) -> Store:
        """The store; in a forked child an error, as all that uses the parent's connections."""
        check_process(self._process)
        return self._words

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody
    ) -> str:
        """Show a text under a topic and return what ``merge`` makes of all ranks' texts."""
        join = StoreJoin(self._store, topic, rank=self.rank, size=self.size, merge=merge)

        def show() -> None:
            join.show(text)
            # Of two topics in a row all come to one: whoever did has read what was written before.
            self._forget(self._joins, join, _KEPT_JOINS)

        try:
            return StoreExchange(join, topic, timeout=timeout, gone=gone).text(show)
        finally:
            join.leave()

    def _forget(self, joins: list[StoreJoin], join: StoreJoin, num_kept: int) -> None:
        """Delete what was written under topics that nobody comes to any more.

        Two threads may be at topics of their own: the one must not delete what the other waits for.
        """
        with self._lock:
            joins.append(join)
            old = [each for each in joins[:-num_kept] if each.is_over]
            joins[:] = [each for each in joins if each not in old]
        for key in (key for each in old for key in each.written):
            self._store.delete_key(key)

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:
        """Show a text under a topic unless another rank has; return the one that is shown."""
        join = StoreJoin(self._store, topic, rank=self.rank, size=self.size, merge="".join)

        def show() -> None:
            join.show_first(text)
            join.leave()
            self._forget(self._firsts, join, _KEPT_FIRSTS)

        return StoreExchange(join, topic, timeout=timeout, gone=nobody).text(show)

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> VoteChannel:
        """Make a channel for votes; the first one connects the ranks."""
        number = self._meet_for_channel(timeout, gone)
        if self._connections is None:
            store = PrefixStore(f"votes {number}", self._store)  # not what a try before left
            make = partial(VoteConnections, store, self.rank, self.size, timeout=timeout)
            self._connections = connect(make, size=self.size, gone=gone)
        return self._connections.open_channel(number)

    def open_broadcast(self, *, timeout: float, gone: Gone) -> BroadcastChannel:
        """Connect the same ranks over gloo for broadcasts."""
        store = PrefixStore(f"channel {self._meet_for_channel(timeout, gone)}", self._store)
        return BroadcastChannel(store, self.rank, self.size, timeout=timeout)

    def _meet_for_channel(self, timeout: float, gone: Gone) -> int:
        """Number a channel, when all ranks are there.

        Who connects waits for the others, and would not hear that one of them is gone.
        """
        self._num_channels += 1
        self.join(f"channel {self._num_channels}", "", "".join, timeout=timeout, gone=gone)
        return self._num_channels

    def open_board(self) -> Board:
        """The board in the store, through a client of its own.

        A client of the store serves one thread at a time, also while that one waits.
        """
        store: Any = self._store  # torch's stubs lack clone()
        return StoreBoard(store.clone(), self.ranks, self.rank)
