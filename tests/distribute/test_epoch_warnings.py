"""What a dataset warns of, once and on one worker: parts too few, and epochs without a step."""

from __future__ import annotations

import itertools
import logging
import re

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler, TensorDataset

import torch_distinput as tdi
from tests.distribute.street import Shards, options, play, stream_of, write_files
from torch_distinput.testing import simulate


def said(caplog, words, source, workers=2, **keywords):
    """The warnings with some words of two epochs."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        play(source, 4, workers, epochs=2, **keywords)
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [message for message in found if words in message]


def make_csv(folder, num_files):
    """CSV files, which are not cut."""
    for number in range(num_files):
        (folder / f"{number}.csv").write_text("id\n" + "1\n" * 9)
    return tdi.FileDataset(str(folder / "*.csv"), reader="csv", split_files=True).map(
        lambda row: row["id"]
    )


def test_split_files_with_fewer_parts_than_workers(tmp_path, caplog):
    """One CSV file is one part: the other workers get zero rows throughout."""
    (words,) = said(caplog, "a part of a file", make_csv(tmp_path, 1), 3)
    assert "for each of 3 workers, got 1" in words
    assert 'auto_shard_policy="data"' in words


@pytest.mark.parametrize(
    ("size", "rule", "cure"),
    [
        (2, "split", "The global batch size is 2, and there are 3 replicas"),
        (3, "split", 'partial_batch="pad"'),
        (4, "split", 'Pieces of 2 of 4 examples leave some of 3 replicas.*rebatch="even"'),
        (4, "cycle", 'partial_batch="pad"'),
    ],
)
def test_replicas_without_examples(caplog, size, rule, cure):
    """What helps depends on the batch size."""
    with caplog.at_level(logging.WARNING):
        play(torch.arange(5), size, 3, options=options(rebatch=rule))
    (words,) = (r.getMessage() for r in caplog.records if "no examples" in r.getMessage())
    assert re.search(cure, words)


class TestADatasetForEachEpoch:
    """Each of them would have the order of epoch 0."""

    def play(self, caplog, data, *, epochs=3, before=lambda dataset, epoch: None, **keywords):
        """The warnings of datasets that are made anew for each epoch."""
        strategy = tdi.OneDeviceStrategy("cpu")
        keywords = {"global_batch_size": 4, "shuffle": True, **keywords}
        with caplog.at_level(logging.WARNING):
            for epoch in range(epochs):
                dataset = strategy.distribute_dataset(data(), **keywords)
                before(dataset, epoch)
                list(dataset)
        return [r.getMessage() for r in caplog.records]

    @pytest.mark.parametrize("is_loader", [False, True])
    def test_is_told_once(self, caplog, is_loader):
        numbers = torch.utils.data.TensorDataset(torch.arange(8))
        if is_loader:
            keywords = {"shuffle": False, "global_batch_size": None}
            messages = self.play(caplog, lambda: DataLoader(numbers, 4, shuffle=True), **keywords)
        else:
            messages = self.play(caplog, lambda: numbers)
        (words,) = messages
        assert "before the loop over epochs" in words

    @pytest.mark.parametrize("kind", ["columns", "tuple", "files", "mixture", "buckets", "packing"])
    def test_is_told_of_all_that_can_be_recognized(self, caplog, tmp_path, kind):
        """Dicts and tuples of columns may themselves be made anew."""
        (tmp_path / "a.txt").write_text("1\n2\n3\n4\n5\n")
        numbers, files = torch.arange(8), tdi.FileDataset(f"{tmp_path}/*.txt")
        documents = torch.ones(8, 3, dtype=torch.int64)
        kept = {
            "files": files,
            "mixture": tdi.mix({"a": documents}, weights={"a": 1.0}),
            "buckets": tdi.bucket(documents, length=lambda row: 3, boundaries=[4]),
            "packing": tdi.pack(documents, length=6, tokens=None),
        }
        made = {"columns": lambda: {"x": numbers}, "tuple": lambda: (numbers, numbers)}
        messages = self.play(caplog, made.get(kind, lambda: kept[kind]))
        assert 1 == sum("before the loop over epochs" in words for words in messages)

    def test_is_none_where_the_order_is_another(self, caplog):
        numbers = torch.arange(8)
        assert not self.play(caplog, lambda: numbers, shuffle=False)
        assert not self.play(caplog, lambda: torch.arange(8))  # other data
        kept = [torch.arange(8) for _ in range(3)]
        targets = iter(kept)
        assert not self.play(caplog, lambda: {"x": numbers, "y": next(targets)})
        parts = iter(torch.utils.data.random_split(range(9), [3, 3, 3]))
        assert not self.play(caplog, lambda: next(parts), global_batch_size=1)
        assert not self.play(
            caplog, lambda: numbers, before=lambda dataset, epoch: dataset.set_epoch(epoch)
        )

    def test_is_told_by_one_worker(self, caplog):
        numbers = torch.arange(8)

        def work(strategy):
            for _ in range(2):
                list(strategy.distribute_dataset(numbers, global_batch_size=4, shuffle=True))

        with caplog.at_level(logging.WARNING):
            simulate(work, num_workers=2)
        assert 1 == len(caplog.records)

    def test_is_none_where_an_epoch_goes_on_or_is_another(self, caplog):
        strategy, numbers = tdi.OneDeviceStrategy("cpu"), torch.arange(8)

        def make():
            return strategy.distribute_dataset(numbers, global_batch_size=4, shuffle=True)

        second = make()
        second.set_epoch(1)
        list(second)
        first = make()
        iterator = iter(first)
        next(iterator)
        state = first.state_dict()
        list(iterator)
        resumed = make()
        resumed.load_state_dict(state)
        assert 1 == len(list(resumed))
        assert not caplog.records

    def test_is_none_where_one_dataset_is_told_to_begin_again(self, caplog):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            torch.arange(8), global_batch_size=4, shuffle=True
        )
        for _ in range(3):
            dataset.set_epoch(0)
            list(dataset)
        assert not caplog.records


@pytest.mark.slow
def test_split_files_with_enough_parts(tmp_path, caplog):
    """Nothing is said of as many files as workers, of lines, or under DATA."""
    files = make_csv(tmp_path, 2)
    assert [] == said(caplog, "a part of a file", files, 2)
    shared = options(auto_shard_policy="data")
    assert [] == said(caplog, "a part of a file", files, 3, options=shared)
    lines = tdi.FileDataset(write_files(tmp_path, [range(9000)]), split_files=True).map(int)
    assert [] == said(caplog, "a part of a file", lines, 3)


@pytest.mark.parametrize(
    ("reader", "name", "splits"),
    [("csv", "one", False), ("jsonl", "one", True), ("text", "one", True), ("text", "1.gz", False)],
)
def test_split_files_is_advised_where_it_cuts(tmp_path, reader, name, splits):
    """Not for CSV, nor for what is compressed."""
    (tmp_path / name).write_text("1\n")
    files = tdi.FileDataset(str(tmp_path / name), reader=reader)
    with pytest.raises(tdi.TooFewFilesError) as caught:
        play(files, 4, 2)
    assert splits == ("split_files=True" in str(caught.value))
    assert "write 2 or more files." in str(caught.value)


def test_more_shards_are_advised_for_shards():
    """A source of shards is no FileDataset."""
    with pytest.raises(tdi.TooFewFilesError, match="num_shards of 2 or more") as caught:
        play(Shards([[1, 2]]), 4, 2)
    assert "split_files" not in str(caught.value)
    stream = Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()
    with pytest.raises(tdi.TooFewFilesError, match="num_shards=2.*a list of 2 items or more"):
        play(stream, 4, 2)
    assert 'options=tdi.InputOptions(auto_shard_policy="data")' in str(caught.value)


@pytest.mark.parametrize(
    ("source", "keywords"),
    [
        (torch.arange(3), {"drop_last": True}),
        (torch.empty(0), {}),
        ([], {}),
        (stream_of([]), {}),
        (stream_of(torch.arange(3)), {"drop_last": True}),
    ],
)
def test_an_epoch_without_a_step(caplog, source, keywords):
    """Said once, on one worker."""
    (words,) = said(caplog, "at least one step", source, **keywords)
    assert "epoch 0, got none" in words


def test_the_empty_rest_of_an_epoch(caplog):
    """It had its steps before."""
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(torch.arange(8), global_batch_size=4)
    assert 2 == len(list(dataset))
    dataset.load_state_dict(dataset.state_dict())
    with caplog.at_level(logging.WARNING):
        assert [] == list(dataset)
    assert "at least one step" not in caplog.text


class TestALookAtABatch:
    """It has begun an epoch, whose other examples reach nobody."""

    WORDS = "was left after one step"

    def left(self, caplog, work, source=None, size=2):
        """The warnings of two workers, of which the first speaks."""
        data = torch.arange(8) if source is None else source
        with caplog.at_level(logging.WARNING):
            simulate(
                lambda strategy: work(strategy.distribute_dataset(data, global_batch_size=size)),
                num_workers=2,
            )
        return [r.getMessage() for r in caplog.records if self.WORDS in r.getMessage()]

    @pytest.mark.parametrize("source", [torch.arange(8), stream_of(range(8))])
    def test_is_told_once(self, caplog, source):
        def work(dataset):
            for _ in range(3):
                next(iter(dataset))
            list(dataset)

        (words,) = self.left(caplog, work, source)
        assert "epoch 0 was left" in words
        assert "set_aside()" in words

    @pytest.mark.parametrize(
        "work",
        [
            lambda dataset: [list(dataset) for _ in range(2)],
            lambda dataset: [next(iter(dataset)), dataset.set_epoch(0), list(dataset)],
            lambda dataset: [
                next(iter(dataset)),
                dataset.load_state_dict(dataset.state_dict()),
                *(list(dataset) for _ in range(2)),
            ],
            lambda dataset: [
                next(iter(dataset)),
                dataset.load_state_dict(dataset.state_dict()),
                iter(dataset),
                list(dataset),
            ],
            lambda dataset: [list(zip(range(2), dataset, strict=False)), list(dataset)],
        ],
        ids=["whole epochs", "an epoch set", "a state loaded", "and no step taken", "two steps"],
    )
    def test_nothing_is_said_of(self, caplog, work):
        assert [] == self.left(caplog, work)

    def test_nor_of_a_look_that_takes_nothing_away(self, caplog):
        def work(dataset):
            with dataset.set_aside():
                next(iter(dataset))
                next(iter(dataset))
            assert 4 == len(list(dataset))

        assert [] == self.left(caplog, work)

    def test_nor_of_an_epoch_that_has_failed(self, caplog):
        def broken():
            yield from torch.arange(2)
            msg = "no more"
            raise ValueError(msg)

        def work(dataset):
            for _ in range(2):
                # Of its own source, or of the other's, which may be the first to say so.
                with pytest.raises((tdi.SourceError, tdi.PeerFailedError), match="no more"):
                    list(dataset)

        assert [] == self.left(caplog, work, broken)

    def test_nor_of_an_epoch_that_had_one_step(self, caplog):
        """Which is known where it has come to its end."""

        def work(dataset):
            for _ in range(2):
                assert 1 == len(list(dataset))

        assert [] == self.left(caplog, work, stream_of(range(8)), size=8)

    def test_nor_of_an_epoch_of_one_step(self, caplog):
        def work(dataset):
            for _ in range(2):
                next(iter(dataset))

        assert [] == self.left(caplog, work, size=8)

    def test_a_sampler_is_not_asked_for_its_length(self):
        """It may draw for it, on the one worker that speaks: others would have another order."""

        class Drawing(Sampler):
            def __init__(self):
                self.generator = torch.Generator().manual_seed(0)

            def __len__(self):
                return len([*iter(self)])

            def __iter__(self):
                return iter(torch.randperm(8, generator=self.generator).tolist())

        def work(strategy):
            loader = DataLoader(TensorDataset(torch.arange(8)), 2, sampler=Drawing())
            dataset = strategy.distribute_dataset(loader)
            next(iter(dataset))
            return [len(list(dataset)) for _ in range(2)]

        assert [[4, 4], [4, 4]] == simulate(work, num_workers=2)


@pytest.mark.parametrize("source", [torch.arange(8), stream_of(range(8))])
def test_what_is_done_after_each_epoch_may_come_twice(source, caplog):
    """After a state from an epoch's end; of a chosen next epoch, and in mid-epoch, it may not."""

    def resume(num_steps, *, chosen=False):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=4)
        for _ in itertools.islice(dataset, num_steps):
            pass
        if chosen:
            dataset.set_epoch(1)
        again = tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=4)
        again.load_state_dict(dataset.state_dict())
        caplog.clear()
        for _ in range(2):
            list(again)
        return [r.getMessage() for r in caplog.records if "no step left" in r.getMessage()]

    (message,) = resume(2)
    assert "epoch 0 had no step left" in message
    assert "call set_epoch(1) before saving" in message
    assert [] == resume(1) == resume(2, chosen=True)
