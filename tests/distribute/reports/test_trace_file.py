"""Steps in a file, as the Trace Event Format has them."""

from __future__ import annotations

import itertools
import json
import time

import pytest
import torch

import torch_distinput as tdi
from tests.gloo.jobs import LONG_TIMEOUT, SOON
from torch_distinput.distribute.reports import trace_file
from torch_distinput.distribute.reports.trace_file import TraceFile
from torch_distinput.meter import Work
from torch_distinput.testing import simulate


def mark(step, *, length=0.010):
    """A step that was waited for half of its time."""
    asked, had = step * length, (step + 0.5) * length
    return step, 8, asked, had, (asked, had, Work(0.003, 0.001, 0.001), True, 0.0, 0.0)


def read(path):
    """The events, and those with a duration apart."""
    events = json.loads(path.read_text())
    return events, [event for event in events if event["ph"] == "X"]


def trace(path, num_steps, *, rank=0):
    """A file to which steps were written, and which was not closed."""
    file = TraceFile(str(path), rank=rank)
    for step in range(num_steps):
        file.add(mark(step))
    return file


def test_each_rank_and_dataset_has_its_file(tmp_path):
    def play(strategy):
        for _ in range(2):
            options = tdi.InputOptions(trace=tmp_path / "trace.json")
            columns = torch.arange(96)
            for _ in strategy.distribute_dataset(columns, global_batch_size=12, options=options):
                pass

    simulate(play, num_workers=2)
    names = {f"trace.dataset{dataset}.rank{rank}.json" for dataset in (0, 1) for rank in (0, 1)}
    assert names == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        events, spans = read(path)
        assert 8 == sum(event["name"] == "next" for event in spans)
        assert {int(path.stem[-1])} == {event["pid"] for event in events}


def test_two_epochs_are_in_one_file(tmp_path):
    strategy = tdi.OneDeviceStrategy("cpu")
    options = tdi.InputOptions(trace=str(tmp_path / "trace.json"))
    dataset = strategy.distribute_dataset(torch.arange(24), global_batch_size=12, options=options)
    for _ in range(2):
        assert 2 == len(list(dataset))
    _, spans = read(tmp_path / "trace.dataset0.rank0.json")
    assert [0, 1, 0, 1] == [e["args"]["step"] for e in spans if e["name"] == "next"]


def test_events_keep_to_the_format(tmp_path):
    """Names, phases and numbers that must be there; times in microseconds, in order by row."""
    file = trace(tmp_path / "t.json", 3, rank=5)
    file.close()
    events, spans = read(tmp_path / "t.json")
    assert {"M", "X"} == {event["ph"] for event in events}
    assert all({"name", "ph", "pid", "tid", "ts", "args"} <= set(event) for event in events)
    assert {5} == {event["pid"] for event in events}
    assert {"process_name", "process_sort_index", "thread_name"} == {
        event["name"] for event in events if event["ph"] == "M"
    }
    assert all(event["dur"] >= 0 for event in spans)
    waits = [event for event in spans if event["name"] == "next"]
    assert [10_000, 10_000] == [round(b["ts"] - a["ts"]) for a, b in itertools.pairwise(waits)]
    assert {5_000} == {round(event["dur"]) for event in waits}
    own = [event for event in spans if event["name"] == "your step"]
    assert [5_000, 5_000] == [round(event["dur"]) for event in own]


