"""``stats().packing``: what the rows delivered to a worker were filled with."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from tests.distribute.packings import dicts, documents
from tests.distribute.street import one, stream_of
from torch_distinput.testing import simulate

TEXTS = documents([5, 3, 9, 1, 6, 8, 0, 4, 20, 2, 7])
LENGTH, NUM_TOKENS = 8, 65


def pack(source, **keywords):
    return tdi.pack(source, length=LENGTH, window=4, **keywords)


def bucket(rows):
    def length(row):
        return int(row["loss_mask"].sum())

    return tdi.bucket(rows, length=length, boundaries=(3,), window=4)


def stats_of(rows):
    """What rows show: documents, tokens, and the share of padding."""
    ids = [row for batch in rows for row in batch["document_ids"].tolist()]
    tokens = sum(number > 0 for row in ids for number in row)
    documents_of = sum(max(row) for row in ids)
    return len(ids), documents_of, tokens, pytest.approx(1 - tokens / (len(ids) * LENGTH))


def shown(packing):
    return packing.rows, packing.documents, packing.tokens, packing.waste


def mixture(make):
    packed = {
        "even": pack(dicts(TEXTS[::2])),
        "odd": pack(make(dicts(TEXTS[1::2]))),
    }
    return tdi.mix(packed, weights=(2, 1), stop="all")


SOURCES = {
    "by index": lambda: pack(dicts(TEXTS)),
    "a stream": lambda: pack(stream_of(dicts(TEXTS))),
    "a mixture by index": lambda: mixture(list),
    "a mixture with a stream": lambda: mixture(stream_of),
    "buckets": lambda: bucket(pack(dicts(TEXTS))),
    "buckets of a stream": lambda: bucket(pack(stream_of(dicts(TEXTS)))),
}  # fmt: skip


@pytest.mark.parametrize("balance", [None, lambda row: int(row["position_ids"].sum())])
@pytest.mark.parametrize("kind", SOURCES)
def test_each_worker_counts_its_own_rows(kind, balance):
    """At any step; so the counts of all workers add up to those of all rows."""

    def work(strategy):
        source = SOURCES[kind]()
        steps = iter(strategy.distribute_dataset(source, global_batch_size=4, balance=balance))
        rows, counted = [], []
        for step in steps:
            rows += strategy.local_results(step)
            counted.append((stats_of(rows), shown(steps.stats().packing)))
        return counted

    workers = simulate(work, num_workers=2, replicas_per_worker=2)
    assert all(seen == told for worker in workers for seen, told in worker)
    assert NUM_TOKENS == sum(worker[-1][1][2] for worker in workers)


def hide(rows):
    """A batch that does not tell what is in it."""
    return [None] * len(rows)


@pytest.mark.parametrize("source", [dicts(TEXTS), stream_of(dicts(TEXTS))])
def test_layout_and_collate_function_do_not_matter(source):
    """Nor loader processes; padding is that of dense rows."""
    plain, jagged, own = (
        play(pack(source, layout=layout), collate_fn=collate_fn)
        for layout, collate_fn in (("dense", None), ("jagged", None), ("dense", hide))
    )
    assert plain == jagged == own
    assert NUM_TOKENS == plain.tokens


def play(source, **keywords):
    steps = iter(one().distribute_dataset(source, global_batch_size=3, **keywords))
    for _ in steps:
        pass
    return steps.stats().packing


def test_loader_processes_count_too():
    packing = pack(stream_of(dicts(TEXTS)))
    assert play(packing) == play(packing, num_workers=1)


def test_rows_of_a_budget_are_counted():
    """Its batches have any number of rows."""
    budget = tdi.TokenBudget(20, length=lambda row: int((row["document_ids"] > 0).sum()))
    for source in (SOURCES["by index"](), SOURCES["a stream"]()):
        steps = iter(one().distribute_dataset(source, global_batch_size=budget))
        for _ in steps:
            pass
        assert NUM_TOKENS == steps.stats().packing.tokens == steps.stats().num_tokens


def test_a_resume_counts_what_it_delivers():
    dataset = one().distribute_dataset(SOURCES["by index"](), global_batch_size=3)
    first = iter(dataset)
    assert first.stats().packing is None
    next(first)
    dataset.load_state_dict(dataset.state_dict())
    rest = iter(dataset)
    for _ in rest:
        pass
    assert NUM_TOKENS == sum(steps.stats().packing.tokens for steps in (first, rest))


def test_nothing_is_counted_where_not_all_rows_are_packed():
    """Nor where none is."""
    rows = list(one().distribute_dataset(SOURCES["by index"](), global_batch_size=1))
    plain = [{name: leaf[0] for name, leaf in row.items()} for row in rows]
    packed = pack(dicts(TEXTS))
    for other in (plain, stream_of(plain)):
        assert play(tdi.mix({"packed": packed, "plain": other}, weights=(1, 1))) is None
    assert play([1, 2, 3]) is None
