"""Packed strings go the way of all leaves: cut, padded, sent, gathered, and none at all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.replicas import per_replica
from tests.distribute.resumes import clusters, examples_of, in_order, make_of, rules, run
from tests.distribute.street import one, options, play, stream_of
from torch_distinput import PackedStrings
from torch_distinput.testing import simulate


def text_of(number):
    return None if number % 5 == 3 else f"{number} " + "é" * (number % 4)


def packed(numbers):
    return PackedStrings.from_list([text_of(number) for number in numbers], str)


def batches(count, size):
    """Global batches that are packed."""
    starts = range(0, count, size)
    return stream_of([packed(range(k, min(k + size, count))) for k in starts])


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(1, 9), clusters, rules, st.booleans(), st.booleans())
def test_columns_exactly_once(count, size, cluster, rebatch, shuffle, drop_last):
    """C1 to C3: as arrays of the same strings."""
    keywords = {"shuffle": shuffle, "drop_last": drop_last, "options": options(rebatch=rebatch)}
    expected = play(np.array(list(map(text_of, range(count))), object), size, *cluster, **keywords)
    assert expected == play(packed(range(count)), size, *cluster, **keywords)


@pytest.mark.slow
@given(st.integers(1, 25), st.integers(1, 6), clusters, clusters,
       st.sampled_from(["split", "even"]), st.integers(0, 6))  # fmt: skip
def test_ready_batches_go_on(count, size, one_cluster, other, rebatch, steps):
    """C4 under DATA, on another cluster."""
    make = make_of(batches(count, size), None, rebatch=rebatch)
    whole, _ = run(make, one_cluster)
    head, state = run(make, one_cluster, steps=steps)
    tail, _ = run(make, other, state=state)
    assert in_order(whole) == in_order(head) + in_order(tail)
    assert Counter(map(text_of, range(count))) == examples_of(head) + examples_of(tail)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_loader_processes(num_workers):
    """They carry packed strings in shared slots."""
    source = {"text": packed(range(23)), "n": torch.arange(23)}
    for batch in one().distribute_dataset(source, global_batch_size=4, num_workers=num_workers):
        assert list(map(text_of, batch["n"].tolist())) == batch["text"].to_list()


def test_steps_of_several_replicas_and_none():
    """Pieces are views of one batch; a replica without examples gets zero rows of the kind."""
    dataset = one(2).distribute_dataset({"text": packed(range(5))}, global_batch_size=4)
    spec = tdi.TensorSpec((None,), str, torch.jagged)
    assert {"text": spec} == dataset.element_spec
    first, second = (step["text"] for step in dataset)
    assert first[0].data.data_ptr() == first[1].data.data_ptr()
    assert [[text_of(4)], []] == [part.to_list() for part in second]
    lengths = one(2).run(lambda batch: len(batch["text"]), args=({"text": second},))
    assert (1, 0) == tuple(lengths)
    assert second[1] == one(2).local_results(second)[1]


def test_padded_steps():
    dataset = one(2).distribute_dataset(
        packed(range(5)), global_batch_size=4, options=options(partial_batch="pad")
    )
    spec = tdi.TensorSpec((2,), str, torch.jagged)
    assert spec == dataset.element_spec[0]
    text, mask = list(dataset)[1]
    assert [[text_of(4)] * 2, ["", ""]] == [part.to_list() for part in text]
    assert [[True, False], [False, False]] == [part.tolist() for part in mask]


@pytest.mark.parametrize("cluster", [(1, 4), (4, 1), (2, 2)])
@pytest.mark.parametrize("dtype", [str, bytes])
def test_gather(cluster, dtype):
    """Rows of all replicas in order, also of those without any; what is missing stays so."""

    def rows_of(replica):
        return [None, dtype(), dtype() + (b"\xff" if dtype is bytes else "é")][: replica % 4]

    def work(strategy):
        value = per_replica(strategy, lambda r: PackedStrings.from_list(rows_of(r), dtype))
        return strategy.gather(value)

    workers, replicas = cluster
    for got in simulate(work, num_workers=workers, replicas_per_worker=replicas):
        assert [row for replica in range(4) for row in rows_of(replica)] == got.to_list()
        assert dtype is got.dtype


def test_gather_in_order():
    def work(strategy):
        data = {"n": torch.arange(11), "text": packed(range(11))}
        with iter(strategy.distribute_dataset(data, global_batch_size=4, shuffle=True)) as steps:
            found = [(steps.last_step.ids, step["text"]) for step in steps]
        ids = np.concatenate([own for own, _ in found])
        text = PackedStrings.concat([own for _, own in found])
        return strategy.gather_in_order(ids, text)

    for got in simulate(work, num_workers=3):
        assert list(map(text_of, range(11))) == got.to_list()


def test_gather_refuses_another_kind_and_other_counts():
    def mixed(strategy):
        own = ["a"] if strategy.worker_index else PackedStrings.from_list(["a"])
        return strategy.gather(own)

    with pytest.raises(tdi.MismatchError, match=r"packed str.* on worker 0 and .*list"):
        simulate(mixed, num_workers=2)
    with pytest.raises(ValueError, match="a row at value for each of 2 indices"):
        one().gather_in_order(torch.arange(2), PackedStrings.from_list(["a"]))
    with pytest.raises(TypeError, match=r"tensor or number at value, got PackedStrings"):
        one().reduce("sum", PackedStrings.from_list(["a"]))


def test_workers_that_read_other_strings_are_told():
    """Batches of a shared stream are compared by content."""

    def work(strategy):
        source = [packed(range(4)), packed(range(4 + strategy.worker_index, 8))]
        return list(strategy.distribute_dataset(stream_of(source)))

    with pytest.raises(tdi.MismatchError):
        simulate(work, num_workers=2)


def test_columns_beside_a_list():
    with pytest.raises(TypeError, match="'text': PackedStrings.*or PackedStrings"):
        one().distribute_dataset({"text": packed(range(2)), "n": [1, 2]}, global_batch_size=1)


def test_folders_may_differ_between_nodes():
    """A column of paths, as in a list; but no other difference."""

    def work(strategy, name):
        worker = strategy.worker_index
        paths = [f"/node{worker}/{name(number, worker)}.png" for number in range(8)]
        source = PackedStrings.from_list(paths)
        return len(list(strategy.distribute_dataset(source, global_batch_size=4)))

    assert [2, 2] == simulate(lambda s: work(s, lambda number, _: number), num_workers=2)
    with pytest.raises(tdi.MismatchError):
        simulate(lambda s: work(s, lambda number, worker: number + worker), num_workers=2)
