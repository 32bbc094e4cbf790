"""Packed rows of streams and files: windows are read again, and no token is lost or repeated."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.packings import (
    PAD,
    STREAMS,
    check_rows,
    dicts,
    documents,
    hows,
    lengths,
    rows_of,
    show,
    write_documents,
)
from tests.distribute.resumes import clusters, in_order, make_of, rules, run
from tests.distribute.street import one, options, stream_of
from torch_distinput.testing import assert_resumes_everywhere

some = settings(max_examples=300 if LONG else 8)
play = partial(run, show=show)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    base = tmp_path_factory.mktemp("documents")
    return (base / f"{number}" for number in itertools.count())


@pytest.mark.slow
@some
@given(lengths, st.sampled_from(sorted(STREAMS)), hows, clusters, clusters, rules, st.data())
def test_one_order_under_data(folders, sizes, kind, how, cluster, other, rule, data):
    """On any cluster, from any step on: the rows of one process."""
    length, window = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    size, other_size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    documents_of = STREAMS[kind](next(folders), documents(sizes))
    source = tdi.pack(documents_of, length=length, how=how, window=window, pad_id=PAD)
    expected = in_order(play(make_of(source, size, policy="data"), (1, 1))[0])
    check_rows(expected, sizes, length)
    steps = data.draw(st.integers(0, -(-len(expected) // size)))
    head, state = play(make_of(source, size, policy="data", rebatch=rule), cluster, steps=steps)
    tail, _ = play(make_of(source, other_size, policy="data"), other, state=state)
    assert expected == in_order(head) + in_order(tail)


@pytest.mark.slow
@some
@given(lengths, hows, clusters, clusters, st.booleans(), st.data())
def test_files_are_dealt_out(folders, sizes, how, cluster, other, shuffle, data):
    """Under FILE each worker packs its own; a resume on others repeats and loses no token."""
    length, window = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    texts = documents(sizes) + [[]] * max(0, 4 - len(sizes))
    files = write_documents(next(folders), texts, per_file=1)
    source = tdi.pack(files, length=length, how=how, window=window, pad_id=PAD)
    make = make_of(source, 3, policy="file", shuffle=shuffle, seed=2)
    head, state = play(make, cluster, steps=data.draw(st.integers(0, 6)))
    tail, _ = play(make, other, state=state)
    check_rows(in_order(head) + in_order(tail), sizes, length)


SIZES = [5, 6, 3, 10, 2, 7, 1, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy", "elsewhere"),
    [("files", "data", [(1, 1), (3, 2)]), ("stream", "off", []), ("files", "file", [(1, 2)])],
)
def test_resumes_everywhere(tmp_path, kind, policy, elsewhere):
    """At every step; a place is that of a window, and the rows that came of it."""
    source = tdi.pack(STREAMS[kind](tmp_path / "documents", documents(SIZES)), length=6, window=3)

    def make(strategy):
        chosen = options(auto_shard_policy=policy)
        return strategy.distribute_dataset(source, global_batch_size=2, options=chosen)

    assert_resumes_everywhere(make, elsewhere=elsewhere)


def test_a_state_holds_no_rows():
    """However long they are."""
    texts = [[1] * 5000, [2] * 5000]
    train = one().distribute_dataset(
        tdi.pack(stream_of(texts), length=100, tokens=None), global_batch_size=3
    )
    steps = iter(train)
    next(steps)
    state = json.dumps(train.state_dict())
    assert '["pack", ["window", 0], ["plan", "feb245fbd3733513"], ["skip", 0]' in state
    assert len(state) < 1000


def test_a_window_ends_a_row():
    """Of a stream also concatenation fills up the last row of each window."""
    texts = [[1, 2, 3], [4, 5], [6, 7]]
    packing = tdi.pack(
        stream_of(texts), length=4, tokens=None, how="concatenate", window=2, pad_id=9
    )
    (batch,) = one().distribute_dataset(packing, global_batch_size=5)
    assert [[1, 2, 3, 4], [5, 9, 9, 9], [6, 7, 9, 9]] == batch["input_ids"].tolist()
    assert [[0, 0], [1, 1], [2, 0]] == steps_ids(packing)


def steps_ids(packing):
    """The ids of the first step: the document with which a row begins, and its token."""
    steps = iter(one().distribute_dataset(packing, global_batch_size=5))
    next(steps)
    return steps.last_step.ids.tolist()


@pytest.mark.slow
def test_rows_of_streams_are_mixed():
    """A mixture of packed streams, and of such with others."""
    texts = documents(SIZES)
    packs = {
        "stream": tdi.pack(stream_of(dicts(texts[:4])), length=8, window=3, pad_id=PAD),
        "indexed": tdi.pack(dicts(texts[4:]), length=8, pad_id=PAD),
    }
    source = tdi.mix(packs, weights=(2, 1), stop="all")
    workers, _ = play(make_of(source, 2), (2, 2))
    check_rows(in_order(workers), SIZES, 8)
    assert_resumes_everywhere(
        lambda strategy: strategy.distribute_dataset(source, global_batch_size=2),
        elsewhere=[(1, 1)],
    )


def test_packs_of_files_are_mixed_under_file(tmp_path):
    """Each worker mixes rows of its own files."""
    texts = documents(SIZES)
    packs = {
        "a": tdi.pack(write_documents(tmp_path / "a", texts[:4], per_file=1), length=8, pad_id=PAD),
        "b": tdi.pack(write_documents(tmp_path / "b", texts[4:], per_file=2), length=8, pad_id=PAD),
    }
    source = tdi.mix(packs, weights=(2, 1), stop="all")
    workers, _ = play(make_of(source, 2, policy="file"), (2, 1))
    check_rows(in_order(workers), SIZES, 8)


@pytest.mark.parametrize("keywords", [{}, {"num_workers": 2}])
def test_rows_are_collated_elsewhere(keywords):
    """In loader processes; the window is made where the stream is read."""
    source = tdi.pack(stream_of(dicts(documents(SIZES))), length=8, window=4, pad_id=PAD)
    train = one().distribute_dataset(
        source, global_batch_size=2, options=options(audit=True), **keywords
    )
    check_rows([row for batch in train for row in rows_of(batch)], SIZES, 8)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_jagged_rows_are_those_of_documents_by_index(num_workers):
    """Whether all rows of a batch are full, or not."""
    texts = dicts(documents([4, 4, 3, 4, 2]))
    strategy = one(2)

    def play(source):
        packing = tdi.pack(source, length=4, layout="jagged")
        steps = strategy.distribute_dataset(
            packing, global_batch_size=2, num_workers=num_workers
        )
        batches = [batch for step in steps for batch in strategy.local_results(step)]
        assert all(leaf.is_nested for batch in batches for leaf in batch.values())
        return list(map(rows_of, batches))

    assert play(texts) == play(stream_of(texts))


REFUSED = {
    "no column": (stream_of(dicts([[1]])), {"tokens": "ids"}, "column 'ids', got a source with"),
    "text": (stream_of(["abc"]), {"tokens": None}, "got a str. Turn text into tokens"),
    "too few labels": (
        stream_of([{"input_ids": [1, 2], "labels": [1]}]), {"labels": "labels"},
        "Expected 2 values in column 'labels' of document 0.* got 1",
    ),
    "a long one": (
        stream_of([[1], [1] * 6]), {"tokens": None, "long_documents": "error"},
        "got 6 tokens in document 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_documents(case):
    """On the rank that reads them, with what was expected."""
    source, keywords, message = REFUSED[case]
    packing = tdi.pack(source, **{"length": 5, **keywords})
    with pytest.raises(tdi.SourceError, match=f"Worker 0, step 0.*{message}"):
        next(iter(one().distribute_dataset(packing, global_batch_size=2)))


def test_a_shuffle_of_rows_is_refused():
    """Of a stream: there is no order of rows."""
    packing = tdi.pack(stream_of(dicts([[1]])), length=5)
    with pytest.raises(tdi.ConfigurationError, match="shuffle=True needs a source with an index"):
        one().distribute_dataset(packing, global_batch_size=2, shuffle=True)
