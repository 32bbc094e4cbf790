"""What is said of the files of a mixture."""

from __future__ import annotations

from torch_distinput.data.sources.mixing.mixed_stream import _join_reports
from torch_distinput.data.stream.bad_records import ReadReport


def test_a_file_that_two_sources_read_counts_for_both() -> None:
    first = ReadReport(skipped={"a": 3}, words={"a": "x"})
    second = ReadReport(skipped={"a": 2, "b": 1}, words={"b": "y"})
    joined = _join_reports([first, None, second])
    assert joined is not None
    assert (joined.skipped, joined.words) == ({"a": 5, "b": 1}, {"a": "x", "b": "y"})
