"""TPUStrategy over batches whose sizes nobody knows beforehand, and sizes other than rows."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.distribute.street import options, stream_of
from tests.distribute.tpus import on_tpus, tpu_strategy


@pytest.fixture
def strategy(monkeypatch):
    return tpu_strategy(monkeypatch)


class TestSizesOfTheirOwn:
    """Batches that are made elsewhere are padded to the largest so far."""

    def sizes(self, strategy, batches):
        """Of each batch: its examples, and the rows that it is padded to."""
        dataset = strategy.distribute_datasets_from_function(lambda context: batches)
        return [(batch[mask].tolist(), len(mask)) for batch, mask in dataset]

    def test_a_partial_batch_in_the_end(self, strategy, caplog):
        """As of a DataLoader in the function: one shape, also in the epochs that follow."""
        batches = DataLoader(torch.arange(5), batch_size=2)
        dataset = strategy.distribute_datasets_from_function(lambda context: batches)
        for _ in range(2):
            epoch = [(batch[mask].tolist(), len(mask)) for batch, mask in dataset]
            assert [([0, 1], 2), ([2, 3], 2), ([4], 2)] == epoch
        assert "one of" not in caplog.text

    def test_batches_that_vary(self, strategy, caplog):
        """They never shrink; that they grow is warned of once."""
        numbers = [torch.arange(size) for size in (2, 1, 3, 2, 4, 1)]
        assert [2, 2, 3, 3, 4, 4] == [rows for _, rows in self.sizes(strategy, numbers)]
        assert 1 == caplog.text.count("expected batches of 2 rows or less, as before, got one of 3")

    def test_batches_by_a_token_budget(self, strategy):
        """A number of examples is not known beforehand."""
        budget = tdi.TokenBudget(4, length=[1, 1, 2, 4, 1, 3])
        dataset = strategy.distribute_dataset(torch.arange(6), global_batch_size=budget)
        found = [(batch[mask].tolist(), len(mask)) for batch, mask in dataset]
        assert [([0, 1, 2], 3), ([3], 3), ([4, 5], 3)] == found

    def test_every_example_is_delivered_once(self, strategy):
        numbers = torch.arange(20).split([2, 1, 3, 2, 5, 4, 3])
        found = [number for batch, _ in self.sizes(strategy, numbers) for number in batch]
        assert list(range(20)) == found

    def test_a_worker_without_batches(self):
        """It gets a row that is no example, until it knows better."""

        def work(strategy):
            numbers = [torch.arange(1, 4), torch.arange(1, 3)] * (1 - strategy.worker_index)
            return self.sizes(strategy, numbers)

        full, empty = on_tpus(work)
        assert [([1, 2, 3], 3), ([1, 2], 3)] == full
        assert [([], 1), ([], 1)] == empty

    def test_a_dataset_creator(self, strategy):
        creator = tdi.DatasetCreator(lambda context: [torch.ones(2), torch.ones(1)])
        dataset = strategy.distribute_dataset(creator)
        assert [[True, True], [True, False]] == [mask.tolist() for _, mask in dataset]

    def test_ready_batches(self):
        """Global batches, which are cut first."""

        def work(strategy):
            dataset = strategy.distribute_dataset(lambda: iter([torch.arange(5), torch.ones(2)]))
            return [(batch[mask].tolist(), len(mask)) for batch, mask in dataset]

        assert [[([0, 1, 2], 3), ([1], 3)], [([3, 4], 2), ([1], 2)]] == on_tpus(work)

    def test_batches_of_a_users_sampler(self, strategy):
        loader = DataLoader(range(3), batch_sampler=[[0, 2], [1]])
        dataset = strategy.distribute_dataset(loader)
        assert [[0, 2], [1, 1]] == [batch.tolist() for batch, _ in dataset]

    def test_their_loss_is_over_the_examples(self, strategy):
        """Whatever size its step was padded to."""
        batches = [torch.tensor([1.0, 2.0]), torch.tensor([4.0])]
        dataset = strategy.distribute_datasets_from_function(lambda context: batches)
        assert [1.5, 4.0] == [tdi.compute_average_loss(batch).item() for batch, _ in dataset]

    def test_their_spec_has_no_number_of_rows(self, strategy):
        dataset = strategy.distribute_datasets_from_function(lambda context: [torch.ones(2, 3)])
        batch, mask = dataset.element_spec
        assert ((None, 3), (None,)) == (batch.shape, mask.shape)

    def test_on_other_devices_padding_needs_a_size(self):
        """Who asks for static shapes there is told that these are none."""
        with pytest.raises(tdi.ConfigurationError, match="sizes of their own"):
            tdi.OneDeviceStrategy("cpu").distribute_datasets_from_function(
                lambda context: [torch.ones(2)], options(partial_batch="pad")
            )

    def test_a_dataloader_with_a_batch_size(self, strategy):
        """Its batches are cut anew."""
        dataset = strategy.distribute_dataset(DataLoader(range(3), batch_size=2))
        assert [[0, 1], [2, 2]] == [batch.tolist() for batch, _ in dataset]

    def test_values_from_a_function(self, strategy):
        """They are refused, by either name; the function is not called."""
        for distribute in (
            strategy.distribute_values_from_function,
            strategy.experimental_distribute_values_from_function,
        ):
            with pytest.raises(
                tdi.ConfigurationError, match="keeps values as they are: of any shape, on the host"
            ):
                distribute(lambda context: pytest.fail("called"))


class TestOtherSizes:
    """Only the number of rows is made static."""

    @pytest.fixture
    def dataset(self, strategy):
        """Batches whose rows are as long as the longest of them."""
        return strategy.distribute_dataset(
            stream_of([torch.ones(length) for length in (1, 1, 2, 3, 4, 5)]),
            global_batch_size=2,
            collate_fn=lambda rows: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        )

    def test_they_are_warned_of_once(self, dataset, caplog):
        """With the dataset, the leaf, and what to do."""
        with caplog.at_level(logging.WARNING):
            list(dataset)
            list(dataset)
        (record,) = [one for one in caplog.records if "one shape" in one.getMessage()]
        assert "dataset 0" in record.getMessage()
        assert "at batch: (None, None)" in record.getMessage()

    def test_one_size_is_not_warned_of(self, strategy, caplog):
        with caplog.at_level(logging.WARNING):
            list(strategy.distribute_dataset(torch.ones(5, 3), global_batch_size=2))
        assert [] == [one for one in caplog.records if "one shape" in one.getMessage()]
