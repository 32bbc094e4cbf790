"""A subclass of the mixin is told where a batch stands in for no examples."""

from __future__ import annotations

from functools import partial

from transformers import Trainer

from tests.integrations.trainers import examples, trainer_on
from torch_distinput.integrations.transformers import DistributedInputMixin
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
        trainer.train()
        trainer.evaluate()
        return trainer.told


def test_a_batch_that_stands_in_is_told(tmp_path):
    """In the second step the first rank has the one example, and the second rank none."""
    results = run_ranks(partial(train_and_evaluate, folder=tmp_path), 2, timeout=120)
    for told, stands_in in zip(results, [(False, False), (False, True)], strict=True):
        trained = [[("loss", fact), ("train", fact, fact, fact)] for fact in stands_in]
        evaluated = [[("predict", fact), ("loss", fact)] for fact in stands_in]
        assert [call for calls in trained + evaluated for call in calls] == told
