"""Packed strings from every source that has them: each once, on from the middle, audited."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.resumes import clusters, examples_of, make_of, rules, run, with_recipe
from tests.distribute.street import options, stream_of
from torch_distinput import PackedStrings
from torch_distinput.testing import simulate

COUNT = 21
TEXTS = [f"{number} " + "é" * (number % 4) if number % 5 else "" for number in range(COUNT)]
RECIPES = ["none", "shuffle", "interleave", "filter", "take", "repeat", "all"]


def pack(texts):
    """As a part of something larger."""
    return PackedStrings.from_list(["é?", *texts, "x"], str)[1:-1]


def write_lines(folder, lengths):
    """Files of so many lines each; their number."""
    first = 0
    for number, length in enumerate(lengths):
        lines = "".join(f"{n}\n" for n in range(first, first + length))
        (Path(folder) / f"{number}.txt").write_text(lines)
        first += length
    return first


def sources(folder):
    """A source of each kind that can have them, and its global batch size."""
    for number, start in enumerate(range(0, COUNT, 6)):
        lines = "".join(f"{text}\n" for text in TEXTS[start : start + 6])
        (folder / f"{number}.txt").write_text(lines)
    files = partial(tdi.FileDataset, str(folder / "*.txt"), strings="packed")
    ready = [pack(TEXTS[start : start + 4]) for start in range(0, COUNT, 4)]
    loader = partial(torch.utils.data.DataLoader, TEXTS, collate_fn=PackedStrings.from_list)
    return {
        "columns": (pack(TEXTS), 4),
        "ready batches": (stream_of(ready), None),
        "loader": (loader(batch_size=4), None),
        "files": (files(), 4),
        "split files": (files(split_files=True).shuffle(5), 4),
        "interleaved": (files().interleave(2, 1), 4),
    }


KINDS = ["columns", "loader", "files", "split files", "interleaved"]
WAYS = [(kind, partial_batch) for kind in KINDS for partial_batch in ("zero_rows", "pad")]


@pytest.mark.parametrize("cluster", [(1, 1), (3, 2)])
@pytest.mark.parametrize(("kind", "partial_batch"), [*WAYS, ("ready batches", "zero_rows")])
def test_each_example_once_in_an_audited_epoch(tmp_path, kind, cluster, partial_batch):
    """Twice, and a rest after a few steps; what fills a step up is told by its mask."""
    source, size = sources(tmp_path)[kind]

    def work(strategy):
        chosen = options(audit=True, partial_batch=partial_batch)
        dataset = strategy.distribute_dataset(source, global_batch_size=size, options=chosen)
        whole = [rows_of(strategy, step) for step in dataset]
        with iter(dataset) as steps:
            head = [rows_of(strategy, step) for step in islice(steps, 2)]
            state = dataset.state_dict()
        dataset.load_state_dict(state)
        return whole, head + [rows_of(strategy, step) for step in dataset]

    workers = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    for epoch in range(2):
        assert Counter(TEXTS) == Counter(
            text for worker in workers for step in worker[epoch] for text in step
        )


def rows_of(strategy, step):
    """The rows that are examples, of all replicas."""
    rows = []
    for batch in strategy.local_results(step):
        text, mask = batch if isinstance(batch, tuple) else (batch, None)
        assert isinstance(text, PackedStrings)
        rows += text.to_list() if mask is None else text[mask].to_list()
    return rows


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=6), st.sampled_from(RECIPES),
    clusters, clusters, rules, st.integers(0, 4),
)  # fmt: skip
def test_files_give_what_they_give_as_lists(lengths, recipe, cluster, other, rebatch, steps):
    """C1 to C4: in the same steps, and on from the middle on another cluster."""
    with TemporaryDirectory() as folder:
        write_lines(folder, lengths)
        played = {}
        for strings in ("list", "packed"):
            files = tdi.FileDataset(f"{folder}/*.txt", strings=strings)
            make = make_of(with_recipe(files, recipe), 3, rebatch=rebatch)
            head, state = run(make, cluster, steps=steps)
            tail, _ = run(make, other, state=state)
            played[strings] = run(make, cluster)[0], head, tail
    assert played["list"] == played["packed"]
    whole, head, tail = map(examples_of, played["packed"])
    assert whole == head + tail or recipe in ("take", "all")
