"""What a ReadLog has noted comes in one report, once."""

from __future__ import annotations

import sys
import threading

import pytest

from torch_distinput.data.stream.bad_records import ReadLog


@pytest.fixture
def _hasty():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty")
def test_no_retry_is_lost_or_counted_twice_between_reports():
    log = ReadLog()
    readers = [
        threading.Thread(target=lambda: [log.retries.add() for _ in range(5000)]) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    reported = 0
    while any(reader.is_alive() for reader in readers) or log.retries.count:
        report = log.drain()
        reported += report.retries if report else 0
    assert 4 * 5000 == reported
