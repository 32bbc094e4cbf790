"""What Lightning would play wrongly, refused with what to do instead; and what it leaves, told."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch_distinput as tdi
from torch_distinput.integrations.lightning.framework import (
    repeats_the_shorter,
    steps_done,
    training_loaders,
)

if TYPE_CHECKING:
    from torch_distinput.integrations.lightning.training_progress import LoaderPosition

_log = logging.getLogger(__name__)


def check_dataset_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse names that ``distribute_dataset`` does not take where they are written."""
    taken = inspect.signature(tdi.Strategy.distribute_dataset).parameters
    known = {*taken, "weights"} - {"self", "source"}
    others = [name for name in arguments if name not in known]
    if others:
        msg = (
            f"DataModule takes sources (train, val, test, predict) and {', '.join(sorted(known))}; "
            f"got {others[0]}=."
        )
        raise TypeError(msg)


def check_mode(trainer: Any) -> None:
    """Refuse several loaders of which nobody knows when they end, where that must be known.

    Lightning plays a loader again that ends before others: it reads ahead over the end, and does
    not save which have ended. Where all end with the shortest, a loader that is further in the data
    than others would average a loss over steps that are not trained.
    """
    loop = trainer._active_loop  # noqa: SLF001 - as in framework.py
    combined = None if loop is None else loop._combined_loader  # noqa: SLF001
    if combined is None or len(combined.flattened) == 1:
        return
    mode, num_accumulated = combined._mode, trainer.accumulate_grad_batches  # noqa: SLF001
    if mode == "max_size_cycle":
        why = (
            "Lightning plays those again that end before others, and does not know after a restart "
            "which have ended, so examples would come twice. Return CombinedLoader(loaders, "
            '"min_size"), or "max_size".'
        )
    elif mode == "min_size" and trainer.training and num_accumulated > 1:
        why = (
            f"with accumulate_grad_batches={num_accumulated} a loss is divided by the examples of "
            "a group of steps, and nobody knows before it ends whether another loader has as many. "
            'Return CombinedLoader(loaders, "max_size"), or accumulate nothing.'
        )
    else:
        return
    loaders = list(combined.flattened)
    unknown = [number for number, loader in enumerate(loaders) if not knows_length(loader)]
    if unknown:
        msg = (
            f"Expected {len(loaders)} loaders whose numbers of steps are known, got number(s) "
            f"{', '.join(map(str, unknown))} (from 0) without: {why}"
        )
        raise tdi.ConfigurationError(msg)


def check_groups(trainer: Any, size: int, *, done: int, left: int, room: float) -> None:
    """Refuse a loader that is played again in the midst of a step of the optimizer.

    Its steps before that, and those after, would each be averaged for themselves.

    Args:
        trainer: accumulates ``size`` batches.
        size: ``accumulate_grad_batches``.
        done: steps that it counts in this epoch before the first one of the loader.
        left: steps of the loader until it is played again.
        room: steps that the trainer takes until then, or until the epoch ends.
    """
    if len(training_loaders(trainer)) < 2:
        return  # a callback may ask for more steps, as StochasticWeightAveraging does; none come
    if left < room and (done + left) % size and repeats_the_shorter(trainer):
        msg = (
            f"Expected a loader that ends with a step of the optimizer, got one of {left} steps "
            f"that begins after {done} steps of the epoch, with accumulate_grad_batches={size} and "
            "a longer loader beside it: Lightning plays it again in the midst of a step, whose "
            "loss would not be the mean over its examples. Return CombinedLoader(loaders, "
            '"max_size"), repeat its source in the dataset (a sampler, an endless stream), or '
            "accumulate nothing."
        )
        raise tdi.ConfigurationError(msg)


def warn_of_rest(last: LoaderPosition, num_steps: int | None, source: Any) -> None:
    """Say that Lightning goes on to the next epoch without the rest of this one."""
    _log.warning(
        "The trainer has ended epoch %d after %d%s steps (limit_train_batches or another "
        "reason). What else there is of its source (%s) is not trained in this epoch. "
        "The next one starts from the beginning of the source: in another order with "
        "shuffle=True, otherwise with the same examples again. (Logged once.)",
        last.epoch,
        last.num_steps,
        "" if num_steps is None else f" of {num_steps}",
        getattr(source, "__name__", type(source).__name__),
    )


def knows_length(loader: Any) -> bool:
    """Whether a loader knows how many steps it has."""
    if hasattr(loader, "count_steps"):  # ours; its len() also asks those beside it
        return loader.count_steps() is not None
    try:
        len(loader)
    except (TypeError, NotImplementedError):  # both are what Lightning takes for no length
        return False
    return True


def check_limits(trainer: Any, dataset: object, *, is_training: bool) -> None:
    """Refuse a fraction of an epoch whose length is not known, with its cure."""
    if is_training:
        name = "limit_train_batches"
    elif trainer.testing:
        name = "limit_test_batches"
    else:
        name = "limit_predict_batches" if trainer.predicting else "limit_val_batches"
    for argument in (name, "val_check_interval") if is_training else (name,):
        value = getattr(trainer, argument)
        if isinstance(value, float) and value != 1.0:
            msg = (
                f"Expected Trainer({argument}=...) to be a number of steps (an int) or 1.0, got "
                f"{value}: {dataset!r} does not know how many steps it has before it is read, so "
                f"nobody knows how many that is. Pass {argument}=100, for example, for 100 steps."
            )
            raise tdi.ConfigurationError(msg)


def check_steps(pl_module: Any) -> None:
    """Refuse a model that takes steps from an iterator: nobody would know which is in use."""
    for name in ("training_step", "validation_step", "test_step", "predict_step"):
        if "dataloader_iter" in inspect.signature(getattr(pl_module, name)).parameters:
            msg = (
                f"Expected {name}(self, batch, batch_idx), got one with dataloader_iter, which "
                "reads as far ahead as it likes: losses and checkpoints could be of other steps "
                "than those in use. Take the batch; it is read ahead of use anyway."
            )
            raise tdi.UsageError(msg)


def check_num_steps(trainer: Any, num_steps: int) -> None:
    """Refuse to play an epoch of which the trainer would leave out the last steps, by mistake."""
    limit = trainer.limit_train_batches  # 1 is one batch, 1.0 is all of them
    takes_all = isinstance(limit, float) and limit == 1.0 and len(training_loaders(trainer)) == 1
    if takes_all and trainer.num_training_batches < num_steps:
        msg = (
            f"Expected Lightning to take all {num_steps} steps of the epoch, got a trainer that "
            f"takes {trainer.num_training_batches}: it has counted the steps of another one. "
            "Call trainer.fit() with a new Trainer, and report this."
        )
        raise tdi.UsageError(msg)


def refuse_a_lost_state(trainer: Any, dataset: object) -> NoReturn:
    """Refuse a checkpoint from the middle of an epoch that does not tell where its input stood."""
    msg = (
        f"Expected a checkpoint that tells where {dataset!r} stands, got one that was saved "
        f"{steps_done(trainer)} steps into its epoch and does not: by another loader, by a "
        "DataModule with another class name, or without InputState among the callbacks. "
        "Examples would come twice. Resume from a checkpoint of the end of an epoch, or with "
        "the DataModule and the callbacks that wrote this one."
    )
    raise tdi.ConfigurationError(msg)
