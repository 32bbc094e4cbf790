"""Ranks that leave records for one another, and the guard of one that is left alone."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from torch_distinput.inspect.doctor.watching.record_folder import RecordFolder, guarded
from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.session import DoctorSession


def record(rank: int, was_stopped: bool = False) -> RankRecord:
    return RankRecord(
        rank=rank, num_ranks=2, outcome="ran to the end", was_stopped=was_stopped, loaders=()
    )


def folder_of(folder: Path, rank: int, patience: float = 0.0) -> RecordFolder:
    return RecordFolder(folder, rank=rank, num_ranks=2, patience=patience)


def test_records_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path) -> None:
    for rank in (0, 1):
        folder_of(tmp_path, rank).leave(record(rank))
    first, _ = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    assert [] == first.wait_for_records()
    first.leave(record(0))
    assert [record(0)] == first.wait_for_records()


def test_when_all_ranks_have_left_nothing_is_left(tmp_path) -> None:
    path = tmp_path / "job"
    first, second = folder_of(path, 0), folder_of(path, 1)
    first.leave(record(0))
    second.leave(record(1))
    assert [record(0), record(1)] == first.wait_for_records()
    first.mark_reported()
    second.wait_for_report()
    assert not path.exists()


def test_a_rank_is_alone_when_another_ended_and_it_fetches_nothing(tmp_path) -> None:
    first, second = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    assert not first.is_left_alone(last_moment=0.0)
    second.leave(record(1))
    first.is_left_alone(last_moment=0.0)  # sees the end: from now on it is patient
    assert first.is_left_alone(last_moment=0.0)
    patient = folder_of(tmp_path, 0, patience=1000.0)
    assert not patient.is_left_alone(last_moment=0.0)


def test_a_rank_that_is_left_alone_leaves_its_record_and_is_ended(tmp_path, monkeypatch) -> None:
    """In the guard's thread: the main thread may be in a collective."""
    exits, has_ended = [], threading.Event()
    first, second = folder_of(tmp_path, 0), folder_of(tmp_path, 1)

    def leave_process(status: int) -> None:
        exits.append((status, len(second.wait_for_records())))
        has_ended.set()

    def give_up() -> int:
        first.leave(record(0))
        return 3

    monkeypatch.setattr(os, "_exit", leave_process)
    second.leave(record(1))
    with guarded(first, last_moment=lambda: 0.0, give_up=give_up, say_quiet=lambda: True):
        assert has_ended.wait(timeout=30)
    assert (3, 2) == exits[0]  # here the thread goes on


@pytest.mark.parametrize(
    ("stopped", "status", "outcome"),
    [
        ((True, True), 0, "Rank 0: waited for ranks that were stopped, as asked."),
        ((True, False), 1, "Rank 0: waited for ranks that had ended."),
        ((False, False), 1, "Rank 0: waited for ranks that had ended."),
    ],
)
def test_a_rank_that_waits_for_ranks_the_doctor_stopped_has_not_failed(
    stopped, status, outcome, tmp_path, capsys
) -> None:
    alone = DoctorSession(rank=0, num_ranks=3, steps=9, patience=0.0, folder=tmp_path)
    for rank, was_stopped in enumerate(stopped, 1):
        folder_of(tmp_path, rank).leave(record(rank, was_stopped))
    assert status == alone._give_up()
    assert outcome in capsys.readouterr().out


def test_a_rank_that_goes_on_is_left_in_peace(tmp_path, monkeypatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    first, second = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    second.leave(record(1))
    was_asked, asks = threading.Event(), []

    def now() -> float:
        asks.append(1)
        if len(asks) > 2:  # twice in a round: whether it is alone, whether it is quiet
            was_asked.set()
        return time.monotonic() + 1

    with guarded(first, last_moment=now, give_up=lambda: 1, say_quiet=lambda: False):
        assert was_asked.wait(timeout=30)
    assert [] == exits


def test_a_rank_that_fetches_nothing_says_so_once(tmp_path) -> None:
    was_said, said = threading.Event(), []

    def say_quiet() -> bool:
        said.append(1)
        if len(said) == 2:
            was_said.set()
        return len(said) == 2  # the first time, other ranks are not quiet yet

    with guarded(
        folder_of(tmp_path, 0), last_moment=lambda: 0.0, give_up=lambda: 1, say_quiet=say_quiet
    ):
        assert was_said.wait(timeout=30)
    assert 2 == len(said)


def test_what_the_guard_has_begun_is_over_before_the_process_goes_on(tmp_path) -> None:
    """Else two threads write one record, and one of them finds it gone."""
    has_begun, said, never = threading.Event(), [], threading.Event()

    def say_quiet() -> bool:
        has_begun.set()
        never.wait(timeout=0.05)  # the other thread leaves the block meanwhile
        said.append(1)
        return True

    with guarded(
        folder_of(tmp_path, 0), last_moment=lambda: 0.0, give_up=lambda: 1, say_quiet=say_quiet
    ):
        assert has_begun.wait(timeout=30)
    assert [1] == said


def test_ranks_that_are_all_quiet_are_reported_while_they_go_on(tmp_path, capsys) -> None:
    """They may wait for one another, in collectives that are not the same."""
    first, second = (
        DoctorSession(rank=rank, num_ranks=2, steps=9, patience=3.0, folder=tmp_path)
        for rank in (0, 1)
    )
    assert not first._say_quiet()  # rank 1 is not quiet yet
    assert second._say_quiet()
    assert "" == capsys.readouterr().out
    assert first._say_quiet()
    printed = capsys.readouterr().out
    assert "No rank fetches a batch. They go on" in printed
    assert "Ranks 0, 1: fetched nothing for 3 seconds." in printed


def test_a_rank_that_is_left_alone_after_the_report_was_not_stopped(tmp_path) -> None:
    """A record may be gone, or go while it is read."""
    assert not folder_of(tmp_path, 1).were_others_stopped()
    left = tmp_path / "rank-0.json"
    left.symlink_to(tmp_path / "gone")  # there in the folder, and not there to be read
    assert not folder_of(tmp_path, 1).were_others_stopped()
