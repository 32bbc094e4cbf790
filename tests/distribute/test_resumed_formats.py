"""Every format goes on inside its files: in units, without counts, compressed, with an index."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter

import pytest

import torch_distinput as tdi
from tests.conftest import LONG
from tests.formats import FEATURES, FORMATS
from torch_distinput import readers
from torch_distinput.data.formats import npy, sidecar_index, text
from torch_distinput.testing import simulate

SIZES = [20, 0, 9, 14, 3, 1, 26]
INDEXED = {
    "tar": readers.Tar(index="beside"),
    "tfrecord": readers.TFRecord(FEATURES, index="beside"),
}
COMPRESSED = ["text", "jsonl", "csv", "tfrecord", "tar"]
CASES = {
    **{name: (name, form.reader, False) for name, form in FORMATS.items()},
    **{f"{name}, index": (name, reader, False) for name, reader in INDEXED.items()},
    **{f"{name}, gzip": (name, FORMATS[name].reader, True) for name in COMPRESSED},
}


def play(make, ids, workers, *, state=None, steps=None):
    """Per worker the ids of some steps, and the state after them."""

    def work(strategy):
        dataset = make(strategy)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        played = [ids(batch) for batch in itertools.islice(iter(dataset), steps)]
        return played, json.dumps(dataset.state_dict())

    played, states = zip(*simulate(work, num_workers=workers), strict=True)
    assert len(set(states)) == 1
    return played, states[0]


def in_order(workers):
    """The global order, under DATA; else any order."""
    return [number for step in zip(*workers, strict=True) for part in step for number in part]


WAYS = [("file", False), ("file", True), ("data", True)]
"""Whose files are cut into units, or not; of whole ones under DATA there are tests enough."""


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "split_files"), [*WAYS, ("data", False)] if LONG else WAYS)
@pytest.mark.parametrize("case", CASES)
def test_formats(tmp_path, monkeypatch, case, policy, split_files):
    """On 3 workers, then 2, then 1; files of several units, some of them empty."""
    for module, name, size in [
        (text, "_PART_BYTES", 40), (text, "_SMALLEST_PART", 16),
        (npy, "_PART_BYTES", 24), (sidecar_index, "PART_BYTES", 60),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, size)
    name, reader, compressed = CASES[case]
    form, numbers = FORMATS[name], itertools.count()
    for place, size in enumerate(SIZES):
        content = form.write(list(itertools.islice(numbers, size)))
        path = tmp_path / f"{place}.{form.suffix}"
        if compressed:
            path, content = path.with_suffix(f"{path.suffix}.gz"), gzip.compress(content)
        path.write_bytes(content)

    def make(strategy):
        files = tdi.FileDataset(
            f"{tmp_path}/*", reader=reader, split_files=split_files, shuffle_files=True
        )
        options = tdi.InputOptions(auto_shard_policy=policy)
        return strategy.distribute_dataset(files, global_batch_size=5, options=options)

    whole, _ = play(make, form.ids, 3)
    first, state = play(make, form.ids, 3, steps=3)
    second, state = play(make, form.ids, 2, state=state, steps=4)
    third, state = play(make, form.ids, 1, state=state)
    ids = in_order(first) + in_order(second) + in_order(third)
    assert Counter(range(sum(SIZES))) == Counter(ids)
    assert policy == "file" or in_order(whole) == ids
    assert ([],) == play(make, form.ids, 1, state=state)[0]
