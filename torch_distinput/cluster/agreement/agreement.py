"""How many steps may everybody play? Votes ahead of use, where lengths are not known.

Three threads share one :class:`AgreementQueue`, which has the lock:

    thread      does
    step-reader pulls this worker's steps and puts them there, *ready* to be played
    voter       tells the others what is ready, hears what they have, and passes on the steps that
                all can play, as *agreed*; the only user of the channel and the counter
    consumer    the caller of ``next``; takes agreed steps

The reader's work and the voter's waiting overlap the training step. Both threads hold the queue,
never the :class:`Agreement`, so that an abandoned iterator is collected and closes the queue.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

import numpy as np

from torch_distinput.cluster.agreement.agreement_queue import AgreementQueue
from torch_distinput.cluster.agreement.voted_steps import Agreed, Ending, NoteVote, S
from torch_distinput.communicator import Channel, ChannelBrokenError
from torch_distinput.errors import let_go
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import Outcome, Vote, decide
from torch_distinput.plan.progress.tally import NOTHING_TALLIED, Tally, TallySize
from torch_distinput.threads import start_thread


class Agreement(Generic[S]):
    """Iterates agreed steps; closing it tells the other workers.

    Args:
        steps: this worker's steps; pulled in the reader's thread.
        channel: used by the voter's thread until it ends.
        shared: all workers read one stream, so they must end together.
        introduce: from a worker's first step with examples to what all workers should know of it.
        counter: adds up what is agreed on; used by the voter's thread.
        tallied: which numbers of the steps the workers join.
        note_vote: called in the voter's thread, with the queue's lock.
    """

    def __init__(
        self,
        steps: Iterator[S],
        channel: Channel,
        *,
        shared: bool,
        introduce: Callable[[S], Any],
        counter: DeliveryCounter,
        tallied: TallySize = NOTHING_TALLIED,
        note_vote: NoteVote[S] = None,
    ) -> None:
        """Start reading and voting."""
        self._queue = queue = AgreementQueue[S]()
        stop = queue.close
        # To start a thread is to wait until it runs: behind a reader at work, which keeps the
        # interpreter's lock for its 5 ms, so the reader comes last.
        self._voter = start_thread(
            partial(
                _vote, shared=shared, introduce=introduce, counter=counter, tallied=tallied,
                note_vote=note_vote,
            ),
            queue, channel, name="voter", stop=stop, give_up=channel.abandon,
        )  # fmt: skip
        self._reader = start_thread(_read, queue, steps, name="step-reader", stop=stop)

    def next(self, timeout: float) -> Agreed | Ending | None:
        """Take the next agreed step, or learn why there is none; None after ``timeout`` seconds."""
        return self._queue.get(timeout)

    @property
    def ending(self) -> Ending | None:
        """Why there will be no more agreed steps; None while there may be."""
        return self._queue.ending

    @property
    def breach(self) -> BaseException | None:
        """What kept this worker from voting on, of which the others do not hear in a vote."""
        ending = self._queue.ending
        is_breach = ending is not None and ending.outcome is Outcome.FAILED and not ending.words
        return ending.error if ending is not None and is_breach else None

    @property
    def lacks_steps(self) -> bool:
        """Whether this worker itself has nothing to vote on, since its source is still at it."""
        return self._queue.lacks_steps

    def introductions(self, timeout: float) -> list[Any] | None:
        """What each worker's first step introduced, None for one that had none.

        Returns None altogether if the introductions did not take place in time.
        """
        return self._queue.introductions(timeout)

    def fail(self, error: BaseException) -> None:
        """Take an error for one of the source; all workers hear of it, then it comes as the end."""
        self._queue.fail(error)

    def close(self) -> None:
        """Tell the threads to leave; the other workers hear of it in their next vote."""
        self._queue.close()

    @property
    def is_reading(self) -> bool:
        """Whether the reader is there, perhaps inside the source."""
        return self._reader.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait until the threads have left; whether they have.

        The voter leaves after one more vote, in which the other workers take part when they close
        or need steps.
        """
        deadline = time.monotonic() + timeout
        threads = (self._reader, self._voter)
        for thread in threads:
            if thread is not threading.current_thread():  # where the last reference was dropped
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def _read(queue: AgreementQueue[S], steps: Iterator[S]) -> None:
    """The reader: pull steps while there is room."""
    while queue.wait_for_room():
        try:
            step = next(steps, None)
            num_bytes = 0 if step is None else step.num_bytes
        except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
            let_go(error)
            queue.fail(error)
            break
        if step is None:
            queue.end_reading()
            break
        queue.put(step, num_bytes)


