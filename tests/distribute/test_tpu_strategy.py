"""TPUStrategy: what it forces, what it refuses, and that both hold on every worker.

Virtual CPU devices stand for the TPUs; the rules are those of the strategy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.masks import masked
from tests.distribute.street import listed, options, stream_of
from tests.distribute.tpus import CPU, on_tpus, tpu_strategy
from torch_distinput import preprocessing as pp
from torch_distinput.distribute import strategies

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ON_HOST = options(fetch_to_device=False)


@pytest.fixture
def strategy(monkeypatch):
    return tpu_strategy(monkeypatch)


class TestWithoutATpu:
    """It says what is missing, and how to go on."""

    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch):
        """No accelerator, and no torch_tpu."""
        monkeypatch.setattr(strategies, "_own_accelerator", lambda: CPU)
        monkeypatch.setattr(strategies, "find_spec", lambda name: None)

    def test_without_torch_tpu(self):
        with pytest.raises(
            tdi.ConfigurationError,
            match=r"got no accelerator: torch_tpu is not installed.*"
            r"pip install 'torch_distinput\[tpu\]'.*MultiWorkerMirroredStrategy",
        ):
            tdi.TPUStrategy()

    def test_with_torch_tpu(self, monkeypatch):
        """Which is looked for and not imported: on a machine with a TPU torch has done that."""
        monkeypatch.setattr(strategies, "find_spec", lambda name: name == "torch_tpu" or None)
        with pytest.raises(
            ValueError, match="torch_tpu is installed, but sees none .*TORCH_DEVICE_BACKEND"
        ):
            tdi.TPUStrategy()

    def test_with_another_accelerator(self, monkeypatch):
        monkeypatch.setattr(strategies, "_own_accelerator", lambda: torch.device("cuda:3"))
        with pytest.raises(ValueError, match="expects a TPU, got the device cuda:3"):
            tdi.TPUStrategy()

    def test_the_message_names_an_extra_that_there_is(self):
        assert '\ntpu = ["torch_tpu' in PYPROJECT.read_text()


class TestPadding:
    """Of every dataset, whether it was asked for or not."""

    @pytest.mark.parametrize("option", [None, options(partial_batch="pad")])
    @pytest.mark.parametrize("kind", ["indexed", "stream"])
    def test_all_steps_have_one_shape(self, option, kind):
        """The last of them is partial on one worker, and has no examples on the other."""

        def work(strategy):
            numbers = list(range(1, 10))
            source = numbers if kind == "indexed" else stream_of(numbers)
            dataset = strategy.distribute_dataset(source, global_batch_size=4, options=option)
            return [strategy.local_results(step) for step in dataset]

        steps = masked(on_tpus(work), 2)
        assert [[[1, 2]], [[5, 6]], [[9]]] == steps[0]
        assert [[[3, 4]], [[7, 8]], [[]]] == steps[1]

    def test_full_batches_have_a_mask_too(self, strategy):
        """The structure of a step does not depend on how many examples there are."""
        dataset = strategy.distribute_dataset(torch.arange(9), global_batch_size=4, drop_last=True)
        assert [[True] * 4] * 2 == [mask.tolist() for _, mask in dataset]

    def test_element_spec(self, strategy):
        dataset = strategy.distribute_dataset(torch.ones(5, 2), global_batch_size=4)
        batch, mask = dataset.element_spec
        assert ((4, 2), (4,)) == (batch.shape, mask.shape)

    def test_an_example_counts_once_in_the_loss(self, strategy):
        """And padding not at all."""
        dataset = strategy.distribute_dataset(torch.arange(1.0, 6), global_batch_size=4)
        means = [tdi.compute_average_loss(batch).item() for batch, _ in dataset]
        assert [2.5, 5.0] == means

    def test_states_are_those_of_other_strategies(self, strategy):
        """An epoch that was begun on CPUs goes on."""
        begun = tdi.OneDeviceStrategy("cpu").distribute_dataset(range(9), global_batch_size=4)
        iterator = iter(begun)
        next(iterator)
        dataset = strategy.distribute_dataset(range(9), global_batch_size=4)
        dataset.load_state_dict(begun.state_dict())
        assert [[4, 5, 6, 7], [8]] == [batch[mask].tolist() for batch, mask in dataset]

    def test_another_choice_is_refused(self, strategy):
        """On the spot, with the reason."""
        option = options(partial_batch="zero_rows")
        with pytest.raises(
            tdi.ConfigurationError,
            match='expects partial_batch="pad", because a TPU compiles .* got \'zero_rows\'',
        ):
            strategy.distribute_dataset(range(9), global_batch_size=4, options=option)

    def test_other_strategies_leave_partial_batches_as_they_are(self):
        """Unless they are asked to pad."""
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(range(3), global_batch_size=2)
        assert [[0, 1], [2]] == [batch.tolist() for batch in dataset]


def jagged(examples):
    return {"x": torch.nested.nested_tensor(examples, layout=torch.jagged)}


def words(examples):
    return {"x": torch.stack(examples), "y": (torch.ones(len(examples)), ["word"] * len(examples))}


def packed(examples):
    return {"x": tdi.PackedStrings.from_list(["word"] * len(examples))}


def array(examples):
    return {"x": np.array(["word"] * len(examples))}


def things(examples):
    return {"x": torch.stack(examples), "y": [object() for _ in examples]}


def looked_up(examples):
    """What a layer makes of numbers when it gives the words back."""
    layer = pp.StringLookup(vocabulary=["a", "b"], invert=True)
    return {"word": layer(torch.ones(len(examples), dtype=torch.int64))}


OTHER_LEAVES = {
    "strings": (words, r"got a list of str at batch\['y'\]\[1\]. Turn it into numbers"),
    "packed strings": (packed, r"got packed strings at batch\['x'\]. Turn it into numbers"),
    "an array of strings": (array, r"got an array of <U4 at batch\['x'\]. Turn it into numbers"),
    "objects": (things, r"got a list at batch\['y'\]. Turn it into numbers"),
    "a layer's strings": (looked_up, r"got a list of str at batch\['word'\]"),
    "jagged rows": (jagged, r"got a jagged tensor at batch\['x'\]. Pad its rows"),
}


@pytest.mark.parametrize("name", OTHER_LEAVES)
class TestOtherLeaves:
    """Leaves that are no dense tensors."""

    @pytest.mark.parametrize("kind", ["indexed", "stream"])
    @pytest.mark.parametrize("num_examples", [1, 5])
    def test_they_are_refused_on_every_worker(self, name, kind, num_examples):
        """Before the first step, also where a worker has no examples."""
        collate_fn, message = OTHER_LEAVES[name]

        def work(strategy):
            examples = list(torch.ones(num_examples, 2))
            source = examples if kind == "indexed" else stream_of(examples)
            dataset = strategy.distribute_dataset(
                source, global_batch_size=4, collate_fn=collate_fn
            )
            with pytest.raises(tdi.ConfigurationError, match=message):
                next(iter(dataset))
            return strategy.worker_index

        assert [0, 1] == on_tpus(work)

    def test_they_stay_on_the_host_on_request(self, name, strategy):
        """Padded, as all steps of the strategy are."""
        collate_fn, _ = OTHER_LEAVES[name]
        dataset = strategy.distribute_dataset(
            list(torch.ones(3, 2)), global_batch_size=2, collate_fn=collate_fn, options=ON_HOST
        )
        assert [[True, True], [True, False]] == [mask.tolist() for _, mask in dataset]

    def test_other_strategies_take_them(self, name):
        collate_fn, _ = OTHER_LEAVES[name]
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            list(torch.ones(3, 2)), global_batch_size=2, collate_fn=collate_fn
        )
        assert 2 == len(list(dataset))


def test_strings_that_come_later_are_refused_too(strategy):
    """A batch of another kind than the first one."""

    def collate_fn(examples):
        return torch.stack(examples) if examples[0] < 2 else ["late"] * len(examples)

    dataset = strategy.distribute_dataset(
        stream_of(list(torch.arange(4))), global_batch_size=2, collate_fn=collate_fn
    )
    iterator = iter(dataset)
    next(iterator)
    with pytest.raises(tdi.ConfigurationError, match="got a list of str at batch"):
        next(iterator)


def test_numbers_that_a_layer_makes_of_strings_are_taken(strategy):
    """In the pipeline, which is where layers for strings belong."""
    layer = pp.StringLookup(vocabulary=["a", "b"])
    dataset = strategy.distribute_dataset(["a", "b", "c"], global_batch_size=2, collate_fn=layer)
    assert [[1, 2], [0, 0]] == [listed(batch) for batch, _ in dataset]


def test_options_tell_a_choice_from_none():
    """So that a choice can be refused, and none be filled in."""
    assert "auto" == tdi.InputOptions().partial_batch
    assert "zero_rows" == replace(tdi.InputOptions(), partial_batch="ZERO_ROWS").partial_batch
