"""torchdata: a distributed dataset as a node, so that a pipeline of nodes goes on behind it.

    node = DistributedNode(dataset)                        # the dataset of a strategy
    loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(node, augment), 2))

Nodes that read ahead (Prefetcher, ParallelMapper, PinMemory) run the nodes before them in a thread
of torchdata's:

    thread                   writes         reads          guarded by
    that begins an epoch     the iterator                  ``reading``; it closes the iterator
    (``reset``)                                            first: that frees who waits inside of it
    that reads (``next``)    ``reader``     the iterator   ``reading``
    the same, after a step                  the iterator   torchdata: who reads asks for the state
    (``get_state``)                                        before it reads on, in its thread

So a state is that of the step which the node gave last, and travels with it to the consumer.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any

from torchdata.nodes import BaseNode

import torch_distinput as tdi
from torch_distinput.integrations.claims import claim
from torch_distinput.integrations.versions import check_version

_log = logging.getLogger(__name__)
_LEAVE_SECONDS = 5.0
"""Time for a step that is being read."""
_LAST_SECONDS = 0.2
"""Time at exit for what torchdata's thread does with it."""


class DistributedNode(BaseNode):  # type: ignore[misc] # torchdata has no types
    """Plays a distributed dataset in a pipeline of ``torchdata.nodes``, epoch by epoch.

    Each ``reset()`` (each ``iter()`` of a ``nodes.Loader``) begins the next epoch, or goes on from
    a state. It is collective, as ``iter(dataset)`` is; all ranks get the end of data at the same
    step. So is the first ``state_dict()``, where no epoch is under way: it begins one.

    Args:
        dataset: what is played; while the node plays it, nobody else iterates it.
        with_info: yield pairs of the step and its :class:`StepInfo`. Nodes may read ahead, so that
            what the dataset has delivered last is not the step that trains: pass
            ``compute_average_loss(loss, num_examples=info.num_examples)``.

    Raises:
        UsageError: if another integration plays the dataset.
    """

    DATASET_KEY = "dataset"

    def __init__(self, dataset: tdi.DistributedDataset, *, with_info: bool = False) -> None:
        check_version("torchdata", tested="0.11", stacklevel=3)
        claim(dataset, "torchdata")
        super().__init__()
        self.dataset = dataset
        self.with_info = with_info
        self._own_run = _Run()
        weakref.finalize(self, self._own_run.end)

    @property
    def _run(self) -> _Run:
        """Of this process: a forked child inherits its lock, held, without the thread inside."""
        if self._own_run.process != os.getpid():
            self._own_run = _Run()
        return self._own_run

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on from a state; on all ranks.

        A thread that still reads the epoch before gets an error, and is waited for.

        Raises:
            ConfigurationError: a ValueError; for a state of another node.
        """
        if initial_state is not None and self.DATASET_KEY not in initial_state:
            msg = (
                f"Expected a state of {type(self).__name__}, with {self.DATASET_KEY!r}, got one of "
                f"another node, with {sorted(map(str, initial_state))}. Load the state into the "
                "pipeline that saved it, with the same nodes in the same order."
            )
            raise tdi.ConfigurationError(msg)
        super().reset(initial_state)
        run = self._run
        if run.iterator is not None:
            run.iterator.close()
        with run.reading:  # nobody is in the source when it is started again
            if initial_state is not None:
                state, here = initial_state[self.DATASET_KEY], self.dataset.state_dict()
                self.dataset.load_state_dict(state)
                _warn_of_other_steps(state["grid"], here["grid"])
            run.begin(self.dataset)

    def next(self) -> Any:
        """Return the next step."""
        with self._run.reading:
            self._run.reader = threading.current_thread()
            iterator = self._run.started
            step = next(iterator)
            return (step, iterator.last_step) if self.with_info else step

    def get_state(self) -> dict[str, Any]:
        """Where the epoch stands after the step that was returned last; the same on all ranks."""
        return {self.DATASET_KEY: self._run.started.state_dict()}

    def close(self) -> None:
        """End the epoch that is under way; who reads on, in whatever thread, gets UsageError.

        Frees a thread that waits for other workers, and waits until it has left, 5 s at most.
        """
        self._run.close()


def _warn_of_other_steps(saved: list[Any], here: list[Any]) -> None:
    """Where steps are cut otherwise now, a place inside of one is another place."""
    if saved != here:
        _log.warning(
            "A position of %d workers, %d replicas each and global batches of %s is loaded for %d, "
            "%d and %s. That is exact, unless nodes.Unbatcher, ParallelMapper(prebatch=) or some "
            "other node behind this one keeps a place inside of a step, or snapshot_frequency is "
            "not 1: then some examples are lost and others come twice.",
            *(*saved[:3], *here[:3]),
        )


class _Run:
    """The epoch under way, and who is inside of it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.iterator: tdi.DistributedIterator | None = None
        self.reading = threading.Lock()
        self.reader: Any = None  # the thread that was inside of it last

    @property
    def started(self) -> tdi.DistributedIterator:
        assert self.iterator is not None, "torchdata resets a node before it reads"
        return self.iterator

    def begin(self, dataset: tdi.DistributedDataset) -> None:
        """Start the next epoch.

        Where all ranks left the one before at the same step, their threads had read ahead to
        different ones, perhaps to its end. ``iter()`` refuses that on all ranks alike, so all of
        them leave it anew, at its beginning: then they agree.

            consumers   0 1 2|            left behind step 2 on both
            rank 0      0 1 2 3 4 end     what its thread had read: 5 steps, and the end
            rank 1      0 1 2 3|                                    4 steps
        """
        try:
            self.iterator = iter(dataset)
        except tdi.MismatchError:
            dataset._leave_at_beginning()  # noqa: SLF001 - users leave an epoch at one step
            self.iterator = iter(dataset)

    def close(self) -> None:
        if self.iterator is not None:
            self.iterator.close()
        if self.reading.acquire(timeout=_LEAVE_SECONDS):
            self.reading.release()

    def end(self) -> None:
        """At exit, where a daemon thread that is inside of torch aborts the process.

        torchdata's thread gets an error from ``next`` and ends, or waits for room in its queue.
        """
        if self.process != os.getpid():  # there is none of its threads in a forked child
            return
        self.close()
        if self.reader not in (None, threading.current_thread()):
            self.reader.join(_LAST_SECONDS)
