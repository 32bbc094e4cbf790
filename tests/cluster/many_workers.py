"""Workers without threads, whose hearts beat when they are told to; see test_watch.py."""

from __future__ import annotations

import random

import torch_distinput as tdi
from torch_distinput.cluster.liveness import heartbeat
from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.status import Activity

SIZE = 40
TIMEOUT = 16.0
TOPIC = "iteration 0"


class Board:
    """One worker's end of notes in memory; it numbers the workers from itself on."""

    def __init__(self, town, own):
        self.town, self.rank, self.size = town, 0, len(town.names)
        self.names = [*town.names[own:], *town.names[:own]]
        self.num_read = 0

    def post(self, text):
        self.town.notes[self.names[0]] = text

    def read(self):
        self.num_read += len(self.town.notes)
        notes = self.town.notes
        return {worker: notes[name] for worker, name in enumerate(self.names) if name in notes}

    def post_summary(self, text):
        self.town.summaries.append(text)

    def read_summary(self):
        self.num_read += 1
        return self.town.summaries[-1] if self.town.summaries else ""

    def claim(self, term):
        is_first = term not in self.town.terms
        self.town.terms.add(term)
        return is_first


class Fresh:
    """An event that is waited for in the town's time."""

    def __init__(self, town):
        self.town = town

    def wait(self, seconds):
        self.town.sleep(seconds)

    def set(self):
        pass

    def clear(self):
        pass


class Town:
    """Workers whose hearts beat once a second, in any order, when they are told to."""

    def __init__(self, monkeypatch, size=SIZE):
        self.now = 1000.0
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(heartbeat.time, "sleep", self.sleep)
        self.names = [10 * number for number in range(size)]
        self.notes, self.summaries, self.terms = {}, [], set()
        self.boards = [Board(self, own) for own in range(size)]
        self.hearts = [
            Heartbeat(board, [f"rank {name}" for name in board.names]) for board in self.boards
        ]
        self.alive = set(range(size))
        self.order = random.Random(0)
        for own, heart in enumerate(self.hearts):
            heart.peers.heard.heard_at = self.now
            heart._fresh = Fresh(self)
            heart.outside = Activity("training after", TOPIC, own % 3, self.now)
        self.live(3)

    def sleep(self, seconds):
        """All hearts go on beating while somebody sleeps."""
        self.now += seconds
        if int(self.now) > int(self.now - seconds):
            self.beat()

    def live(self, beats):
        """A second for each beat of all."""
        for _ in range(beats):
            self.now += 1.0
            self.beat()

    def beat(self):
        for worker in self.order.sample(sorted(self.alive), len(self.alive)):
            self.hearts[worker]._beat(self.boards[worker])

    def leave(self, worker):
        """Say good-bye."""
        self.alive.discard(worker)
        self.hearts[worker]._post(self.boards[worker], has_left=True)

    def words(self, worker):
        """What the look of a worker raises; "" if nothing."""
        monitor = PeerMonitor(self.hearts[worker], TOPIC, 0, timeout=TIMEOUT)
        try:
            monitor.look()
            monitor.check_company(1)
        except tdi.DistinputError as error:
            return str(error)
        return ""

    def all_words(self):
        return {worker: self.words(worker) for worker in self.alive}

    @property
    def watchers(self):
        return [worker for worker in self.alive if self.hearts[worker].peers.heard.hears_all]
