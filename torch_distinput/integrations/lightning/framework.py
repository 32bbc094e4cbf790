"""Lightning as it is installed here: which of its two names, which version, what it says.

Lightning comes under two names, whose classes do not mix: a Trainer of one takes no DataModule of
the other. The one that is imported already is meant; where both or none are, ``lightning.pytorch``.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from typing import Any

import torch_distinput as tdi
from torch_distinput.integrations.versions import check_names, check_version

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_TESTED = "2.6"


def _name() -> str:
    """The name under which scripts of this process use Lightning."""
    for name in _NAMES:
        if name in sys.modules:
            return name
    for name in _NAMES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return name
    msg = (
        "Expected Lightning, got none: neither lightning nor pytorch-lightning is installed. "
        "Run pip install 'torch_distinput[lightning]'."
    )
    raise ModuleNotFoundError(msg)


NAME = _name()
pytorch: Any = importlib.import_module(NAME)
"""``lightning.pytorch`` or ``pytorch_lightning``."""


_PACKAGE = NAME.partition(".")[0].replace("_", "-")


def check_lightning() -> None:
    """Warn once of a version that is not tested."""
    check_version(_PACKAGE, tested=_TESTED, stacklevel=4)


def check_trainer(trainer: Any) -> None:
    """Refuse a version whose loops are told in vain where an epoch goes on."""
    loop = trainer.fit_loop
    for owner, names in (
        (trainer, ("_active_loop", "reload_dataloaders_every_n_epochs")),
        (loop, ("_combined_loader", "epoch_progress", "epoch_loop", "restarting")),
        (loop, ("restarted_on_epoch_end", "restarted_mid_epoch", "reset_restart_stage")),
        (loop.epoch_loop, ("batch_progress", "restarting", "_batches_that_stepped")),
        (loop.epoch_loop, ("_accumulated_batches_reached", "_num_ready_batches_reached")),
    ):
        check_names(_PACKAGE, owner, names)


def make_strategy(trainer: Any) -> tdi.Strategy:
    """Make the strategy of the ranks over which a trainer's data is parallel.

    All of them, but of a ``ModelParallelStrategy`` those along ``data_parallel`` of its mesh: ranks
    that share a part of the model get the same data.
    """
    devices = [trainer.strategy.root_device]
    if trainer.world_size == 1:
        return tdi.OneDeviceStrategy(devices[0])
    if isinstance(trainer.strategy, pytorch.strategies.ModelParallelStrategy):
        mesh = trainer.strategy.device_mesh
        return tdi.MultiWorkerMirroredStrategy(
            devices, device_mesh=mesh, data_dims=("data_parallel",)
        )
    return tdi.MultiWorkerMirroredStrategy(devices)


def refuse_many_alone(trainer: Any) -> None:
    """Refuse ranks that train by themselves; one of them may evaluate for all."""
    started = os.environ.get("WORLD_SIZE") or "1"
    if started != "1" and trainer.world_size == 1 and trainer.state.fn == "fit":
        msg = (
            f"Expected a Trainer over the {started} ranks that were started (WORLD_SIZE), got one "
            "of a single device: each rank would train a model of its own with all of the data. "
            'Write Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=...).'
        )
        raise tdi.UsageError(msg)


def training_loaders(trainer: Any) -> list[Any]:
    """The loaders that a trainer trains on, in its order; none before it has asked for them."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - trainer.train_dataloader nests
    return [] if combined is None else list(combined.flattened)


def loaders_in_use(trainer: Any, index: int = 0) -> list[Any]:
    """The loaders whose steps make up a batch: all, or one where it plays one after another."""
    combined = trainer._active_loop._combined_loader  # noqa: SLF001 - as above, of each stage
    loaders = list(combined.flattened)
    return [loaders[index]] if combined._mode == "sequential" else loaders  # noqa: SLF001


