"""What a plan says beyond steps and rows: bytes, requests, costs, notes, refusals, pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.street import stream_of
from torch_distinput.data.storage.range_reader import count_requests, open_ranged
from torch_distinput.data.storage.retries import Retries
from torch_distinput.inspect.planner.known_files import deal, deal_even_parts
from torch_distinput.inspect.planner.plan_page import list_rows


def plan(source=(700, 300, 500), workers=3, size=60, **keywords):
    source = list(source) if isinstance(source, tuple) else source
    return tdi.plan_epoch(source, num_workers=workers, global_batch_size=size, **keywords)


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 18) + 1, 15 << 18, (15 << 18) + 1, 9 << 21])
def test_requests_are_counted_as_they_are_made(size):
    asked = []

    def fetch(start, stop):
        asked.append((start, stop))
        return bytes(stop - start)

    with open_ranged(fetch, size, path="x", retries=Retries()) as opened:
        while opened.read(1 << 16):
            pass
    assert [len(asked)] == count_requests(np.array([size])).tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(1, 7), st.data())
def test_even_parts_are_dealt_as_if_they_were_made(values, num_workers, data):
    draw = st.lists(st.integers(1, 9), min_size=len(values), max_size=len(values))
    counts = np.array(data.draw(draw))
    values = np.array(values) * counts
    parts = np.repeat(values // counts, counts)
    expected = deal(parts, num_workers)
    assert expected.tolist() == deal_even_parts(values, counts, num_workers).tolist()


def test_all_workers_read_all_bytes_under_data():
    found = plan(bytes_per_example=10, options=tdi.InputOptions(auto_shard_policy="data"))
    assert 15_000 == found.num_bytes
    assert [15_000] * 3 == found.bytes_by_worker.tolist()


def test_what_each_way_to_read_costs_is_said_beside_the_one_that_is_planned():
    costs = {cost.name: cost for cost in plan(bytes_per_example=10).costs}
    assert ["FILE", "FILE, split_files", "DATA"] == list(costs)
    assert (36, 21, 15_000) == tuple(
        getattr(costs["FILE"], name) for name in ("steps", "zero_row_steps", "num_bytes")
    )
    assert (25, 0, 45_000) == tuple(
        getattr(costs["DATA"], name) for name in ("steps", "zero_row_steps", "num_bytes")
    )
    assert costs["FILE, split_files"].zero_row_steps < costs["FILE"].zero_row_steps
    assert not costs["FILE, split_files"].is_exact


def test_too_few_files_are_refused_as_in_a_run_and_named_beside_another_policy():
    with pytest.raises(tdi.TooFewFilesError, match="3 files has 3 for 4 workers"):
        plan(workers=4)
    found = plan(workers=4, options=tdi.InputOptions(auto_shard_policy="data"))
    assert "fewer files than workers" in str(found)


def test_what_nobody_has_counted_is_unknown_and_said_to_be(tmp_path):
    (tmp_path / "a.txt").write_text("x\n" * 30)
    found = plan(str(tmp_path / "*.txt"), workers=1)
    assert (None, None, False, 60) == (
        *(found.steps, found.imbalance, found.is_exact, found.num_bytes),
    )
    assert "steps                ?" in str(found)
    assert any("bytes_per_example" in note for note in found.notes)


def test_a_batch_that_leaves_replicas_without_rows_is_pointed_out():
    found = plan(1000, workers=40, size=64)
    assert (16, 15, 0) == (found.steps, found.zero_row_steps, found.first_zero_row_step)
    assert 'rows for 32 of 40 replicas only: rebatch="even" gives some to all' in found.notes[0]
    even = tdi.InputOptions(rebatch="even")
    assert () == plan(1000, workers=40, size=64, options=even).notes
    assert "of 40 or more" in plan(1000, workers=40, size=30, options=even).notes[0]


def test_what_splitting_costs_is_that_of_a_run_with_split_files(tmp_path):
    """Of few files a run makes more parts than it reads them in."""
    for name, rows in (("a", 40), ("b", 70), ("c", 50)):
        np.save(tmp_path / f"{name}.npy", np.zeros(rows))
    paths = str(tmp_path / "*.npy")
    files = [tdi.FileDataset(paths, reader="npy", split_files=split) for split in (False, True)]
    whole, split = (plan(source, workers=2, size=8, count=True) for source in files)
    assert (24, 22) == (whole.steps, split.steps)
    assert [24, 22, 20] == [cost.steps for cost in whole.costs]


def test_bytes_that_nobody_has_seen_are_said_to_be_estimated():
    assert any("Bytes are estimated" in note for note in plan(bytes_per_example=10).notes)
    assert any("Bytes are estimated" in note for note in plan(100, bytes_per_example=10).notes)


@pytest.mark.parametrize("source", [0, [0, 0, 0]])
def test_of_nothing_there_are_no_steps_and_no_picture(source):
    found = plan(source)
    assert (0, 0, None, None) == (
        *(found.steps, found.zero_row_steps, found.first_zero_row_step, found.imbalance),
    )
    assert "<svg" not in found._repr_html_()
    assert "none" in str(found)


def test_files_are_listed_by_every_worker(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("x\n")
    assert 3 == plan(str(tmp_path / "*.txt")).listing_requests


REFUSED = [
    ((stream_of([1]),), {}, "counted before they are read"),
    (([3, -1],), {}, "-1 among them"),
    ((np.array([3, 4]),), {"size": None}, "global_batch_size to be the number"),
    ((10,), {"count": True}, "count with paths only"),
    ((10,), {"storage_options": {"anon": True}}, "storage_options with paths only"),
    (((5, 6, 7),), {"split_files": True}, "split_files with paths only"),
    ((10,), {"bytes_per_example": float("nan")}, "a number above 0, got nan"),
    ((10,), {"options": tdi.InputOptions(auto_shard_policy="file")}, "files or shards to deal out"),
    (((5, 6, 7),), {"size": tdi.TokenBudget(6, length=len)}, "number of examples"),
]


@pytest.mark.parametrize(("source", "keywords", "expected"), REFUSED)
def test_what_cannot_be_planned_is_refused_with_the_cure(source, keywords, expected):
    with pytest.raises(ValueError, match=expected):
        plan(*source, **keywords)


def test_what_a_file_dataset_says_itself_is_refused_beside_it(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(ValueError, match="a FileDataset has what it is made with"):
        plan(tdi.FileDataset(str(tmp_path / "*.txt")), split_files=True)


def test_a_source_without_files_has_no_files_of_a_worker():
    with pytest.raises(ValueError, match="a plan of files, got 0 of Tensor"):
        plan(torch.arange(9)).files_of(0)


def test_the_picture_has_a_row_for_each_worker_and_a_border_between_files():
    rows = list_rows(plan((700, 300, 500, 700), workers=2))
    assert [("worker 0", 1.0, 1), ("worker 1", 1000 / 1200, 1)] == [
        (row.name, row.most, len(row.borders)) for row in rows
    ]


def test_many_workers_are_drawn_together():
    rows = list_rows(plan(np.arange(1, 16_385), workers=16_384, size=16_384))
    assert 32 == len(rows)
    assert ("15872 to 16383", 15873 / 16384, 1.0) == (rows[-1].name, rows[-1].least, rows[-1].most)


def test_rows_of_a_shared_stream_do_not_end_one_after_another():
    """The rows of worker 39 are in the last step only: nothing of it is a time."""
    found = plan(1000, workers=40, size=64)._repr_html_()
    assert ">examples 31<" in found
    assert "step 16" not in found
    assert "none left" not in found


def test_a_notebook_shows_the_picture_and_a_page_has_the_same(tmp_path):
    found = plan(bytes_per_example=10)
    found.save(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert found._repr_html_() in page
    assert "http" not in page.replace("http-equiv", "")
    assert 3 == page.count(">worker ")
