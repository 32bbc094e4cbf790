"""What a step costs beside its bytes, in what does not depend on the machine: calls of Python."""

from __future__ import annotations

import gc
import sys
from collections import Counter

import torch_distinput as tdi
from torch_distinput.data.batch import tree
from torch_distinput.data.formats.reader import Reader

NUM_STEPS = 64
MOST_CALLS = 110
"""Some more than there are: what comes in between for each step is to be noticed."""


class Same(Reader):
    """Records that cost nothing to read: four steps in a chunk."""

    def read(self, file, part):
        del file, part
        chunk = ["a line"] * 64
        for _ in range(NUM_STEPS):
            yield chunk


def test_a_step_of_a_file_is_some_calls(tmp_path, monkeypatch):
    # Structures that other tests of this process have left are tried before that of these batches.
    monkeypatch.setattr(tree, "_known_batches", {})
    monkeypatch.setattr(tree, "_known_examples", {})
    (tmp_path / "0").write_text("found, but not read")
    strategy = tdi.MirroredStrategy(["cpu"])
    files = tdi.FileDataset(str(tmp_path / "*"), reader=Same())
    iterator = iter(strategy.distribute_dataset(files, global_batch_size=16))
    for _ in range(8):  # what is made once is made
        next(iterator)
    calls = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name] += 1

    before, was_collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers of what other tests have left are no calls of a step
    sys.setprofile(count)
    try:
        for _ in range(NUM_STEPS):
            next(iterator)
    finally:
        sys.setprofile(before)
        if was_collecting:
            gc.enable()
    assert calls.total() / NUM_STEPS < MOST_CALLS, calls
