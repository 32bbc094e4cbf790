"""What a dataset_fn is called with."""

from __future__ import annotations

import functools

import pytest

from torch_distinput.coordinator.workers.datasets import takes_context


class Maker:
    def __call__(self, where):
        return []

    def nothing(self):
        return []


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (list, False),
        (lambda context: [], True),
        (lambda where: [], True),
        (lambda context=None: [], True),
        (lambda input_context=None: [], True),
        (lambda path="x": [], False),
        (lambda *args: [], True),
        (lambda **kwargs: [], False),
        (lambda *, path="x": [], False),
        (Maker(), True),
        (Maker().nothing, False),
        (functools.partial(lambda path, context: [], "x"), True),
        (functools.partial(lambda context, path: [], path="x"), True),
        (iter, True),  # Python does not say what it takes
    ],
)
def test_a_context_is_passed_to_whatever_takes_one(function, expected) -> None:
    assert expected == takes_context(function)