def ends_with_the_shortest(trainer: Any) -> bool:
    """Whether an epoch ends with the first of its loaders that ends."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - as above
    return combined is not None and bool(combined._mode == "min_size")  # noqa: SLF001


def repeats_the_shorter(trainer: Any) -> bool:
    """Whether loaders that end before others are played again in the same epoch."""
    return bool(trainer.fit_loop._combined_loader._mode == "max_size_cycle")  # noqa: SLF001


def waits_for_the_longest(trainer: Any) -> bool:
    """Whether loaders that end before others have nothing in the rest of an epoch."""
    return bool(trainer.fit_loop._combined_loader._mode == "max_size")  # noqa: SLF001 - as above


def has_only_to_end(trainer: Any) -> bool:
    """Whether a trainer that goes on from a checkpoint has trained the last step of its epoch.

    It may ask for another one, where it was saved in a validation that a stop had caused there.
    """
    loop = trainer.fit_loop
    steps, epochs = loop.epoch_loop.batch_progress.total, loop.epoch_progress.total
    is_last = loop.epoch_loop.batch_progress.is_last_batch
    is_behind = steps.ready == steps.processed == steps.completed
    is_inside = epochs.started > epochs.processed
    return bool(loop.epoch_loop.restarting and is_last and is_behind and is_inside)


def show_epoch(trainer: Any, pl_module: Any) -> None:
    """Let a progress bar know of an epoch that goes on: Lightning tells it of others only."""
    bar = trainer.progress_bar_callback
    if bar is not None:
        bar.on_train_epoch_start(trainer, pl_module)


def forget_loaders(trainer: Any) -> None:
    """Let a trainer ask for its training loaders again before it trains."""
    trainer.fit_loop._combined_loader = None  # noqa: SLF001 - as it does itself at fit()


def begin_epoch_anew(trainer: Any) -> None:
    """Let a trainer that goes on from a checkpoint begin its epoch with step 0.

    It would count on from the steps of the epoch before, where the checkpoint was saved at their
    end or before the first step of the next epoch.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_end:  # with max_steps; without, it has done so itself
        loop.epoch_progress.increment_completed()
    if loop.restarted_on_epoch_end or loop.restarted_mid_epoch:
        loop.reset_restart_stage()  # so that it counts the epoch as begun, and calls its hooks
        for counts in (loop.epoch_progress.current, loop.epoch_progress.total):
            counts.ready = counts.started = counts.processed  # and does not count it twice
    loop.epoch_loop.restarting = False
    forget_loaders(trainer)


def count_epoch_as_ready(trainer: Any) -> None:
    """Let a trainer that begins its epoch anew count it, and not the next one, when it has ended.

    Going on from the beginning of an epoch, it forgets that this one is ready.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_start:
        loop.epoch_progress.current.ready = loop.epoch_progress.current.processed + 1


def forget_failed_epoch(trainer: Any) -> None:
    """Let a trainer that begins to fit count epochs that have ended.

    One in which an earlier ``fit`` has failed Lightning counts as ready and as started for ever.
    What it loads from a checkpoint comes later.
    """
    progress = trainer.fit_loop.epoch_progress
    for counts in (progress.total, progress.current):
        counts.ready = counts.started = counts.processed


def reopen_epoch(checkpoint: dict[str, Any]) -> None:
    """Let a trainer that will load a checkpoint count its last epoch as begun, and not as ended.

    It counts an epoch as ended that ``max_steps`` or a stop has cut off.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
    for counts in (progress["total"], progress["current"]):
        # Lightning forgets that one is ready where it goes on from the beginning of an epoch.
        counts["ready"] = max(counts["ready"], counts["started"])
        counts["processed"] = counts["completed"] = counts["ready"] - 1


def count_totals_anew(checkpoint: dict[str, Any]) -> None:
    """Let a trainer that will load a checkpoint count batches over all epochs as in this one.

    By them it decides whether an epoch has ended. One that began and failed they count for ever.
    """
    loops = checkpoint.get("loops")
    if loops is None:  # taken out, which Lightning allows: it counts from the beginning
        return
    progress = loops["fit_loop"]["epoch_loop.batch_progress"]
    epoch, total = progress["current"], progress["total"]
    for name in ("ready", "started", "completed"):
        total[name] = total["processed"] + epoch[name] - epoch["processed"]


