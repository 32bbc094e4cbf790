"""What notebooks show: who has which rows, without reading, waiting or failing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from torch_distinput.rendering.lanes import Lane, draw_lanes
from torch_distinput.rendering.notebook import show
from torch_distinput.testing import simulate


class Text(HTMLParser):
    """The texts of a fragment, which must close what it opens."""

    def __init__(self, fragment):
        super().__init__()
        self.texts, self.open, self.tags = [], [], set()
        self.feed(fragment)
        assert [] == self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


def texts(value):
    return Text(value if isinstance(value, str) else value._repr_html_()).texts


def play_one_step(strategy, size=10, global_batch_size=10):
    dataset = strategy.distribute_dataset(
        torch.arange(size), global_batch_size=global_batch_size
    )
    return next(dataset.steps())


class TestLanes:
    def test_a_row_is_a_cell_with_its_name(self):
        lane = Lane(label="replica 1", rank=1, start=2, num_rows=2, names=("2", "3"))
        assert ["replica 1", "2", "3", "2 rows"] == texts(draw_lanes([lane], num_rows=4))

    def test_a_replica_without_rows_says_so(self):
        lane = Lane(label="replica 1", rank=0, start=4, num_rows=0)
        assert ["replica 1", "zero rows"] == texts(draw_lanes([lane], num_rows=4))

    def test_many_rows_are_one_block_with_its_ends(self):
        names = tuple(map(str, range(100)))
        lane = Lane(label="a", rank=0, start=0, num_rows=100, names=names)
        assert ["a", "0 \N{EN DASH} 99", "100 rows"] == texts(draw_lanes([lane], num_rows=100))

    def test_ranks_have_colours_and_a_legend(self):
        lanes = [Lane(label="x", rank=rank, start=rank, num_rows=1) for rank in range(2)]
        drawn = draw_lanes(lanes, num_rows=2)
        assert ["rank 0", "rank 1"] == texts(drawn)[-2:]
        assert 4 == len(re.findall("background:#(?:0969da|bc4c00)", drawn))  # and in the legend

    def test_hidden_replicas_are_mentioned(self):
        lane = Lane(label="x", rank=0, start=0, num_rows=1)
        assert "and 1,000 more replicas" in texts(draw_lanes([lane], num_rows=1, num_hidden=1000))


def test_a_dataset_shows_the_rows_of_a_full_step():
    shown = simulate(
        lambda strategy: texts(
            strategy.distribute_dataset(torch.arange(9), global_batch_size=3)._repr_html_()
        ),
        num_workers=2,
        replicas_per_worker=2,
    )
    picture = shown[1][shown[1].index("replica 0 (rank 0)") :]
    assert picture == [
        *("replica 0 (rank 0)", "0", "1 row", "replica 1 (rank 0)", "1", "1 row"),
        *("replica 2 (rank 1)", "2", "1 row", "replica 3 (rank 1)", "zero rows"),
        *("rank 0", "rank 1"),
    ]


def test_under_file_rows_have_no_numbers_as_each_rank_has_its_own():
    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    dataset = strategy.distribute_dataset(tdi.FileDataset(["a", "b"]), global_batch_size=5)
    shown = texts(dataset)
    assert "A full step: each rank takes its rows from files or shards of its own." in shown
    at = shown.index("replica 0 (rank 0)")
    assert ["3 rows", "replica 1 (rank 0)", "2 rows"] == shown[at + 1 :]


def test_a_dataset_shows_where_it_goes_on():
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        torch.arange(2000), global_batch_size=1000
    )
    assert "epoch 0" in texts(dataset)
    next(iter(dataset))
    dataset.load_state_dict(dataset.state_dict())
    assert "epoch 0, after 1 step (1,000 examples)" in texts(dataset)


def test_to_be_shown_a_dataset_reads_nothing_and_asks_nobody():
    """Worker 1 does not take part."""
    read = []

    def numbers():
        read.append(1)
        yield from range(10)

    def play(strategy):
        dataset = strategy.distribute_dataset(numbers, global_batch_size=4)
        return dataset._repr_html_() if strategy.worker_index == 0 else None

    assert "DistributedDataset(numbers)" in texts(simulate(play, num_workers=2)[0])
    assert [] == read


@pytest.mark.parametrize("make", ["function", "budget", "balance", "batches"])
def test_batches_of_no_fixed_cut_have_facts_and_no_picture(make):
    strategy, rows = tdi.OneDeviceStrategy("cpu"), {"n": torch.arange(1, 9)}
    dataset = {
        "function": lambda: strategy.distribute_datasets_from_function(lambda _: [rows]),
        "budget": lambda: strategy.distribute_dataset(
            rows, global_batch_size=tdi.TokenBudget(9, length="n")
        ),
        "balance": lambda: strategy.distribute_dataset(rows, global_batch_size=2, balance="n"),
        "batches": lambda: strategy.distribute_dataset(lambda: iter([torch.ones(2)])),
    }[make]()
    assert "epoch 0" in texts(dataset)
    assert "A full step" not in dataset._repr_html_()


def test_a_step_shows_the_ids_of_this_rank_and_how_many_the_others_have():
    shown = simulate(lambda strategy: texts(play_one_step(strategy)), num_workers=2)
    own = ["replica 1", "5", "6", "7", "8", "9", "5 rows"]
    assert [*own, "other ranks", "5 rows"] == shown[1][-9:]


def test_a_step_without_rows_here_says_so():
    shown = simulate(lambda strategy: texts(play_one_step(strategy, size=1)), num_workers=2)
    assert ["replica 1", "zero rows", "other ranks", "1 row"] == shown[1][-4:]


def test_facts_of_a_step_do_not_know_the_rank():
    info = simulate(play_one_step, num_workers=2)[1].info
    assert "local replica 0" in texts(info)


def test_ids_of_files_are_written_with_a_colon():
    ids = np.array([[0, 7], [1, 2]])
    info = tdi.StepInfo(index=0, num_examples=2, local_counts=(2,), ids=ids, num_tokens=5)
    shown = texts(info)
    assert "0:7" in shown
    assert ["tokens, all ranks", "5"] == shown[shown.index("tokens, all ranks") :][:2]


def test_values_of_replicas_show_shapes_and_rows():
    values = tdi.PerReplica((torch.ones(2, 3), torch.ones(0, 3)))
    assert [
        *("PerReplica: 2 local replicas", "replica 0", "float32 (2, 3) on cpu"),
        *("replica 1", "float32 (0, 3) on cpu", "replica 0", "2 rows", "replica 1", "zero rows"),
    ] == texts(values)


def test_text_of_a_user_is_no_markup():
    values = tdi.PerReplica((["<b>"], {"<script>": "&"}))
    parsed = Text(values._repr_html_())
    assert "list ['<b>']" in parsed.texts
    assert not {"script", "b"} & parsed.tags


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


def test_a_part_that_fails_is_left_out():
    assert ["PerReplica: 1 local replica"] == texts(tdi.PerReplica((Broken(),)))
    assert ["title", "well"] == texts(show("title", lambda: 1 / 0, lambda: "well"))


def test_stats_show_what_was_counted():
    stats = tdi.InputStats(
        steps=1200, examples=3, zero_row_batches=0, wait_seconds=0.12345, skipped={"<f>": 2}
    )
    shown = texts(stats)
    assert {"1,200", "0.123", "skipped: <f>"} <= set(shown)
    assert "num_tokens" not in shown


def test_a_topology_shows_each_replica_in_sync():
    topology = tdi.Topology(num_workers=2, replicas_per_worker=2, worker_index=1)
    assert ["worker 0", "0", "1", "worker 1", "2", "3"] == texts(topology)[1:]


def test_a_large_cluster_stays_a_small_picture():
    topology = tdi.Topology(num_workers=16_384, replicas_per_worker=64)
    shown = topology._repr_html_()
    assert "and 16,352 more workers" in texts(shown)
    assert len(shown) < 100_000


def test_an_iterator_prints_where_it_stands():
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.ones(2), global_batch_size=1)
    with iter(dataset) as iterator:
        next(iterator)
        assert "DistributedIterator(epoch=0, steps=1, open)" == repr(iterator)
    assert "DistributedIterator(epoch=0, steps=1, ended)" == repr(iterator)
