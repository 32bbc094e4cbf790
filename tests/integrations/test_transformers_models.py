"""Models of Transformers: the loss is that of one process, by token, by example, or as a mean."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from _pytest.logging import LogCaptureHandler
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import torch_distinput as tdi
from tests.integrations.trainers import trainer_on
from torch_distinput.testing import run_ranks

COUNT = 7


def make_gpt2():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout))


def make_bert(**arguments):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8, **dropout)
    config.update({"num_labels": 3, **arguments})
    return BertForSequenceClassification(config)


def make_regression():
    return make_bert(num_labels=1, problem_type="regression")


def texts():
    """Of 2 to 8 tokens, so that ranks have other numbers of them."""
    generator = torch.Generator().manual_seed(1)
    for number in range(COUNT):
        ids = torch.randint(0, 11, (2 + number,), generator=generator).tolist()
        yield {"input_ids": ids, "labels": ids}


def answers():
    """Only the second half of a text is to be learned."""
    for text in texts():
        half = len(text["input_ids"]) // 2
        yield {**text, "labels": [-100] * half + text["labels"][half:]}


def prompts():
    """Nothing of the first six texts is to be learned: not one label counts in their update."""
    for number, text in enumerate(texts()):
        yield {**text, "labels": [-100] * len(text["labels"])} if number < 6 else text


def classified():
    for text in texts():
        yield {**text, "labels": len(text["input_ids"]) % 3}


def measured():
    for text in texts():
        yield {**text, "labels": len(text["input_ids"]) / 7}


def pad(examples):
    """All to 8 tokens; labels of padding do not count."""
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for example in examples:
        ids, labels = example["input_ids"], example["labels"]
        missing = 8 - len(ids)
        batch["input_ids"].append(ids + [0] * missing)
        batch["attention_mask"].append([1] * len(ids) + [0] * missing)
        is_text = isinstance(labels, list)
        batch["labels"].append(labels + [-100] * missing if is_text else labels)
    return {name: torch.tensor(values) for name, values in batch.items()}


def far():
    """What cross entropy would ignore."""
    for text in texts():
        yield {**text, "labels": -100.0 if len(text["input_ids"]) % 2 else 1.0}


def alike_at_first():
    """The first update has four labels of each text; over later ones it would be another mean."""
    for number in range(12):
        start, count = (number % 2, 4) if number < 6 else (0, 1 + number % 4 * 2)
        ids = [(3 * number + place) % 11 for place in range(8)]
        counted = range(start, start + count)
        labels = [label if place in counted else -100 for place, label in enumerate(ids)]
        yield {"input_ids": ids, "labels": labels}


class Tagger(torch.nn.Module):
    """A label for each token; the loss is a mean of some kind of those that count."""

    def __init__(self, over):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 11)
        self.over = over

    def forward(self, input_ids, attention_mask, labels):
        del attention_mask
        logits = self.embedding(input_ids)
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels, reduction="none"
        )
        counts = labels.ne(-100).sum(1)
        if self.over == "later labels":
            losses, counts = losses[:, 1:], labels[:, 1:].ne(-100).sum(1)
        if self.over == "examples":
            loss = (losses.sum(1) / counts).mean()
        elif "labels" in self.over:
            loss = losses.sum() / counts.sum()
        else:
            loss = losses.sum() / labels.gt(4).sum()
        return {"loss": loss, "logits": logits}


MODELS = {
    "by token": (make_gpt2, texts),
    "by token of an answer": (make_gpt2, answers),
    "without a label": (make_gpt2, prompts),
    "by example": (make_bert, classified),
    "as a mean": (make_regression, measured),
    "as a mean of numbers": (make_regression, far),
    "as a mean over examples": (partial(Tagger, "examples"), texts),
    "as a mean over labels": (partial(Tagger, "labels"), texts),
    "as a mean over later labels": (partial(Tagger, "later labels"), texts),
    "as another mean": (partial(Tagger, "others"), texts),
}
ODD = "as another mean"


def train(strategy, folder, kind, size, accumulation, count=COUNT):
    """The weights after an epoch, the mean loss that was logged, and that of an evaluation."""
    make, source = MODELS[kind]
    with trainer_on(
        strategy,
        folder,
        model=make(),
        source=list(source())[:count],
        evaluated=list(source())[:count],
        collator=pad,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        learning_rate=1e-4 if source is far else 0.3,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
    ) as trainer:
        trainer.train()
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        weights = torch.cat([part.detach().flatten() for part in trainer.model.parameters()])
        return weights.tolist(), losses, trainer.evaluate()["eval_loss"]


CUTS = dict.fromkeys(MODELS, (3, 1, 2)) | {
    "as a mean of numbers": (2, 3, 1),
    "as a mean over examples": (2, 3, 1),  # of one row nobody can tell
    "as a mean over labels": (2, 3, 1),
    "as a mean over later labels": (2, 3, 1),
}
"""Ranks, examples of a batch and batches of an update."""


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != ODD])
def test_the_loss_is_that_of_one_process(kind, tmp_path):
    """7 examples in updates of 6 and 1: some ranks have none of the last step."""
    num_ranks, size, accumulation = CUTS[kind]
    alone = partial(train, folder=tmp_path, kind=kind, size=6, accumulation=1)
    [(weights, losses, evaluated)] = run_ranks(alone, 1, timeout=120)
    assert 2 == len(losses)
    job = partial(train, folder=tmp_path, kind=kind, size=size, accumulation=accumulation)
    for found in run_ranks(job, num_ranks, timeout=120):
        assert weights == pytest.approx(found[0], abs=2e-6)
        assert losses == pytest.approx(found[1], abs=2e-6, rel=1e-6)
        # That over tokens is one over those of each batch, which are others.
        if make_gpt2 not in MODELS[kind] and "labels" not in kind:
            assert evaluated == pytest.approx(found[2], abs=2e-6, rel=1e-6)


def train_alike(strategy, folder, size):
    MODELS["alike"] = (partial(Tagger, "examples"), alike_at_first)
    return train(strategy, folder, "alike", size, accumulation=1, count=12)


def test_what_a_mean_is_over_is_found_out_batch_by_batch(tmp_path):
    """The first one rules out a way, and the second one another."""
    job = partial(train_alike, folder=tmp_path)
    [(weights, *_)] = run_ranks(partial(job, size=6), 1, timeout=120)
    for found, *_ in run_ranks(partial(job, size=3), 2, timeout=120):
        assert weights == pytest.approx(found, abs=2e-6)


def train_and_listen(strategy, folder, kind):
    handler, logger = LogCaptureHandler(), logging.getLogger("torch_distinput")
    logger.addHandler(handler)
    train(strategy, folder, kind, size=3, accumulation=1)
    logger.removeHandler(handler)
    said = [record.getMessage() for record in handler.records]
    return sum("neither a mean over its examples" in line for line in said)


class Paired(Tagger):
    """It cannot take one row, as a loss that compares rows."""

    def forward(self, input_ids, attention_mask, labels):
        assert len(labels) > 1
        return super().forward(input_ids, attention_mask, labels)


def train_pairs(strategy, folder):
    MODELS["paired"] = (partial(Paired, "labels"), texts)
    train(strategy, folder, "paired", size=2, accumulation=1, count=4)


def test_a_model_that_takes_no_parts_is_trained(tmp_path):
    run_ranks(partial(train_pairs, folder=tmp_path), 2, timeout=120)


@pytest.mark.parametrize(("kind", "times"), [(ODD, 1), ("as a mean over examples", 0)])
def test_a_loss_that_is_another_mean_is_told_of_once(kind, times, tmp_path):
    job = partial(train_and_listen, folder=tmp_path, kind=kind)
    assert [times] * 2 == run_ranks(job, 2, timeout=120)


def measure_unlogged(strategy, folder, size, accumulation):
    with trainer_on(
        strategy,
        folder,
        model=make_regression(),
        source=list(measured())[:COUNT],
        collator=pad,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
    ) as trainer:
        return trainer.train().training_loss


def test_the_loss_of_a_training_that_logs_nothing(tmp_path):
    """Trainer takes it from one process, which has a share of it."""
    job = partial(measure_unlogged, folder=tmp_path)
    [expected] = run_ranks(partial(job, size=6, accumulation=1), 1, timeout=120)
    found = run_ranks(partial(job, size=1, accumulation=2), 3, timeout=120)
    assert [expected] * 3 == pytest.approx(found, abs=2e-6)


@pytest.mark.parametrize("kind", ["by token", "as a mean"])
def test_a_rank_that_never_gets_an_example(kind, tmp_path):
    """Whether the model divides by labels is found out by the one that has one."""
    job = partial(train, folder=tmp_path, kind=kind, size=1, accumulation=1, count=1)
    [expected] = run_ranks(job, 1, timeout=120)
    for weights, losses, evaluated in run_ranks(job, 2, timeout=120):
        assert expected[0] == pytest.approx(weights, abs=2e-6)
        assert [*expected[1], expected[2]] == pytest.approx([*losses, evaluated], abs=2e-6)


def evaluate_first(strategy, folder):
    source = list(texts())
    with trainer_on(
        strategy, folder, model=make_gpt2(), source=source, evaluated=source, collator=pad
    ) as trainer:
        trainer.evaluate()
        with pytest.raises(tdi.UsageError, match="eval_on_start=True"):
            trainer.train()


def test_a_model_that_each_rank_would_train_alone_is_refused(tmp_path):
    """Transformers 5.23 does not wrap a model that it has evaluated before."""
    run_ranks(partial(evaluate_first, folder=tmp_path), 2, timeout=120)
