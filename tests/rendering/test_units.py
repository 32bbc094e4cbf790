"""Numbers as people read them."""

from __future__ import annotations

import pytest

from torch_distinput.rendering.units import show_count


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "example", "0 examples"),
        (1, "example", "1 example"),
        (1000, "row", "1,000 rows"),
        (1, "loader process", "1 loader process"),
        (2, "loader process", "2 loader processes"),
        (2, "batch", "2 batches"),
        (3, "epoch", "3 epochs"),
    ],
)
def test_only_one_is_singular(number, noun, expected):
    assert expected == show_count(number, noun)
