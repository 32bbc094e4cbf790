"""Files over real ranks."""

from __future__ import annotations

import collections
from functools import partial
from pathlib import Path

import pytest

import torch_distinput as tdi
from tests.formats import FORMATS
from torch_distinput.testing import run_ranks, run_ranks_outcomes


def job(paths, name, keywords, strategy):
    """Ids, steps, skips, and whether there were votes."""
    form = FORMATS[name]
    dataset = strategy.distribute_dataset(
        tdi.FileDataset(paths, reader=form.reader, **keywords), global_batch_size=8, shuffle=True
    )
    with iter(dataset) as iterator:
        ids = [i for step in iterator for i in form.ids(step)]
        stats = iterator.stats()
    voted = dataset._agreement_channel._channel is not None
    return ids, stats.steps, sum(stats.skipped.values()), voted


def write(folder, name, sizes):
    """Files with running numbers."""
    form, start, paths = FORMATS[name], 0, []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.{form.suffix}"
        path.write_bytes(form.write(list(range(start, start + size))))
        paths.append(str(path))
        start += size
    return paths


@pytest.mark.parametrize("name", ["parquet", "jsonl", "tar"])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_exactly_once(tmp_path, name, num_workers):
    """Uneven and empty files; only the format that counts its rows needs no votes."""
    paths = write(tmp_path, name, [21, 0, 40, 3])
    work = partial(job, paths, name, {"split_files": True})
    results = run_ranks(work, num_workers)
    counted = collections.Counter(i for ids, *_ in results for i in ids)
    assert dict.fromkeys(range(64), 1) == counted
    assert len({steps for _, steps, *_ in results}) == 1
    if name in ("parquet", "jsonl"):
        assert {voted for *_, voted in results} == {name == "jsonl"}


def test_a_bad_record_on_one_rank(tmp_path):
    """The rank that skips stays in step; the rank that raises is named."""
    paths = write(tmp_path, "jsonl", [20, 20])
    with Path(paths[1]).open("a") as file:
        file.write('{"id": 3\n' + '{"id": 40, "label": 0, "text": "good"}\n')
    results = run_ranks(partial(job, paths, "jsonl", {"on_error": "skip"}), 2)
    assert set(range(41)) == {i for ids, *_ in results for i in ids}
    assert len({steps for _, steps, *_ in results}) == 1
    assert sum(skipped for *_, skipped, _ in results) == 1
    outcomes = run_ranks_outcomes(partial(job, paths, "jsonl", {}), 2)
    kinds = sorted(type(outcome.error).__name__ for outcome in outcomes)
    assert kinds == ["PeerFailedError", "SourceError"]
    for outcome in outcomes:
        assert "1.jsonl, record 20: Expected a JSON object" in str(outcome.error)
