"""A Trainer over the ranks of ``run_ranks``, and a model that writes down what it is given."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from datasets import Dataset, IterableDataset
from transformers import Trainer, TrainingArguments

from tests.integrations.accelerators import COUNT, launched, losses_of, make_model, rows
from torch_distinput.integrations.transformers import DistributedInputMixin


class DistributedTrainer(DistributedInputMixin, Trainer):
    """Takes out of a model's notes what stood in for a batch of no rows: its loss is exactly 0."""

    def training_step(self, model, *args, **arguments):
        loss = super().training_step(model, *args, **arguments)
        if loss == 0 and isinstance(self.model, Regression):
            self.model.seen[-1] = []
        return loss


class Regression(torch.nn.Module):
    """A model with a mean loss, which is NaN for a batch of no rows."""

    def __init__(self):
        super().__init__()
        self.linear = make_model()
        self.seen = []

    def forward(self, numbers, labels=None):
        self.seen.append(numbers.int().tolist())
        logits = self.linear(torch.stack([numbers / COUNT, torch.cos(numbers)], 1))
        if labels is None:
            return {"logits": logits}
        return {"loss": losses_of(self.linear, numbers, labels).mean(), "logits": logits}


def collate(examples):
    """In float64, so that weights are compared exactly."""
    return {
        name: torch.tensor([example[name] for example in examples], dtype=torch.float64)
        for name in examples[0]
    }


def examples(count=COUNT):
    numbers, targets = rows(count)
    pairs = zip(numbers.tolist(), targets.tolist(), strict=True)
    return [{"numbers": number, "labels": target} for number, target in pairs]


def stream(count=COUNT):
    yield from examples(count)


class Indexed(torch.utils.data.Dataset):
    def __init__(self, count):
        self.examples = examples(count)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


class Streamed(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return stream(self.count)


SOURCES = {
    "list": examples,
    "torch": Indexed,
    "datasets": lambda count: Dataset.from_list(examples(count)),
    "torch stream": Streamed,
    "datasets stream": lambda count: IterableDataset.from_generator(
        stream, gen_kwargs={"count": count}
    ),
}


def halves(starts, count):
    """A shard for each start."""
    for start in starts:
        yield from examples(count)[start : start + count // 2]


def in_two_shards(count):
    shards = {"starts": [0, count // 2], "count": count}
    return IterableDataset.from_generator(halves, gen_kwargs=shards)


@contextmanager
def trainer_on(
    strategy,
    folder,
    *,
    model=None,
    source=None,
    evaluated=None,
    collator=collate,
    trainer_class=None,
    **arguments,
):
    """A Trainer of plain SGD."""
    with launched(strategy):
        args = TrainingArguments(
            **{
                "output_dir": str(folder),
                "use_cpu": True,
                "report_to": [],
                "disable_tqdm": True,
                "logging_strategy": "no",
                "save_strategy": "no",
                "optim": "sgd",
                "learning_rate": 0.3,
                "lr_scheduler_type": "constant",
                "max_grad_norm": 0.0,
                "per_device_train_batch_size": 2,
                "train_sampling_strategy": "sequential",
                **arguments,
            }
        )
        trainer = (trainer_class or DistributedTrainer)(
            model=Regression() if model is None else model,
            args=args,
            data_collator=collator,
            train_dataset=source,
            eval_dataset=evaluated,
        )
        yield trainer
        trainer.accelerator.free_memory()
