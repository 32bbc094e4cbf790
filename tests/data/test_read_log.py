"""What a ReadLog has noted comes in one report, once."""

from __future__ import annotations

import threading

from torch_distinput.data.stream.bad_records import ReadLog


class Turns:
    """A lock that lets another thread go first, once, where one is about to be taken."""

    def __init__(self, lock, meanwhile):
        self._lock = lock
        self._meanwhile = [meanwhile]

    def __enter__(self):
        while self._meanwhile:
            other = threading.Thread(target=self._meanwhile.pop())
            other.start()
            other.join()
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)


def test_no_retry_is_lost_while_a_report_is_made():
    """Another thread asks its storage again after the report has begun."""
    log = ReadLog("skip")
    log.retries.add()
    log.retries._lock = Turns(log.retries._lock, log.retries.add)
    reports = [log.drain(), log.drain()]
    assert 2 == sum(report.retries for report in reports if report)


def test_a_report_comes_once():
    log = ReadLog("skip")
    log.bad("a.txt", "record 0", "torn")
    report = log.drain()
    assert ({"a.txt": 1}, {"a.txt": "record 0: torn"}) == (report.skipped, report.words)
    assert log.drain() is None
