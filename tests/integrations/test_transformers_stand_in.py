"""A subclass of the mixin is told where a batch stands in for no examples."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from transformers import BatchEncoding, Trainer

from tests.integrations.trainers import (
    DistributedTrainer,
    Regression,
    collate,
    examples,
    trainer_on,
)
from torch_distinput.integrations.transformers import DistributedInputMixin
from torch_distinput.integrations.transformers.stand_in import StandIn
from torch_distinput.testing import run_ranks


class ToldTrainer(DistributedInputMixin, Trainer):
    """Notes for each call whether the batch stands in."""

    def training_step(self, *args, **arguments):
        before = self.is_stand_in
        loss = super().training_step(*args, **arguments)
        self.told.append(("train", before, self.is_stand_in, float(loss) == 0))
        return loss

    def compute_loss(self, *args, **arguments):
        self.told.append(("loss", self.is_stand_in))
        return super().compute_loss(*args, **arguments)

    def prediction_step(self, *args, **arguments):
        self.told.append(("predict", self.is_stand_in))
        return super().prediction_step(*args, **arguments)


def train_and_evaluate(strategy, folder):
    source = examples(5)  # a step of 4, and one of 1
    arguments = {"gradient_accumulation_steps": 2, "per_device_eval_batch_size": 2}
    arguments |= {"source": source, "evaluated": source, "num_train_epochs": 1}
    with trainer_on(strategy, folder, trainer_class=ToldTrainer, **arguments) as trainer:
        trainer.told = []
        warned = Told(logging.WARNING)
        logging.getLogger("torch_distinput.distribute").addHandler(warned)
        trainer.train()
        trainer.evaluate()
        logging.getLogger("torch_distinput.distribute").removeHandler(warned)
        return trainer.told, warned.messages


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, level):
        super().__init__(level)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_a_batch_that_stands_in_is_told(tmp_path):
    """In the second step the first rank has the one example, and the second rank none."""
    results = run_ranks(partial(train_and_evaluate, folder=tmp_path), 2, timeout=120)
    for (told, warned), stands_in in zip(results, [(False, False), (False, True)], strict=True):
        trained = [[("loss", fact), ("train", fact, fact, fact)] for fact in stands_in]
        evaluated = [[("predict", fact), ("loss", fact)] for fact in stands_in]
        assert [call for calls in trained + evaluated for call in calls] == told
        assert warned == []  # of zero rows, which the model does not see


def test_columns_that_were_taken_out_of_a_batch_come_again():
    """A training_step may do that, with a batch that stands in as well."""
    stand_in = StandIn()
    assert 3 == stand_in.fill({"uid": 3}, 1).pop("uid")
    for _ in range(2):
        assert 3 == stand_in.fill({"uid": None}, 0).pop("uid")


class MeanOfTokens(torch.nn.Module):
    """It divides by the tokens of an example: NaN where there are none."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, tokens, mask, labels=None):
        logits = self.scale * (tokens * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        if labels is None:
            return {"logits": logits}
        return {"loss": (logits[:, 0] - labels).square().mean(), "logits": logits}


def texts(count):
    return [
        {"tokens": [float(number)] * 3, "mask": [1.0] * 3, "labels": 2.0 * number}
        for number in range(count)
    ]


def resume(strategy, folder):
    """Five examples: the first step has two for each rank, the second one none for the last."""
    arguments = {"num_train_epochs": 1, "save_strategy": "steps", "save_steps": 1, "seed": 1}
    arguments |= {"learning_rate": 0.01, "per_device_eval_batch_size": 2}
    found = []
    for checkpoint in (None, str(folder / "checkpoint-1")):
        made = {"model": MeanOfTokens(), "source": texts(5), "evaluated": texts(1)}
        with trainer_on(strategy, folder, **made, **arguments) as trainer:
            trainer.train(resume_from_checkpoint=checkpoint)
            found.append((float(trainer.model.scale.detach()), trainer.evaluate()["eval_loss"]))
    return found


def test_a_rank_without_rows_in_its_first_step_runs_a_batch_of_another_one(tmp_path):
    """After a restart, and in an evaluation; one made up of zeros had a loss that is NaN."""
    (first, again), other = run_ranks(partial(resume, folder=tmp_path), 2, timeout=120)
    assert [first, again] == other
    assert 1 < first[0]
    assert 0 == first[1]
    assert first == again


def predict_after_training(strategy, folder):
    arguments = {"per_device_eval_batch_size": 2, "num_train_epochs": 1}
    with trainer_on(strategy, folder, source=examples(4), **arguments) as trainer:
        trainer.train()
        output = trainer.predict([{"numbers": 3.0}])
        return output.predictions.shape, output.label_ids, output.metrics.get("test_loss")


def test_what_stands_in_is_of_the_same_data(tmp_path):
    """A rank without rows does not take a batch that it has trained, which has labels."""
    results = run_ranks(partial(predict_after_training, folder=tmp_path), 2, timeout=120)
    assert [((1, 1), None, None)] * 2 == results


class TwoRows(Regression):
    """It gives two rows for each example."""

    def forward(self, numbers, labels=None):
        output = super().forward(numbers, labels)
        return {**output, "logits": output["logits"].repeat(2, 1)}


class AsManyAsABatch(Regression):
    """It gives a value for each row of a whole batch, whatever there is."""

    def forward(self, numbers, labels=None):
        return {**super().forward(numbers, labels), "logits": torch.arange(4.0)}


def predict_other_rows(strategy, folder, make):
    arguments = {"model": make(), "per_device_eval_batch_size": 4}
    with trainer_on(strategy, folder, **arguments) as trainer:
        with pytest.raises(ValueError, match=r"Expected 3 rows.*got a tensor of shape \((6, 1|4,)"):
            trainer.predict(examples(6))
        return True


@pytest.mark.parametrize("make", [TwoRows, AsManyAsABatch])
def test_a_model_with_more_rows_than_examples_is_refused(make, tmp_path):
    """Some of its rows would be left out."""
    predict = partial(predict_other_rows, folder=tmp_path, make=make)
    assert all(run_ranks(predict, 2, timeout=120))


class OwnTrainer(DistributedTrainer):
    """Its batches are tuples or have attributes, which its own ``compute_loss`` understands."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        is_tuple = isinstance(inputs, tuple)
        numbers, labels = inputs if is_tuple else (inputs.numbers, inputs.labels)
        output = model(numbers, labels)
        return (output["loss"], output) if return_outputs else output["loss"]


class Flexible(Regression):
    """Trainer asks it whether it divides its loss."""

    def forward(self, numbers, labels=None, **kwargs):
        return super().forward(numbers, labels)


def train_on_own_batches(strategy, folder, make_batch):
    arguments = {"source": examples(5), "num_train_epochs": 1, "remove_unused_columns": False}
    arguments |= {"collator": lambda rows: make_batch(collate(rows)), "model": Flexible()}
    arguments |= {"per_device_train_batch_size": 4 // strategy.num_workers}
    with trainer_on(strategy, folder, trainer_class=OwnTrainer, **arguments) as trainer:
        trainer.train()
        return trainer.model.linear.weight.detach()


def make_tuple(batch):
    return tuple(batch.values())


@pytest.mark.parametrize("make_batch", [make_tuple, BatchEncoding])
def test_batches_of_the_users(make_batch, tmp_path):
    """Of the rank, and of the one that stands in for a batch of no rows."""
    job = partial(train_on_own_batches, folder=tmp_path, make_batch=make_batch)
    one, *two = (
        weight for num_ranks in (1, 2) for weight in run_ranks(job, num_ranks, timeout=120)
    )
    for weight in two:
        torch.testing.assert_close(weight, one)
