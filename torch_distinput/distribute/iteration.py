"""One ``iter()`` on all ranks: what it is called, and how they meet in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch_distinput.cluster.epoch_barrier import EpochBarrier
from torch_distinput.cluster.exchange import Exchange
from torch_distinput.cluster.handshake import Facts, shake_hands
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.step_broadcast import StepBroadcast
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.distribute.session import Session
from torch_distinput.engine.audit import Audit
from torch_distinput.engine.feeds import Feed, FingerprintFeed, SlicedFeed, SourceTurn, TurnFeed
from torch_distinput.engine.input import Input, Opening, PreparedEpoch
from torch_distinput.engine.same_data import compare_first_batch, compare_partners
from torch_distinput.errors import SourceError

if TYPE_CHECKING:
    from torch_distinput.data.steps.sequence_slices import SequenceSlices
    from torch_distinput.distribute.epoch_warnings import EpochWarnings
    from torch_distinput.distribute.reports.step_log import StepLog
    from torch_distinput.engine.epoch_record import EpochRecord
    from torch_distinput.engine.zero_rows import Shapes
    from torch_distinput.plan.progress.checksum import IdSum
    from torch_distinput.plan.progress.position import Position
    from torch_distinput.plan.progress.state import Recipe

Compare = Callable[[Mapping[str, str], Mapping[str, str]], None]
Prepare = Callable[[], tuple[Facts, object]]


@final
class Iteration:
    """One ``iter()`` of all ranks: its number, which is the same on all, its feed, how it fails.

    Attributes:
        topic: what it is called in what the ranks tell each other.
        timeout: seconds that one of them waits for another.
    """

    def __init__(self, session: Session, name: str, turn: SourceTurn, *, timeout: float) -> None:
        """Begin the next one, of the dataset ``name``; ``turn``: see :class:`TurnFeed`."""
        self._number = next(session.iterations)
        self.topic = f"iteration {self._number}"
        self.timeout = timeout
        self._session = session
        self._name = name
        self._turn = turn
        self._feed: Feed | None = None
        self._fingerprinted: FingerprintFeed | None = None  # with partners that read for themselves
        self._monitor: PeerMonitor | None = None

    def shake_hands(self, prepare: Prepare) -> list[Any]:
        """Compare facts with the other ranks; what each worker has found out for all.

        Workers meet first, and then each of them meets its partners, who must be about to do the
        same. A partner that reads nothing hears there what the workers have found out.
        """
        prepare = partial(self._prepare_alone, prepare)
        heartbeat = self._session.heartbeat
        heartbeat.start(self.timeout)
        # The loop before this is out: whoever waits at its end need not wait for this rank.
        heartbeat.progress.is_left = True
        meet = partial(
            shake_hands,
            topic=self.topic,
            heartbeat=heartbeat,
            name=self._name,
        )
        workers, partners = self._session.communicator, self._session.partners
        if partners is None:
            return meet(workers, prepare=prepare, timeout=self.timeout)
        # Twice the time: the partner that is waited for may be waiting for another worker.
        join = partial(
            meet, partners.meeting, timeout=2 * self.timeout, numbers=partners.numbers
        )
        if not partners.is_reader:
            shares: list[Any] = join(prepare=prepare)[0]
            return shares
        found: list[Any] = []

        def prepare_and_meet() -> tuple[Facts, object]:
            facts: list[Facts] = []

            def note() -> tuple[Facts, object]:
                own, share = prepare()
                facts.append(own)
                return own, share

            found.extend(meet(workers, prepare=note, timeout=self.timeout))
            return facts[0], found

        join(prepare=prepare_and_meet)
        return found

    def _prepare_alone(self, prepare: Prepare) -> tuple[Facts, object]:
        """Prepare when no thread of the epoch before is in the source."""
        if not self._turn.wait(self.timeout):
            msg = (
                f"Expected the previous epoch to end within {self.timeout:g} s, but this worker's "
                "source has not returned from reading a step. Bound its waits."
            )
            raise SourceError(msg)
        return prepare()

    def open(
        self,
        prepared: PreparedEpoch,
        opening: Opening,
        broadcast: StepBroadcast | None,
        slices: SequenceSlices | None,
    ) -> Feed:
        """Start reading, or receiving what a partner reads; of sequences this rank's slices."""
        feed: Feed = self._open(prepared, opening, broadcast)
        if self._session.partners is not None and broadcast is None:
            feed = self._fingerprinted = FingerprintFeed(feed)
        feed = self._feed = TurnFeed(feed, self._turn)
        if slices is None:
            return feed
        return SlicedFeed(feed, slices, worker=self._session.topology.worker_index)

    def _open(
        self, prepared: PreparedEpoch, opening: Opening, broadcast: StepBroadcast | None
    ) -> Feed:
        if broadcast is None:
            return prepared.open(opening)
        # Imported here, because most ranks read for themselves.
        from torch_distinput.engine.broadcast_feed import (  # noqa: PLC0415
            ReceivingFeed,
            SendingFeed,
        )

        try:
            broadcast.begin(self._number, timeout=self.timeout)
        except ChannelBrokenError as error:
            opening.monitor.call_roll(error)
        if broadcast.is_reader:
            return SendingFeed(
                prepared.open(opening),
                broadcast,
                self._number,
                monitor=opening.monitor,
                timeout=self.timeout,
            )
        return ReceivingFeed(
            prepared.follow(opening.shares),
            broadcast,
            self._number,
            monitor=opening.monitor,
            timeout=self.timeout,
        )

    def monitor(self) -> PeerMonitor:
        """Make what watches the other ranks, and tells them of this one."""
        heartbeat = self._session.heartbeat
        self._monitor = PeerMonitor(heartbeat, self.topic, self._number, timeout=self.timeout)
        return self._monitor

    def exchange(self) -> Exchange:
        """Make what shows the other workers something before the first step."""
        workers, heartbeat = self._session.communicator, self._session.heartbeat
        return Exchange(workers, heartbeat, self.topic, name=self._name, timeout=self.timeout)

    def compare_first_batches(self, *, has_one_kind: bool) -> Compare | None:
        """Make the comparison of first batches: kinds with workers, all of it with partners.

        None where there is nobody to compare with. Made when the feed is open.
        """
        workers, printed = self._session.communicator, self._fingerprinted
        if workers.size == 1 and printed is None:
            return None
        topic = f"first batch of {self.topic}"
        show = partial(workers.show_first, topic, timeout=self.timeout)

        def compare(kinds: Mapping[str, str], texts: Mapping[str, str]) -> None:
            if workers.size > 1:
                compare_first_batch(kinds, texts, workers.rank, show, has_one_kind=has_one_kind)
            if printed is not None and printed.first is not None:
                self._compare_with_partners(topic, printed.first)

        return compare

    def _compare_with_partners(self, topic: str, first: int) -> None:
        partners = self._session.partners
        assert partners is not None, "or nothing was printed"
        names = [f"rank {rank}" for rank in partners.meeting.ranks]
        show = partial(partners.meeting.show_first, topic, timeout=self.timeout)
        compare_partners(first, partners.meeting.rank, names, show)

    def barrier(self, monitor: PeerMonitor) -> EpochBarrier | None:
        """Make the wait at the end; None where there is nobody to wait for."""
        partners, heartbeat = self._session.partners, self._session.heartbeat
        meeting = self._session.communicator if partners is None else partners.ends
        if meeting.size == 1:
            return None
        return EpochBarrier(meeting, heartbeat, monitor, self.topic, timeout=self.timeout)

    def audit(self, read_counter: ReadCounter, record: EpochRecord, source: Input) -> Audit:
        """Make the sums that are compared at the end."""

        def expected() -> IdSum | None:
            return source.expected_ids(record.before, record.position, read_counter.reading)

        return Audit(
            self._session.communicator,
            f"audit of {self.topic}",
            timeout=self.timeout,
            gone=partial(self._session.heartbeat.peers.gone, self.timeout),
            reading=lambda: read_counter.reading,
            expected=expected,
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others, which may be inside already, and close what was opened.

        There is no iterator, so nobody else would: the threads would go on for ever.
        """
        self._session.heartbeat.tell(self.topic, error)
        if self._feed is not None:
            self._feed.close()
        if self._monitor is not None:  # or the loop around this one would end by this failure
            self._monitor.close()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRun:
    """What an iterator plays: one epoch, or the rest of one.

    Attributes:
        feed: hands over the steps.
        record: what has been delivered of them, for the dataset.
        recipe: of a state at a position.
        monitor: tells the other workers where this one is.
        read_counter: what was skipped and asked for again.
        barrier: waits for the others at the end; None where there are none.
        audit: sums what is delivered, if the user wants to know.
        shapes: completes steps.
        compare: this rank's first batch with that of another; None where there is no other.
        warnings: hears how it ends.
        cp_dim: over which sequences are cut.
        log: keeps the times of its steps; None where nothing is measured.
    """

    feed: Feed
    record: EpochRecord
    recipe: Callable[[Position], Recipe]
    monitor: PeerMonitor
    read_counter: ReadCounter
    barrier: EpochBarrier | None
    audit: Audit | None
    shapes: Shapes
    compare: Compare | None
    warnings: EpochWarnings
    cp_dim: str | None
    log: StepLog | None

    def end(self) -> None:
        """After the last step: meet the others, who may have failed, and compare if asked for.

        Raises:
            PeerFailedError: another worker has failed in this epoch.
            PeerTimeoutError: one gives no sign of life; in an audit, one did not come.
            AuditError: not each example was delivered once.
        """
        if self.audit is not None:
            self.audit.finish(self.record.examples - self.record.before.examples)
        elif self.barrier is not None:
            self.barrier.wait()
        self.warnings.end(self.record)
