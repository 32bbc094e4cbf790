"""Lightning as it is installed here: which of its two names, which version, what it says.

Lightning comes under two names, whose classes do not mix: a Trainer of one takes no DataModule of
the other. The one that is imported already is meant; where both or none are, ``lightning.pytorch``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from typing import Any, NoReturn

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


def training_loaders(trainer: Any) -> list[Any]:
    """The loaders that a trainer trains on, in its order; none before it has asked for them."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - trainer.train_dataloader nests
    return [] if combined is None else list(combined.flattened)


def loaders_in_use(trainer: Any, index: int = 0) -> list[Any]:
    """The loaders whose steps make up a batch: all, or one where it plays one after another."""
    combined = trainer._active_loop._combined_loader  # noqa: SLF001 - as above, of each stage
    loaders = list(combined.flattened)
    return [loaders[index]] if combined._mode == "sequential" else loaders  # noqa: SLF001


def check_cycle(trainer: Any) -> None:
    """Refuse to play loaders over and over of which nobody knows when they end.

    Lightning reads ahead over the end of such a loader, and does not save which have ended.
    """
    loop = trainer._active_loop  # noqa: SLF001 - as above
    combined = None if loop is None else loop._combined_loader  # noqa: SLF001
    if combined is None or combined._mode != "max_size_cycle":  # noqa: SLF001
        return
    loaders = list(combined.flattened)
    unknown = [number for number, loader in enumerate(loaders) if not _has_length(loader)]
    if unknown and len(loaders) > 1:
        msg = (
            f"Expected {len(loaders)} loaders whose numbers of steps are known, got number(s) "
            f"{', '.join(map(str, unknown))} (from 0) without: Lightning plays those again that "
            "end before others, and does not know after a restart which have ended, so examples "
            'would come twice. Return CombinedLoader(loaders, "min_size"), or "max_size".'
        )
        raise tdi.ConfigurationError(msg)


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except (TypeError, NotImplementedError):  # both are what Lightning takes for no length
        return False
    return True


def waits_for_the_longest(trainer: Any) -> bool:
    """Whether loaders that end before others have nothing in the rest of an epoch."""
    return bool(trainer.fit_loop._combined_loader._mode == "max_size")  # noqa: SLF001 - as above


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


def epoch_of(trainer: Any) -> int:
    """The epoch that is trained or comes next, also before the loop has begun.

    Not ``current_epoch``, which lags behind where training goes on from the end of an epoch.
    """
    return int(trainer.fit_loop.epoch_progress.current.processed)


def takes_no_more(trainer: Any) -> bool:
    """Whether the trainer has taken all steps of an epoch that it means to take."""
    is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    return bool(is_last or is_at_limit(trainer))


def trusts_limit(trainer: Any) -> bool:
    """Whether it takes ``limit_train_batches`` for the length of loaders that do not know it."""
    return isinstance(trainer.limit_train_batches, int)


def is_at_limit(trainer: Any) -> bool:
    """Whether the step in use is the last one that it takes of an epoch, of however many."""
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return bool(ready >= trainer.num_training_batches)


def note_ends(trainer: Any, ends: list[bool]) -> None:
    """Let it take the step in use for the last one, with which the optimizer steps, if it is.

    ``ends``: of each of our loaders, whether none of its steps is known to follow.
    """
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - as above
    is_shortest = combined._mode == "min_size"  # noqa: SLF001 - as above
    is_end = any(ends) if is_shortest else all(ends) and len(ends) == len(combined.flattened)
    if is_end and trusts_limit(trainer):
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True


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
