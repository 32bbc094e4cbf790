"""Train a small GPT-2 with Trainer, stop in the middle of an epoch, go on, and evaluate.

torchrun --nproc-per-node 2 examples/train_transformers.py
"""

import argparse

import numpy as np
import torch
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torch_distinput.integrations.transformers import DistributedInputMixin

NUM_TEXTS, VOCABULARY = 101, 17


class MyTrainer(DistributedInputMixin, Trainer):
    """Trainer, with exact input."""


def make_texts() -> list[list[int]]:
    """Make texts in which the next token is known."""
    return [[(number + place) % VOCABULARY for place in range(6)] for number in range(NUM_TEXTS)]


def collate(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Make a batch of them."""
    ids = torch.tensor(texts)
    return {"input_ids": ids, "labels": ids}


def count_rows(found: EvalPrediction) -> dict[str, int]:
    """Count what is evaluated."""
    return {"rows": len(np.asarray(found.label_ids))}


def make_trainer(folder: str, num_epochs: float) -> MyTrainer:
    """Make a Trainer with a model without weights."""
    sizes = {"vocab_size": VOCABULARY, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return MyTrainer(
        model=GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.accelerator.is_available(),  # Trainer must be told
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            num_train_epochs=num_epochs,
            save_strategy="steps",
            save_steps=3,
            report_to=[],
            disable_tqdm=True,
        ),
        data_collator=collate,
        train_dataset=make_texts(),
        eval_dataset=make_texts(),
        compute_metrics=count_rows,
    )


def main() -> None:
    """Train half an epoch, go on to two, and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="trained_gpt2", help="for checkpoints")
    folder = parser.parse_args().folder
    make_trainer(folder, num_epochs=0.5).train()
    trainer = make_trainer(folder, num_epochs=2)
    trainer.train(resume_from_checkpoint=True)
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"{trainer.state.global_step} updates, {trainer.state.epoch:g} epochs")
        print(f"evaluated {metrics['eval_rows']} of {NUM_TEXTS} texts")
    trainer.end()


if __name__ == "__main__":
    main()
