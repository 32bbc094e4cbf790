"""The protocol of the coordinated stop, in every order in which two threads may do its parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.cluster.liveness.coordinated_stop import CoordinatedStop


class Torn(CoordinatedStop):
    """A stop whose other thread comes in between: after a claim, and before it is read."""

    come_in = None
    _claimed = 0

    @property
    def claimed(self):
        claimed = self._claimed
        self._interrupt("read")
        return claimed

    @claimed.setter
    def claimed(self, step):
        self._claimed = step
        self._interrupt("claimed")

    def _interrupt(self, where):
        come_in, self.come_in = self.come_in, None
        if come_in is not None:
            come_in(where)


class Job:
    """Workers whose threads do one part at a time; ``coupled`` by a collective in each step."""

    def __init__(self, size, *, coupled):
        self.stops = [Torn() for _ in range(size)]
        self.votes = [None] * size
        self.has_claimed = [False] * size
        self.first_seen = [None] * size
        self.coupled = coupled

    def main(self, worker):
        """Up to the next step, and the user's look at the flag."""
        stop = self.stops[worker]
        others = [other.delivered for other in self.stops]
        if self.coupled and stop.delivered > min(others):
            return  # inside the collective of its last step
        if not self.has_claimed[worker]:
            self.has_claimed[worker] = True
            may_go = stop.claim()
        else:
            may_go = stop.may_go()
        if not may_go:
            return
        self.has_claimed[worker] = False
        stop.delivered += 1
        if stop.is_due and self.first_seen[worker] is None:
            self.first_seen[worker] = stop.delivered
        assert stop.is_due == (self.first_seen[worker] is not None)

    def heart(self, worker):
        """Hear the votes of the others and post the own one."""
        self.stops[worker].hear([v for w, v in enumerate(self.votes) if w != worker])
        self.votes[worker] = self.stops[worker].vote

    def end(self):
        """Go on, each worker in turn, until all have seen a request."""
        self.stops[0].is_requested = True
        for _ in range(100):
            for worker in range(len(self.stops)):
                self.main(worker)
                self.heart(worker)
        assert None not in self.first_seen


@given(st.integers(2, 4), st.booleans(), st.data())
def test_all_workers_stop_at_one_step(size, coupled, data):
    """Whatever the order of the threads, the requests, and the collectives between the steps."""
    job = Job(size, coupled=coupled)
    parts = st.tuples(
        st.sampled_from(["main", "main", "heart", "torn main", "torn heart", "request"]),
        st.integers(0, size - 1),
    )
    for part, worker in data.draw(st.lists(parts, max_size=40)):
        stop = job.stops[worker]
        if part == "request":
            stop.is_requested = True
        elif part == "torn main":  # the heart comes in between the claim and the look
            stop.come_in = lambda where, w=worker: job.heart(w) if where == "claimed" else None
            job.main(worker)
        elif part == "torn heart":  # a step comes in between the question and the vote
            stop.come_in = lambda where, w=worker: job.main(w) if where == "read" else None
            job.heart(worker)
        else:
            getattr(job, part)(worker)
        stop.come_in = None
    job.end()
    assert 1 == len(set(job.first_seen))


@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_all_workers_stop_at_one_step_after_their_errors(size, num_errors, data):
    """Each gets all of them, after steps of its own, and counts on without a meeting."""
    job = Job(size, coupled=False)
    met = [0] * size  # errors
    begun = [0] * size  # what the last one had been counted to

    def fail(worker):
        stop = job.stops[worker]
        stop.unclaim()
        stop.skip_ahead()
        assert not stop.is_due
        met[worker] += 1
        job.has_claimed[worker] = False
        job.first_seen[worker], begun[worker] = None, stop.delivered

    parts = st.tuples(
        st.sampled_from(["main", "main", "heart", "fail", "request"]), st.integers(0, size - 1)
    )
    for part, worker in data.draw(st.lists(parts, max_size=40)):
        if part == "request":
            job.stops[worker].is_requested = True
        elif part != "fail":
            getattr(job, part)(worker)
        elif met[worker] < num_errors:
            fail(worker)
    for worker in range(size):
        while met[worker] < num_errors:
            fail(worker)
    job.end()
    assert 1 == len({seen - first for seen, first in zip(job.first_seen, begun, strict=True)})
