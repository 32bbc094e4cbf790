"""What Keras does, recorded from it: each case is played, but for those that are its faults."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from tests.golden_keras import cases, play
from torch_distinput import PackedStrings
from torch_distinput.preprocessing.strings.packed import PackedColumn

CASES = {case["id"]: case for case in cases()}
PLAYED = [name for name, case in CASES.items() if "quirk" not in case["tags"]]


def test_the_file_has_what_it_had():
    """A case that gets lost, or is marked as a fault of Keras, is not missed otherwise."""
    assert (252, 252, 13) == (len(cases()), len(CASES), len(CASES) - len(PLAYED))


@pytest.mark.parametrize("name", PLAYED)
def test_as_keras_does(name):
    assert play(CASES[name]) is None


def packed(inputs):
    """Strings among the inputs, packed."""
    if isinstance(inputs, (list, tuple)):
        return [packed(column) for column in inputs]
    if not isinstance(inputs, np.ndarray) or inputs.dtype != object or not inputs.ndim:
        return inputs
    strings = PackedStrings.from_list(inputs.reshape(-1).tolist(), str)
    given.append(strings)
    return strings if inputs.ndim == 1 else PackedColumn(strings, inputs.shape)


given: list = []


@pytest.mark.slow
def test_as_keras_does_with_packed_strings():
    """All of it again, in one test: cases without strings are the same."""
    found = {name: play(CASES[name], packed) for name in PLAYED}
    assert {} == {name: what for name, what in found.items() if what}
    assert len(given) > 100


@pytest.mark.parametrize("name", PLAYED)
def test_each_recorded_output_is_compared(name):
    case = CASES[name]
    if "adapt_approx" in case["tags"]:  # Keras's outputs depend on its batches there
        return
    for number, call in enumerate(case.get("calls", [])):
        if "output" in call:
            changed = copy.deepcopy(case)
            changed["calls"][number]["output"]["shape"].append(1)
            assert f"call {number}: shape" in str(play(changed))
