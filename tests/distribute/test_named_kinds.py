"""What is said of batches whose structures differ."""

from __future__ import annotations

from torch_distinput.engine.same_data import name_change


def test_a_long_difference_is_told_by_what_differs():
    """Of hundreds of parts, those first that only one of them has."""
    before = {f"batch[{n}]": "torch.int64" for n in range(300)}
    now = {f"batch[{n}]": "torch.int64" for n in range(301)}
    had, got = name_change(before, now, has_one_kind=True)
    assert had.startswith("the parts ['batch[0]', ")
    assert had.endswith("'batch[7]'] and 292 more")
    assert got.startswith("the parts ['batch[300]', 'batch[0]', ")
    assert name_change(before, now, has_one_kind=False) is None
