"""A gloo backend of our own, beside the user's groups: it is used in background threads.

So the user's collectives, in the main thread, never meet ours, and neither waits for the other's.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo, Store

from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.threads import call_in_child

FOREVER = timedelta(days=7)
"""Nobody waits with a limit in gloo: who waits in ``next`` keeps the time, and a vote that waits
while nobody needs it (a long evaluation, say) is no failure."""
_SETTLE_SECONDS = 0.1
_PATIENCE = 5
"""A rank to which another one connects waits for it so many of gloo's limits."""


@final
class GlooBackend:
    """Connections of some ranks; each of them connects to those with whom it talks.

    Not a group of ``dist.new_group``, which names a group by how many of them a rank knows (they
    may differ, and change as datasets are collected), and has one limit for both kinds of waiting.

    Attributes:
        calls: torch's backend; its stubs lack what it can do.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Wait for nobody yet; later for each connection ``timeout`` seconds."""
        self.calls: Any = None
        limit = min(timeout / _PATIENCE, FOREVER.total_seconds())
        try:
            self.calls = _make_backend(store, rank, size, timedelta(seconds=limit))
        except RuntimeError as error:
            raise ChannelBrokenError(str(error)) from error
        self._works: set[dist.Work] = set()  # that may be under way
        _backends.add(self)
        call_in_child(self, GlooBackend._leave_to_parent)

    def note(self, work: dist.Work) -> dist.Work:
        """Remember what may be under way when this closes. Any thread."""
        for other in self._works.copy():  # in one operation, as tuple() is not
            if other.is_completed():
                self._works.discard(other)
        self._works.add(work)
        return work

    def close(self) -> None:
        """Join gloo's threads, as it happens to a backend that nobody holds any more."""
        if any(not work.is_completed() for work in self._works.copy()):
            # What was given up cannot be stopped, and might be waited for forever.
            self._keep()
        self._works.clear()
        self.calls = None

    def _leave_to_parent(self) -> None:
        """In a child: gloo's threads were not forked, and would be waited for."""
        self._keep()
        _backends.discard(self)

    def _keep(self) -> None:
        """Keep the backend beyond the end of the interpreter."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.calls))


def _make_backend(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo  # torch's stubs lack its options
    # As torch makes them of the environment, but for lazy_init.
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    options = gloo._Options()  # noqa: SLF001 - there is no other way
    options._devices = [gloo.create_device(interface=name, lazy_init=True) for name in names] or [  # noqa: SLF001
        gloo.create_default_device(lazy_init=True)
    ]
    options._threads = 2 * len(options._devices)  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return gloo(store, rank, size, options)


_backends: weakref.WeakSet[GlooBackend] = weakref.WeakSet()


def close_backends() -> None:
    """Close all backends, and give the gloo groups of others a moment.

    gloo's own threads drop their last work after we have seen it done, and need the interpreter
    for that: if it is being finalized by then, they abort the process. Closing joins those of our
    backends; the user's group, in which we reduce, may well outlive the script.
    """
    for backend in list(_backends):
        backend.close()
    time.sleep(_SETTLE_SECONDS)