@pytest.mark.parametrize("rest", range(10))
def test_what_is_inside_a_wait_ends_in_it(tmp_path, rest):
    """Spans of one row either follow each other or lie in each other, as viewers ask for.

    To the nanosecond: microseconds are read as text, since of a week a float has no more of them.
    """
    file = TraceFile(str(tmp_path / "t.json"), rank=0)
    file._epoch = 417_285.0 + rest * 1.3e-10
    for step in range(9):
        file.add(mark(step))
    file.close()
    spans = [
        (event["tid"], _nanoseconds(event["ts"]), _nanoseconds(event["dur"]))
        for event in json.loads((tmp_path / "t.json").read_text(), parse_float=str)
        if event["ph"] == "X"
    ]
    for row in (0, 1):
        open_until = []
        own = [(start, duration) for of, start, duration in spans if of == row]
        for start, duration in sorted(own, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start + duration <= open_until[-1]
            open_until.append(start + duration)


def _nanoseconds(microseconds):
    """Of a decimal number in text, exactly."""
    whole, _, thousandths = microseconds.partition(".")
    assert len(thousandths) == 3
    return int(whole + thousandths)


def test_a_wait_is_cut_as_its_making_was(tmp_path):
    trace(tmp_path / "t.json", 1).close()
    _, spans = read(tmp_path / "t.json")
    parts = {e["name"]: round(e["dur"]) for e in spans if e["tid"] == 0 and e["name"] != "next"}
    assert {"source": 3_000, "decode": 1_000, "collate": 1_000} == parts
    starts = {e["name"]: e["ts"] - spans[0]["ts"] for e in spans if e["name"] in parts}
    assert {"source": 0, "decode": 3_000, "collate": 4_000} == {
        name: round(start) for name, start in starts.items()
    }


def test_the_file_of_a_job_that_is_killed_is_whole(tmp_path):
    """Without close(): what was written is a JSON document, but for the last second."""
    file = trace(tmp_path / "t.json", 200)
    _, spans = read(tmp_path / "t.json")
    assert 128 <= sum(event["name"] == "next" for event in spans) <= 200
    file.close()


def test_memory_is_bounded(tmp_path):
    file = TraceFile(str(tmp_path / "t.json"), rank=0)
    most = 0
    for step in range(500):
        file.add(mark(step, length=1e-5))
        most = max(most, len(file._pending))
    assert most < 64
    file.close()


def test_a_file_ends_where_viewers_give_up_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trace_file, "_MOST_STEPS", 100)
    trace(tmp_path / "t.json", 300).close()
    _, spans = read(tmp_path / "t.json")
    assert 128 == sum(event["name"] == "next" for event in spans)
    assert "ends here: it has 128 steps" in caplog.text


def test_a_full_disk_ends_the_file_and_not_the_training(tmp_path, caplog):
    class FullDisk:
        """Takes what there is room for."""

        def __init__(self, file):
            self._file, self.room = file, 1000

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, content):
            taken = self._file.write(content[: self.room])
            self.room = 10
            return taken

    file = trace(tmp_path / "t.json", 64)
    file._file = FullDisk(file._file)
    for step in range(64, 200):
        file.add(mark(step))
    file.close()
    assert "ends here: it cannot be written any more" in caplog.text
    assert 1 == len(caplog.records)
    _, spans = read(tmp_path / "t.json")
    assert 64 == sum(event["name"] == "next" for event in spans)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    options = tdi.InputOptions(trace=str(tmp_path / "none" / "trace.json"))
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        torch.arange(4), global_batch_size=2, options=options
    )
    with pytest.raises(tdi.ConfigurationError, match="Make the folder .*none'"):
        iter(dataset)


def test_a_folder_that_one_rank_lacks_ends_all_of_them_at_once(tmp_path):
    """The rank that cannot write says what to do, and the others say which rank it is."""

    def play(strategy):
        folder = tmp_path / "none" if strategy.worker_index == 1 else tmp_path
        options = tdi.InputOptions(trace=folder / "trace.json", timeout=LONG_TIMEOUT)
        try:
            dataset = strategy.distribute_dataset(
                torch.arange(4), global_batch_size=2, options=options
            )
            next(iter(dataset))
        except tdi.DistinputError as error:
            return f"{type(error).__name__}: {error}"

    started = time.monotonic()
    first, second, third = simulate(play, num_workers=3)
    assert time.monotonic() - started < SOON
    assert second.startswith("ConfigurationError: Expected InputOptions.trace")
    assert first == third
    assert first.startswith("PeerFailedError")
    assert "worker 1: ConfigurationError: Expected InputOptions.trace" in first


@pytest.mark.parametrize("trace", [None, 1, "", ".", "traces/", b"trace.json"])
def test_what_is_no_path_is_refused(trace):
    with pytest.raises(TypeError, match="trace must be True, False or the path of a file"):
        tdi.InputOptions(trace=trace)
