"""What a ReadLog has noted comes in one report, once."""

from __future__ import annotations

import os
import threading

import pyarrow as pa
from pyarrow import parquet

import torch_distinput as tdi
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


def test_a_file_that_is_found_damaged_counts_in_each_epoch(tmp_path):
    """It is looked into once, and left out in all of them."""
    table = pa.table({"x": range(8)})
    for number in range(2):
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    os.truncate(tmp_path / "1.parquet", 20)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        tdi.FileDataset(f"{tmp_path}/*.parquet", reader="parquet", on_error="skip"),
        global_batch_size=4,
    )
    for _ in range(3):
        with iter(dataset) as iterator:
            assert list(range(8)) == [x for batch in iterator for x in batch["x"].tolist()]
            assert [1] == list(iterator.stats().skipped.values())
