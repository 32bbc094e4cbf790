"""Every kind of source, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Subset,
    TensorDataset,
)

import torch_distinput as tdi
from tests.distribute.example_sources import Item, Point, Squares, Stream, first, flat
from tests.distribute.street import Shards, listed, options, play, shown, stream_of
from torch_distinput.testing import simulate


class TestKinds:
    """What a source can be."""

    def test_columns(self):
        """Tensors, arrays, tuples, dicts, TensorDataset: fetched by whole index arrays."""
        x, y = torch.arange(6).reshape(3, 2), np.arange(3.0)
        assert [[0, 1], [2, 3]] == first(x, 2).tolist()
        assert [0.0, 1.0] == first(y, 2).tolist()
        pair = first((x, y), 2)
        assert isinstance(pair, tuple)
        assert {"x", "y"} == set(first({"x": x, "y": y}, 2))
        assert [0.0, 1.0] == first(TensorDataset(x, torch.from_numpy(y)), 2)[1].tolist()
        point = first(Point(x, y), 2)
        assert (Point, [0.0, 1.0]) == (type(point), point.y.tolist())

    def test_columns_with_a_collate_fn(self):
        """It gets examples, as in a DataLoader."""
        columns = torch.arange(4), torch.arange(4) + 10
        batch = first(columns, 2, collate_fn=lambda rows: torch.stack([y for _, y in rows]))
        assert [10, 11] == batch.tolist()

    def test_string_arrays_stay_arrays(self):
        """torch has no strings."""
        batch = first(np.array(["a", "b", "c"]), 2)
        assert ["a", "b"] == list(batch)

    def test_map_style(self):
        """With and without ``__getitems__``; a list is indexable."""
        many = Squares(5, many=True)
        assert [0, 1, 4, 9] == first(many, 4).tolist() == first(Squares(5), 4).tolist()
        assert 4 in many.asked
        assert [7, 8] == first([7, 8, 9], 2).tolist()
        assert [4, 9] == first(Subset(Squares(5), [2, 3]), 2).tolist()

    def test_structures_of_examples(self):
        """Tuples stay tuples, dataclasses keep their class, lists become tuples of columns."""
        item = first([Item(torch.ones(2), k) for k in range(3)], 2)
        assert (Item, (2, 2), [0, 1]) == (type(item), tuple(item.image.shape), item.label.tolist())
        nested = first([{"a": (k, [str(k), b"x"])} for k in range(3)], 2)
        assert [0, 1] == nested["a"][0].tolist()
        assert (["0", "1"], [b"x", b"x"]) == nested["a"][1]
        images, names = first(((torch.ones(2), "a"), (torch.ones(2), "b")), 2)
        assert ((2, 2), ["a", "b"]) == (tuple(images.shape), names)
        point = first([Point(k, np.ones(2)) for k in range(3)], 2)
        assert ((2, 2), torch.float64) == (tuple(point.y.shape), point.y.dtype)

    def test_streams(self):
        """IterableDataset, generator function, any iterable that starts again."""
        for source in (Stream(), stream_of(range(7)), dict.fromkeys(range(7)).keys()):
            assert list(range(7)) == flat(play(source, 3))

    def test_nodes(self):
        """torchdata nodes are reset every epoch."""
        import torchdata.nodes as tn

        node = tn.IterableWrapper(range(7))
        assert [*range(7), *range(7)] == flat(play(node, 3, epochs=2))
        loader = tn.Loader(tn.Batcher(tn.IterableWrapper(range(7)), 3, drop_last=False))
        mapped = stream_of([torch.tensor(batch) for batch in loader])
        assert list(range(7)) == flat(play(mapped, None))


def test_strategies():
    """Topologies and devices."""
    strategy = tdi.MirroredStrategy(["cpu", "cpu"])
    assert (2, 1, 0) == (
        strategy.num_replicas_in_sync,
        strategy.num_workers,
        strategy.worker_index,
    )
    assert "MirroredStrategy(worker 0 of 1, devices cpu, cpu)" == repr(strategy)
    assert (torch.device("cpu"),) == tdi.OneDeviceStrategy("cpu").devices
    for wrong in ([], "cpu"):
        with pytest.raises(ValueError, match="one per replica"):
            tdi.MirroredStrategy(wrong)
    with pytest.raises(ValueError, match="data_dims"):
        tdi.MultiWorkerMirroredStrategy(data_dims=["dp"])


def test_shards_with_fewer_shards_than_workers():
    """On every worker, before the first step."""

    def work(strategy):
        dataset = strategy.distribute_dataset(Shards([[1], [2]]), global_batch_size=2)
        with pytest.raises(tdi.TooFewFilesError, match="has 2 for 3 workers"):
            iter(dataset)
        whole = strategy.distribute_dataset(
            Shards([[1], [2]]), global_batch_size=2, options=options(auto_shard_policy="data")
        )
        return [shown(strategy, step) for step in whole]

    assert [1, 2] == sorted(flat(simulate(work, num_workers=3)))


def test_listed():
    """The helper of these tests."""
    assert [1] == listed(torch.tensor([1]))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["columns", "arrays", "stream"])
def test_the_default_device_is_another(kind, large):
    """Scripts set it to their accelerator; batches are made in host memory all the same."""
    rows = np.arange(5.0)[:, None] * np.ones(20_000 if large else 2)
    source = {
        "columns": torch.from_numpy(rows),
        "arrays": list(rows),
        "stream": lambda: iter(rows),
    }[kind]
    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    with torch.device("meta"):
        steps = list(strategy.distribute_dataset(source, global_batch_size=4))
    assert [[[0, 1], [2, 3]], [[4], []]] == [[b[:, 0].tolist() for b in step] for step in steps]
