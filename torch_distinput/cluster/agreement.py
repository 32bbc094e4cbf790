"""How many steps may everybody play? Votes ahead of use, where lengths are not known.

Three threads meet in one :class:`Desk`:

    the reader     pulls this worker's steps and lays them on the pile of *ready* steps
    the voter      tells the others what is ready, hears what they have, and moves the steps that
                   all can play to the pile of *agreed* ones; the only user of the channel
    the consumer   the caller of ``next``; takes agreed steps

The reader's work and the voter's waiting overlap the training step. Both threads hold the desk,
never the :class:`Agreement`, so that an abandoned iterator is collected and closes the desk.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic

from torch_distinput.cluster.agreement_queue import Agreed, Desk, Ending, S
from torch_distinput.communicator import Channel, ChannelBrokenError
from torch_distinput.errors import let_go
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import WINDOW, Outcome, State, Vote, decide
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.threads import start_thread


class Agreement(Generic[S]):
    """Iterates agreed steps; closing it tells the other workers.

    Args:
        steps: this worker's steps; pulled in the reader's thread.
        channel: used by the voter's thread until it ends.
        shared: all workers read one stream, so they must end together.
        introduce: from a worker's first step with examples to what all workers should know of it.
        ledger: adds up what is agreed on; used by the voter's thread.
    """

    def __init__(
        self,
        steps: Iterator[S],
        channel: Channel,
        *,
        shared: bool,
        introduce: Callable[[S], Any],
        ledger: DeliveryCounter,
    ) -> None:
        """Start reading and voting."""
        self._desk = desk = Desk[S]()
        stop = desk.close
        self._threads = (
            start_thread(_read, desk, steps, name="reader", stop=stop),
            start_thread(
                partial(_vote, shared=shared, introduce=introduce, ledger=ledger), desk, channel,
                name="voter", stop=stop, give_up=channel.abandon,
            ),
        )  # fmt: skip

    def next(self, timeout: float) -> Agreed[S] | Ending | None:
        """Take the next agreed step, or learn why there is none; None after ``timeout`` seconds."""
        return self._desk.take(timeout)

    @property
    def ending(self) -> Ending | None:
        """Why there will be no more agreed steps; None while there may be."""
        return self._desk.ending

    @property
    def lacks_steps(self) -> bool:
        """Whether this worker itself has nothing to vote on, since its source is still at it."""
        desk = self._desk
        with desk.lock:
            if desk.agreed:
                return False
            return not (desk.may_vote() if desk.introduced else desk.can_introduce())

    def introductions(self, timeout: float) -> list[Any] | None:
        """What each worker's first step introduced, None for one that had none.

        Returns None altogether if the introductions did not take place in time.
        """
        desk = self._desk
        with desk.lock:
            desk.news_for_consumer.wait_for(
                lambda: desk.introduced is not None or desk.ending, timeout
            )
            return desk.introduced

    def fail(self, error: BaseException) -> None:
        """Take an error for one of the source; all workers hear of it, then it comes as the end."""
        self._desk.leave(State.FAILED, error)

    def close(self) -> None:
        """Tell the threads to leave; the other workers hear of it in their next vote."""
        self._desk.close()

    @property
    def is_reading(self) -> bool:
        """Whether the reader is there, perhaps inside the source."""
        return self._threads[0].is_alive()

    def join(self, timeout: float) -> bool:
        """Wait until the threads have left; whether they have.

        The voter leaves after one more vote, in which the other workers take part when they close
        or need steps.
        """
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():  # where the last reference was dropped
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _read(desk: Desk[S], steps: Iterator[S]) -> None:
    """The reader: pull steps while there is room."""
    while desk.wait_for_room():
        try:
            step = next(steps, None)
            num_bytes = 0 if step is None else step.num_bytes
        except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
            let_go(error)
            desk.leave(State.FAILED, error)
            break
        if step is None:
            desk.leave(State.ENDED)
            break
        desk.lay(step, num_bytes)


def _vote(
    desk: Desk[S],
    channel: Channel,
    *,
    shared: bool,
    introduce: Callable[[S], Any],
    ledger: DeliveryCounter,
) -> None:
    """The voter: one collective a round until the outcome is known."""
    try:
        going_on = _introduce(desk, channel, introduce)
        while going_on:
            going_on = _round(desk, channel, ledger, shared=shared)
    except ChannelBrokenError as error:
        desk.end(Ending(outcome=Outcome.LEFT, error=error))
    except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
        desk.end(Ending(outcome=Outcome.FAILED, error=error))


def _introduce(desk: Desk[S], channel: Channel, introduce: Callable[[S], Any]) -> bool:
    """Introduce the workers' first steps to each other; whether all of them could."""
    with desk.lock:
        desk.votable.wait_for(desk.can_introduce)
        first = next((step for step, _ in desk.ready if step.count), None)
    own, words, failure = b"", "", None
    try:  # before the collective, in which the others would wait
        own = pickle.dumps(None if first is None else introduce(first))
    except Exception as error:  # noqa: BLE001 - it is raised again where next() is called
        failure, words = error, _said(error)
    rows = channel.gather_objects((own, words))
    failed = tuple(worker for worker, (pickled, _) in enumerate(rows) if not pickled)
    if failed:
        said = tuple(words for _, words in rows)
        desk.end(Ending(outcome=Outcome.FAILED, workers=failed, words=said, error=failure))
        return False
    introduced = [pickle.loads(pickled) for pickled, _ in rows]  # noqa: S301 - from our own workers
    with desk.lock:
        desk.introduced = introduced
        desk.news_for_consumer.notify_all()
    return True


def _round(desk: Desk[S], channel: Channel, ledger: DeliveryCounter, *, shared: bool) -> bool:
    """Vote once; whether the voting goes on."""
    with desk.lock:
        desk.votable.wait_for(desk.may_vote)
        news = desk.news()
        vote = _vote_of(desk, has_news=bool(news))
    votes = [Vote.decode(row) for row in channel.gather_ints(vote.encode())]
    verdict = decide(votes, shared=shared)
    told: list[tuple[ResumePoint, ...]] = [()] * len(votes)
    if any(vote.has_news for vote in votes):
        told = channel.gather_objects(news)
    words = _words(desk, channel) if verdict.outcome is Outcome.FAILED else ()
    after_steps = ledger.add_round(votes, told, len(verdict.totals))
    with desk.lock:
        desk.told = news[-1] if news else desk.told
        desk.move(verdict.totals, after_steps)
    if verdict.outcome is Outcome.GO_ON:
        return True
    error = desk.failure if verdict.outcome is Outcome.FAILED else None
    desk.end(Ending(outcome=verdict.outcome, workers=verdict.workers, words=words, error=error))
    return False


def _vote_of(desk: Desk[S], *, has_news: bool) -> Vote:
    spoken_of = [step for step, _ in islice(desk.ready, WINDOW)]
    # An end is told only when all that comes before it fits into the window.
    known = desk.state if len(desk.ready) <= WINDOW else State.RUNNING
    return Vote(
        state=State.CLOSED if desk.state is State.CLOSED else known,
        counts=tuple(step.count for step in spoken_of),
        marks=tuple(step.mark for step in spoken_of),
        files_touched=tuple(step.num_touched for step in spoken_of),
        has_news=has_news,
    )


def _words(desk: Desk[S], channel: Channel) -> tuple[str, ...]:
    """Every worker hears what the failed ones have to say."""
    failure = desk.failure
    return tuple(channel.gather_objects("" if failure is None else _said(failure)))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