def put_back(checkpoint: dict[str, Any], num_steps: int) -> None:
    """Let a trainer that will load a checkpoint train its last steps of an epoch once more.

    It counts as though it was saved those steps earlier: where the optimizer stepped, in
    ``on_train_batch_end``, or where the epoch began, in ``on_train_epoch_start``.
    """
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    progress["is_last_batch"] = False
    is_begun = progress["current"]["processed"] > num_steps
    for counts in (progress["total"], progress["current"]):
        done = counts["processed"] - num_steps
        counts.update(ready=done, started=done, processed=done, completed=done - is_begun)
    if is_begun:
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        return
    for counts in (loop["epoch_progress"]["total"], loop["epoch_progress"]["current"]):
        counts["started"] = counts["ready"] - 1


def has_gradients_left(trainer: Any) -> bool:
    """Whether the optimizer has yet to step with the batch that was trained last."""
    loop = trainer.fit_loop.epoch_loop
    is_full = loop._accumulated_batches_reached()  # noqa: SLF001 - as it decides itself
    return not (is_full or loop._num_ready_batches_reached())  # noqa: SLF001


def counts_step(trainer: Any) -> bool:
    """Whether it counts the step in use, with which it has not ended yet, as trained.

    One that ``on_train_batch_start`` lets it skip counts as processed, but not as started.
    """
    counts = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(counts.processed == counts.started == counts.ready)


def epoch_of(trainer: Any) -> int:
    """The epoch that is trained or comes next, also before the loop has begun.

    Not ``current_epoch``, which lags behind where training goes on from the end of an epoch.
    """
    return int(trainer.fit_loop.epoch_progress.current.processed)


def takes_no_more(trainer: Any) -> bool:
    """Whether the trainer has taken all steps of an epoch that it means to take."""
    is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    return bool(is_last or is_at_limit(trainer))


def has_length(trainer: Any) -> bool:
    """Whether it takes a number for the length of an epoch, though a loader may end before.

    That is ``limit_train_batches``, or of several loaders the length of one that knows it.
    """
    return not math.isinf(trainer.num_training_batches)


def is_at_limit(trainer: Any) -> bool:
    """Whether the step in use is the last one that it takes of an epoch, of however many."""
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return bool(ready >= trainer.num_training_batches)


def note_ends(trainer: Any, ends: list[bool]) -> None:
    """Let it take the step in use for the last one, with which the optimizer steps, if it is.

    ``ends``: of each of our loaders, whether none of its steps is known to follow.
    """
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - as above
    is_whole = all(ends) and len(ends) == len(combined.flattened)
    is_end = any(ends) if ends_with_the_shortest(trainer) else is_whole
    if is_end and has_length(trainer):
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True


def is_inside_epoch(trainer: Any) -> bool:
    """Whether steps of its last epoch are left that were not trained, also by ``max_steps``."""
    batches = trainer.fit_loop.epoch_loop.batch_progress
    return bool(batches.current.processed and not batches.is_last_batch)


def steps_done(trainer: Any) -> int:
    """Steps of the epoch that were trained, in this process or before the checkpoint."""
    loop = trainer.fit_loop
    epochs = loop.epoch_progress.current
    is_inside = loop.restarting or epochs.ready > epochs.processed
    return int(loop.epoch_loop.batch_progress.current.processed) if is_inside else 0


def steps_of_epoch(trainer: Any, num_steps: int | None) -> int | float:
    """How many steps a trainer takes in an epoch; infinity where it takes all there are."""
    # It counts them when it has asked for the loader; until then it has the number of the last one.
    is_counted = num_steps is not None or isinstance(trainer.limit_train_batches, int)
    return trainer.num_training_batches if is_counted else math.inf
