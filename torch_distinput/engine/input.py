"""What every input can do, and what it is given to start an epoch.

input.prepare(position) -> PreparedEpoch     its facts and its share are shown to all workers
prepared.open(opening) -> Feed               with what all have shown
prepared.follow(shares) -> Origin            instead, where another rank reads
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch_distinput.cluster.agreement.agreement_channel import AgreementChannel
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.data.sources.spot_check import Fingerprints
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.engine.feeds import Feed
from torch_distinput.meter import WorkClock
from torch_distinput.plan.assignment.batching import Idle
from torch_distinput.plan.progress.checksum import IdSum, Reading
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.state import Recipe
from torch_distinput.plan.progress.state_version_1 import Flat


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a feed needs beside its input.

    Attributes:
        shares: what each worker has found out for all: the results of :meth:`PreparedEpoch.share`.
        read_counter: takes notes on what is read.
        monitor: tells and hears of failures.
        agreement_channel: where workers agree.
        timeout: seconds that a worker waits for another.
        exchange: shows fingerprints to the other workers, and returns those of all; called as
            often by each of them.
        checks_data: compare the data of the workers, as far as that is cheap.
    """

    shares: list[Any]
    read_counter: ReadCounter
    monitor: PeerMonitor
    agreement_channel: AgreementChannel
    timeout: float
    exchange: Callable[[Fingerprints], list[Fingerprints]]
    checks_data: bool


class PreparedEpoch(Protocol):
    """An epoch, or the rest of one, whose files and indices are known here."""

    @property
    def facts(self) -> dict[str, object]:
        """What must be equal on all workers."""

    def recipe(self, position: Position) -> Recipe:
        """As :meth:`Input.recipe`, of this epoch, whatever is played after it."""

    def share(self) -> object:
        """What this worker finds out for all, as plain values."""

    def first_example(self, *, audited: bool) -> int | None:
        """A fingerprint of one example that all workers have; None without one.

        ``audited``: also where it costs something.
        """

    def open(self, opening: Opening) -> Feed:
        """Start reading."""

    def follow(self, shares: list[Any]) -> Origin:
        """Where the epoch starts, for a worker that reads nothing: another rank sends its steps.

        ``shares``: as of an :class:`Opening`.
        """


class Input(Protocol):
    """Data that can be opened once per epoch.

    Attributes:
        clock: counts what is decoded and collated; None where nothing is measured.
        has_one_kind: see :class:`Request`.
    """

    clock: WorkClock | None
    has_one_kind: bool

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch."""

    def read_version_1(self, flat: Flat) -> Start:
        """The place in a stream that a state of version 1 holds."""

    def recipe(self, position: Position) -> Recipe:
        """What decides which examples an epoch has, and their order; finds files."""

    def prepare(self, position: Position) -> PreparedEpoch:
        """Find files, sample the order of examples; so it may raise. Once for each ``iter()``."""

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """One step of the epoch, of all workers at once; None if there is none."""

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """The sum of this worker's share of all ids in between; None where it is not known.

        ``reading``: what it has read of a stream that all workers share.
        """

    def num_steps(self, position: Position) -> int | None:
        """Steps of the epoch, those before the position included; None where not known."""

    def idle(self, epoch: int) -> Idle | None:
        """The zero-row batches of an epoch; None where they are not known beforehand."""

    def num_parts(self) -> int | None:
        """Parts of files that are dealt out instead of files; None: there are none, or unknown."""

    def spec(self, epoch: int) -> Any:
        """The spec of a batch with ids where it needs no other worker, else None."""
