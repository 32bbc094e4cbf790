"""What would let each process train for itself, without a word."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

import torch_distinput as tdi
from torch_distinput.integrations.versions import check_names, check_version

_WRAPS = {"MULTI_CPU", "MULTI_GPU"}
"""Kinds of Accelerate in which DDP adds up the gradients."""

_OVERRIDDEN = (
    *("_get_dataloader", "set_initial_training_values", "_init_training_state", "_run_epoch"),
    "_finalize_training",
    *("get_batch_samples", "training_step", "_save_checkpoint", "_get_output_dir"),
    *("evaluation_loop", "prediction_step"),
)


def check_transformers() -> None:
    """Warn once of a version that is not tested, and refuse one that would pass the mixin by."""
    check_version("transformers", tested="5.23", stacklevel=4)
    check_names("transformers", Trainer, _OVERRIDDEN)


def check_means(args: Any) -> None:
    """Refuse arguments by which each process trains the mean of its own examples."""
    if args.world_size > 1 and not args.average_tokens_across_devices:
        msg = (
            f"Expected average_tokens_across_devices=True with {args.world_size} processes, "
            "got False: each would train the mean of its own examples, of which it has more or "
            "fewer than the others. Leave it out of TrainingArguments."
        )
        raise tdi.ConfigurationError(msg)


def check_gathering(args: Any) -> None:
    """Refuse to gather pickled rows in evaluation."""
    if args.eval_use_gather_object:
        msg = (
            "Expected eval_use_gather_object=False, got True: rows are gathered as tensors, of "
            "any number on each process. Leave it out of TrainingArguments."
        )
        raise tdi.ConfigurationError(msg)


def check_wrapped(model: nn.Module, trainer: Any) -> None:
    """Refuse a model that no DDP wraps: an evaluate() before train() leaves it so (5.23)."""
    accelerator = trainer.accelerator
    is_needed = accelerator.num_processes > 1 and accelerator.distributed_type.value in _WRAPS
    is_own = getattr(trainer, "is_distributed_loading_by_transformers", False)
    if is_needed and not is_own and not isinstance(model, DistributedDataParallel):
        msg = (
            f"Expected a model in DistributedDataParallel on {accelerator.num_processes} "
            f"processes, got a {type(model).__name__}: gradients would not be averaged. Trainer "
            "leaves a model unwrapped that it has evaluated before: evaluate with another Trainer, "
            "or pass eval_on_start=True."
        )
        raise tdi.UsageError(msg)
