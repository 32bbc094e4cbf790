"""Packed rows over simulated workers: one order, each token once, a resume anywhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.packings import (
    MAKERS,
    NO_LABEL,
    PAD,
    Documents,
    check_rows,
    dicts,
    documents,
    hows,
    jagged,
    kinds,
    lengths,
    rows_of,
    show,
)
from tests.distribute.resumes import clusters, in_order, make_of, rules, run
from tests.distribute.street import one, options
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 12)
play = partial(run, show=show)


@pytest.mark.slow
@some
@given(lengths, kinds, hows, st.integers(1, 9), st.integers(1, 5), clusters, clusters, st.data())
def test_each_token_comes_once_in_one_order(sizes, kind, how, length, size, cluster, other, data):
    """On any cluster, from any step on: the rows of one process, whose labels cross nothing."""
    window, shuffle = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    source = tdi.pack(
        MAKERS[kind](documents(sizes)), length=length, how=how, window=window, pad_id=PAD
    )
    expected = in_order(play(make_of(source, size, shuffle=shuffle, seed=3), (1, 1))[0])
    check_rows(expected, sizes, length)
    steps = data.draw(st.integers(0, -(-len(expected) // size)))
    make = make_of(source, size, shuffle=shuffle, seed=3, rebatch=data.draw(rules))
    head, state = play(make, cluster, steps=steps)
    tail, _ = play(make_of(source, size, shuffle=shuffle, seed=3), other, state=state)
    assert expected == in_order(head) + in_order(tail)


@pytest.mark.slow
@some
@given(lengths, kinds, hows, clusters)
def test_with_off_each_worker_plays_all_rows(sizes, kind, how, cluster):
    source = tdi.pack(MAKERS[kind](documents(sizes)), length=5, how=how, pad_id=PAD)
    workers, _ = play(make_of(source, 2, policy="off"), cluster)
    for worker in workers:
        check_rows(in_order([worker]), sizes, 5)


@some
@given(lengths, hows, st.integers(1, 9))
def test_labels_that_a_model_shifts_cross_nothing(sizes, how, length):
    """Shifted by the model, each is the next token of the same document in the same row."""
    source = tdi.pack(
        dicts(documents(sizes)), length=length, how=how, pad_id=PAD, shift_labels=False
    )
    for batch in one().distribute_dataset(source, global_batch_size=3):
        tokens, targets = batch["input_ids"][:, :-1], batch["labels"][:, 1:]
        follows = batch["input_ids"][:, 1:] == tokens + 1  # documents are 1000 apart
        expected = torch.where(follows & (tokens != PAD), tokens + 1, NO_LABEL)
        assert expected.tolist() == targets.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS if LONG else ["dataset", "mixture"])
def test_resumes_everywhere(kind):
    """At every step, on the same workers and on others."""
    source = tdi.pack(MAKERS[kind](documents([3, 9, 1, 4, 4, 0, 12, 2])), length=6, window=3)

    def make(strategy):
        return strategy.distribute_dataset(source, global_batch_size=2, shuffle=True, seed=1)

    assert_resumes_everywhere(make)


SIZES = [5, 6, 3, 10, 2, 7, 1, 8]


def test_mix_of_packs():
    """Rows of two sources; each token of both once."""
    texts = documents(SIZES)
    parts = {"a": jagged(texts[:5]), "b": Documents(texts[5:])}
    source = tdi.mix(
        {name: tdi.pack(part, length=8, pad_id=PAD) for name, part in parts.items()},
        weights=(2, 1),
        stop="all",
    )
    workers, _ = play(make_of(source, 2, shuffle=True, seed=4), (2, 2))
    check_rows(in_order(workers), SIZES, 8)


def test_rows_of_a_mix_of_packs_are_counted_by_source():
    texts = documents(SIZES)
    packs = {name: tdi.pack(dicts(texts), length=4, how="concatenate") for name in "ab"}
    steps = iter(one().distribute_dataset(tdi.mix(packs, weights=(3, 1)), global_batch_size=4))
    next(steps)
    assert {"a": 3, "b": 1} == steps.last_step.sources


def test_pack_of_a_mix_follows_its_order():
    """Documents are packed as the mixture has them, also those that it repeats."""
    mixture = tdi.mix(
        {"a": [[10, 11], [12, 13]], "b": [[20, 21]]}, weights=(1, 1), stop="repeat"
    )
    source = tdi.pack(mixture, tokens=None, length=4, how="concatenate")
    (batch,) = one().distribute_dataset(source, global_batch_size=2)
    assert [[10, 11, 20, 21], [12, 13, 0, 0]] == batch["input_ids"].tolist()


@pytest.mark.parametrize("keywords", [{"num_workers": 2}, {"num_threads": 2}])
def test_rows_are_made_elsewhere(keywords):
    """In loader processes and threads as in the process itself."""
    source = tdi.pack(Documents(documents(SIZES)), length=8, window=4, pad_id=PAD)
    rows = [
        row
        for batch in one().distribute_dataset(source, global_batch_size=2, **keywords)
        for row in rows_of(batch)
    ]
    check_rows(rows, SIZES, 8)


def test_a_collate_fn_gets_rows():
    source = tdi.pack(dicts(documents(SIZES)), length=8)

    def collate(rows):
        return torch.stack([row["input_ids"] for row in rows])

    plain = one().distribute_dataset(source, global_batch_size=3)
    collated = one().distribute_dataset(source, global_batch_size=3, collate_fn=collate)
    for expected, got in zip(plain, collated, strict=True):
        assert expected["input_ids"].tolist() == got.tolist()


def test_the_epoch_is_told():
    """A dataset behind a packing hears which epoch is played."""
    texts = Documents(documents(SIZES))
    texts.heard = []
    texts.set_epoch = texts.heard.append
    train = one().distribute_dataset(tdi.pack(texts, length=8), global_batch_size=2)
    for _ in range(2):
        list(train)
    assert {0, 1} == set(texts.heard)


def test_len_and_spec():
    """A row is an example, and known beforehand."""
    source = tdi.pack(dicts(documents(SIZES)), length=8, how="concatenate")
    train = one().distribute_dataset(source, global_batch_size=2)
    assert -(-sum(SIZES) // 16) == len(train)
    assert tdi.TensorSpec((None, 8), torch.int32) == train.element_spec["document_ids"]


def test_a_state_of_other_lengths_is_refused():
    """Its rows would be others."""

    def distribute(sizes):
        source = tdi.pack(dicts(documents(sizes)), length=8, how="concatenate")
        return one().distribute_dataset(source, global_batch_size=2)

    train = distribute(SIZES)
    next(iter(train))
    other = distribute(SIZES[::-1])
    other.load_state_dict(train.state_dict())
    with pytest.raises(tdi.ConfigurationError, match="lengths of documents was"):
        iter(other)


def test_a_place_among_rows_is_none_among_as_many_documents():
    """Nor the other way round: a state says that documents were packed."""
    texts = [{"input_ids": [number] * 4} for number in range(6)]
    packed = one().distribute_dataset(tdi.pack(texts, length=4), global_batch_size=2)
    plain = one().distribute_dataset(texts, global_batch_size=2, collate_fn=tdi.pad_collate())
    assert len(packed) == len(plain)
    for source, target in ((packed, plain), (plain, packed)):
        next(iter(source))
        with pytest.raises(tdi.ConfigurationError, match="source was .*examples by index"):
            target.load_state_dict(source.state_dict())


def test_nor_is_one_in_a_mixture():
    texts = [{"input_ids": [number] * 4} for number in range(6)]
    mixtures = [tdi.mix({"a": a}, weights=(1,)) for a in (tdi.pack(texts, length=4), texts)]
    packed, plain = (one().distribute_dataset(each, global_batch_size=2) for each in mixtures)
    next(iter(packed))
    plain.load_state_dict(packed.state_dict())
    with pytest.raises(tdi.ConfigurationError, match=r"sources was \[\['a', 'packed'\]\]"):
        iter(plain)


def test_workers_with_other_lengths_are_found():
    """Before the first step, on all of them."""

    def work(strategy):
        sizes = SIZES if strategy.worker_index else SIZES[::-1]
        source = tdi.pack(dicts(documents(sizes)), length=8, how="concatenate")
        with pytest.raises(tdi.MismatchError, match="lengths of documents"):
            iter(strategy.distribute_dataset(source, global_batch_size=2))

    simulate(work, num_workers=2)


def test_zero_rows_have_the_length():
    """Where a replica has none."""
    source = tdi.pack(dicts([[1, 2, 3]]), length=4, layout="dense")
    (step,) = one(2).distribute_dataset(source, global_batch_size=2, options=options())
    assert [(1, 4), (0, 4)] == [tuple(part.shape) for part in step["input_ids"]]
