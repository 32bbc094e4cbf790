"""InputOptions(audit=True): an epoch that was not delivered as it should be is an error."""

from __future__ import annotations

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.street import Shards, options, stream_of
from torch_distinput.data.steps.local_step import LocalStep, empty_step
from torch_distinput.engine import feeds, voted_feed
from torch_distinput.plan.progress.checksum import IdSum, sum_ids
from torch_distinput.testing import simulate

SHARDS = Shards([[1, 2, 3], [4], [], [5, 6]])


def sources(folder):
    """Of every kind, with what is known of their ids."""
    pattern = write_numbers(folder, [range(9), [], range(20, 24), range(40, 45)])
    return {
        "columns": torch.arange(21),
        "stream": stream_of(range(13)),
        "shards": SHARDS,
        "counted": tdi.FileDataset(pattern, reader=Numbers(counted=True)).shuffle(4),
        "files": tdi.FileDataset(pattern, reader=Numbers()).filter(lambda number: number % 2),
    }


def distributed(strategy, source, **keywords):
    """An audited dataset."""
    return strategy.distribute_dataset(
        source, global_batch_size=4, options=options(audit=True), **keywords
    )


@pytest.mark.parametrize("name", ["columns", "stream", "shards", "counted", "files"])
@pytest.mark.parametrize("cluster", [(1, 1), (3, 2)])
def test_a_good_epoch_passes(tmp_path, name, cluster):
    """Also the rest of one, and the next."""
    source = sources(tmp_path)[name]

    def work(strategy):
        dataset = distributed(strategy, source)
        num_steps = sum(1 for _ in dataset)
        next(iter(dataset))
        state = dataset.state_dict()
        dataset.load_state_dict(state)
        rest = sum(1 for _ in dataset)
        return num_steps - rest, sum(1 for _ in dataset) - num_steps

    workers = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    assert {(1, 0)} == set(workers)


@pytest.mark.parametrize("name", ["columns", "stream", "shards", "counted", "files"])
def test_a_lost_step(tmp_path, monkeypatch, name):
    """One worker's examples of one step vanish behind the cut."""
    source = sources(tmp_path)[name]
    whole = feeds.PlannedFeed.next, voted_feed.VotedFeed.next

    def losing(inner):
        def lost(self, index):
            delivery = inner(self, index)
            if delivery is None or self._worker or index or delivery.step is None:
                return delivery
            return delivery._replace(step=empty_step(1))

        return lost

    monkeypatch.setattr(feeds.PlannedFeed, "next", losing(whole[0]))
    monkeypatch.setattr(voted_feed.VotedFeed, "next", losing(whole[1]))

    def work(strategy):
        with pytest.raises(tdi.AuditError, match=r"but the replicas got .*worker 0: \d+, worker 1"):
            list(distributed(strategy, source))

    simulate(work, num_workers=2)


@pytest.mark.parametrize("name", ["columns", "stream", "counted"])
def test_examples_that_come_twice(tmp_path, monkeypatch, name):
    """As many as there should be, but not the right ones."""
    source = sources(tmp_path)[name]

    def repeating(inner):
        def repeated(self, index):
            delivery = inner(self, index)
            step = delivery.step if delivery else None
            if step is None or step.parts[0] is None:
                return delivery
            (part,) = step.parts
            twice = part._replace(ids=part.ids[[0] * len(part.ids)])
            return delivery._replace(step=LocalStep(parts=(twice,), sizes=step.sizes))

        return repeated

    for kind in (feeds.PlannedFeed, voted_feed.VotedFeed):
        monkeypatch.setattr(kind, "next", repeating(kind.next))

    def work(strategy):
        with pytest.raises(tdi.AuditError, match="some came twice and others not at all"):
            list(distributed(strategy, source))

    simulate(work, num_workers=2)


@pytest.mark.parametrize("source", [range(9), stream_of(range(9))])
def test_everybody_plays_everything(source):
    """Under OFF there is nothing to compare with."""

    def work(strategy):
        chosen = options(audit=True, auto_shard_policy="off")
        return len(list(strategy.distribute_dataset(source, global_batch_size=4, options=chosen)))

    assert [6, 6] == simulate(work, num_workers=2)


def test_sums():
    """They do not depend on order or grouping, and tell rows and columns apart."""
    ids = torch.randint(1 << 40, (50, 2)).numpy()
    total = sum_ids(ids)
    assert total == sum_ids(ids[::-1].copy()) == sum_ids(ids[:20]) + sum_ids(ids[20:])
    assert total == IdSum() + total
    assert 50 == total.count
    for other in (ids[:, ::-1].copy(), ids ^ 1, ids[[*range(49), 0]]):
        assert total != sum_ids(other)
    assert sum_ids(ids[:, 0].copy()) == sum_ids(ids[:, 0])  # strided
