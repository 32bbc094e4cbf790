"""Every format on every storage, dealt out and shared, here and in loader processes."""

from __future__ import annotations

import collections
import itertools
import logging

import numpy as np
import pytest

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import options
from tests.formats import FORMATS
from tests.storages import NAMES, Local, open_storage
from torch_distinput.data.batch import rows
from torch_distinput.testing import check_reader, simulate

SIZES = (20, 0, 3, 41, 1)
POLICIES = ("file", "data")
PROCESSES = (0, 2)


def _combinations():
    """All of them, or so many that each pair of values comes together."""
    everything = list(itertools.product(FORMATS, NAMES, POLICIES, PROCESSES, (False, True)))
    if LONG:
        return everything
    pairs = {each: set(itertools.combinations(enumerate(each), 2)) for each in everything}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(everything, key=lambda each: len(pairs[each] & missing))
        missing -= pairs[best]
        chosen.add(best)
    return [each for each in everything if each in chosen]


def write(storage, form, sizes):
    """Files of these sizes with running numbers."""
    numbers = itertools.count()
    return [
        storage.put(f"{k}.{form.suffix}", form.write(list(itertools.islice(numbers, size))))
        for k, size in enumerate(sizes)
    ]


def delivered(dataset, form, *, workers=2, policy="file", **keywords):
    """How often each id was delivered, and what was skipped."""

    def work(strategy):
        distributed = strategy.distribute_dataset(
            dataset, global_batch_size=8, options=options(auto_shard_policy=policy), **keywords
        )
        with iter(distributed) as iterator:
            ids = [i for step in iterator for i in form.ids(step)]
            return ids, iterator.last_step.index, sum(iterator.stats().skipped.values())

    results = simulate(work, num_workers=workers)
    assert len({steps for _, steps, _ in results}) == 1
    counted = collections.Counter(i for ids, _, _ in results for i in ids)
    return counted, max(skipped for *_, skipped in results)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place", "policy", "processes", "split"), _combinations())
def test_exactly_once(tmp_path, monkeypatch, name, place, policy, processes, split):
    """C1, with uneven and empty files, whole and split."""
    form = FORMATS[name]
    storage = open_storage(place, tmp_path, monkeypatch)
    try:
        urls = write(storage, form, SIZES)
        dataset = tdi.FileDataset(urls, reader=form.reader, split_files=split)
        counted, _ = delivered(dataset, form, policy=policy, num_workers=processes, shuffle=True)
        assert dict.fromkeys(range(sum(SIZES)), 1) == counted
    finally:
        storage.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_keeps_the_promises(tmp_path, name):
    """The conformance test, on files of several parts."""
    form = FORMATS[name]
    path = tmp_path / f"a.{form.suffix}"
    path.write_bytes(form.write(list(range(300))))
    check_reader(form.reader, str(path), num_records=300)


ONE_UNIT = {"csv", "arrow_stream", "npz"}
"""Formats that have no place to cut."""


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - ONE_UNIT))
@pytest.mark.parametrize("sizes", [(50,), (81, 81, 81, 81, 79)])
def test_small_files_are_shared(tmp_path, name, sizes):
    """Each of three workers has about a third: from a fifth to a half."""
    form = FORMATS[name]
    dataset = tdi.FileDataset(
        write(Local(tmp_path), form, sizes), reader=form.reader, split_files=True
    )
    steps = simulate(
        lambda s: [rows.num_rows(b) for b in s.distribute_dataset(dataset, global_batch_size=4)],
        num_workers=3,
    )
    shares = list(map(sum, steps))
    assert sum(sizes) == sum(shares)
    assert 5 * min(shares) >= sum(sizes)
    assert 2 * max(shares) <= sum(sizes)


@pytest.mark.parametrize("name", ["tfrecord", "tar"])
@pytest.mark.parametrize("split_files", [False, True])
@pytest.mark.parametrize("index", ["memory", "beside"])
def test_a_file_without_a_sound_beginning(tmp_path, name, split_files, index):
    """No records are found to count, which does not mean that there are none."""
    path = tmp_path / "a"
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    reader = {"tfrecord": tdi.readers.TFRecord, "tar": tdi.readers.Tar}[name](index=index)
    for on_error, outcome in (("raise", "error"), ("skip", "skipped")):
        dataset = tdi.FileDataset(path, reader=reader, on_error=on_error, split_files=split_files)
        assert outcome == _outcome_of(dataset, path, 1)


def _mutated(content, random):
    """Cut off, turned bits, or a piece put elsewhere."""
    kind = random.integers(3)
    place = int(random.integers(len(content)))
    if kind == 0:
        return content[:place]
    out = bytearray(content)
    if kind == 1:
        for where in random.integers(len(content), size=random.integers(1, 4)).tolist():
            out[where] ^= 1 << int(random.integers(8))
        return bytes(out)
    length = int(random.integers(1, 200))
    elsewhere = int(random.integers(len(content)))
    out[place : place + length] = content[elsewhere : elsewhere + length]
    return bytes(out)


MUTATIONS = 1000 if LONG else 30
BARE = {"text", "jsonl", "csv"}
"""Formats that do not say how much there should be: a file that was cut off is a shorter file. So
is a TFRecord file that was cut off between two frames."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(tmp_path, name, caplog):
    """A clear error or counted skips; never a hang, a crash or a silent loss."""
    caplog.set_level(logging.ERROR)
    form = FORMATS[name]
    content = form.write(list(range(60)))
    random = np.random.default_rng(0)
    path = tmp_path / f"a.{form.suffix}"
    outcomes: collections.Counter = collections.Counter()
    for number in range(MUTATIONS):
        path.write_bytes(_mutated(content, random))
        raised = _outcome(path, form, "raise")
        skipped = _outcome(path, form, "skip")
        whole_frames = name == "tfrecord" and content.startswith(path.read_bytes())
        if name not in BARE and not whole_frames:
            assert "lost" not in (raised, skipped), f"mutation {number}"
        outcomes[raised, skipped] += 1
    assert set(outcomes) <= {("error", "skipped"), ("whole", "whole"), ("lost", "lost")}, outcomes
    assert outcomes["error", "skipped"] or name == "text", outcomes


def _outcome(path, form, on_error):
    """Read all of a file: an error that names it, counted skips, all records, or too few."""
    return _outcome_of(tdi.FileDataset(path, reader=form.reader, on_error=on_error), path, 60)


def _outcome_of(files, path, expected):
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=8)
    try:
        with iter(dataset) as iterator:
            count = sum(rows.num_rows(step) for step in iterator)
            skipped = iterator.stats().skipped
    except tdi.SourceError as error:
        return "error" if path.name in str(error) else f"an error without the file: {error}"
    if skipped:
        assert files.on_error == "skip"
        return "skipped"
    return "whole" if count >= expected else "lost"