def _vote(
    queue: AgreementQueue[S],
    channel: Channel,
    *,
    shared: bool,
    introduce: Callable[[S], Any],
    counter: DeliveryCounter,
    tallied: TallySize,
    note_vote: NoteVote[S],
) -> None:
    """The voter: one collective a round until the outcome is known."""
    try:
        going_on = _introduce(queue, channel, introduce)
        while going_on:
            going_on = _vote_once(
                queue, channel, counter, shared=shared, tallied=tallied, note_vote=note_vote
            )
    except ChannelBrokenError as error:
        queue.end(Ending(outcome=Outcome.LEFT, error=error))
    except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
        queue.end(Ending(outcome=Outcome.FAILED, error=error))


def _introduce(
    queue: AgreementQueue[S], channel: Channel, introduce: Callable[[S], Any]
) -> bool:
    """Introduce the workers' first steps to each other; whether all of them could."""
    first = queue.wait_for_first()
    own, words, failure = b"", "", None
    # Pickled here and not by the channel: what cannot be must not keep this worker from the
    # collective, in which the others would wait for it.
    try:
        own = pickle.dumps(None if first is None else introduce(first))
    except Exception as error:  # noqa: BLE001 - it is raised again where next() is called
        failure, words = error, _describe(error)
    rows = channel.gather_objects((own, words))
    failed = tuple(worker for worker, (pickled, _) in enumerate(rows) if not pickled)
    if failed:
        said = tuple(words for _, words in rows)
        queue.end(Ending(outcome=Outcome.FAILED, workers=failed, words=said, error=failure))
        return False
    queue.introduce([pickle.loads(pickled) for pickled, _ in rows])  # noqa: S301 - our own workers'
    return True


def _vote_once(
    queue: AgreementQueue[S],
    channel: Channel,
    counter: DeliveryCounter,
    *,
    shared: bool,
    tallied: TallySize,
    note_vote: NoteVote[S],
) -> bool:
    """Vote, and move on what all can play; whether the voting goes on."""
    votes: list[Vote] = channel.gather_objects(queue.wait_for_vote(note_vote))
    verdict = decide(votes, shared=shared)
    failed = verdict.outcome is Outcome.FAILED
    words = _gather_words(queue, channel) if failed else ()
    after_steps = counter.add_round(votes, len(verdict.totals))
    num_steps = len(verdict.totals) if any(tallied) else 0
    join = partial(_join, channel, tallied, num_steps) if num_steps else None
    queue.agree(verdict.totals, after_steps, join)
    if verdict.outcome is Outcome.GO_ON:
        return True
    error = queue.failure if failed else None
    queue.end(Ending(outcome=verdict.outcome, workers=verdict.workers, words=words, error=error))
    return False


def _join(channel: Channel, size: TallySize, num_steps: int, own: list[Tally]) -> list[Tally]:
    """The numbers of each step, of all workers."""
    return size.join(np.stack(channel.gather_objects(size.encode(own, num_steps))))


def _gather_words(queue: AgreementQueue[S], channel: Channel) -> tuple[str, ...]:
    """Every worker hears what the failed ones have to say."""
    failure = queue.failure
    return tuple(channel.gather_objects("" if failure is None else _describe(failure)))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
