"""The mixin: where Trainer asks for a loader, counts the steps of an epoch, and weighs a loss."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint, seed_worker

import torch_distinput as tdi
from torch_distinput.integrations.accelerate_processes import check_processes
from torch_distinput.integrations.claims import claim
from torch_distinput.integrations.transformers.checkpoint import SavedPosition
from torch_distinput.integrations.transformers.checks import (
    check_gathering,
    check_means,
    check_transformers,
    check_wrapped,
)
from torch_distinput.integrations.transformers.evaluation import EvaluationLoader, RowGatherer
from torch_distinput.integrations.transformers.means import ModelLoss
from torch_distinput.integrations.transformers.sources import (
    LoaderArguments,
    count_examples,
    distribute,
    has_columns,
    has_index,
)
from torch_distinput.integrations.transformers.stand_in import FilledBatches, StandIn, ignore_labels
from torch_distinput.integrations.transformers.training import TrainLoader, TrainRun
from torch_distinput.integrations.versions import check_names


class DistributedInputMixin(Trainer):  # type: ignore[misc] # transformers is not type-checked
    """Lets a Trainer train, evaluate and predict each example exactly once.

        class MyTrainer(DistributedInputMixin, Trainer): ...

    Datasets are those that Trainer takes, and all that ``strategy.distribute_dataset`` takes; one
    that is distributed already is played as it is. The global batch has
    ``per_device_train_batch_size`` examples times the processes; where an epoch ends it has fewer,
    and none is repeated. A checkpoint of any number of processes and any batch size is resumed.

    Raises:
        ConfigurationError: a ValueError; where processes get the same data (tensor, context and
            sequence parallelism), where ``average_tokens_across_devices=False`` would let each
            process train its own mean, and for a dataset of other processes.
    """

    gather_function: Any
    loss_is_scaled_for_ga: bool | None
    model_accepts_loss_kwargs: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As of Trainer."""
        check_transformers()
        self._strategy: tdi.Strategy | None = None
        self._resumed: SavedPosition | None = None
        self._run: TrainRun | None = None  # while train() runs
        self._weights: deque[torch.Tensor | None] = deque()  # of the losses to come
        self._stand_in = StandIn()
        self._given = FilledBatches()
        self._model_loss = ModelLoss()
        self._evaluated: EvaluationLoader | None = None
        super().__init__(*args, **kwargs)
        check_names("transformers", self, ("gather_function", "loss_is_scaled_for_ga"))

    @property
    def is_stand_in(self) -> bool:
        """Whether the step in use has no examples on this process, and its loss counts nothing."""
        if self._evaluated is not None:
            return not self._evaluated.num_rows
        return self._given.is_stand_in

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Any = None,
        *,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> TrainLoader | EvaluationLoader:
        """What Trainer's three ``get_..._dataloader`` call."""
        del dataloader_key  # evaluation is distributed anew each time
        if isinstance(dataset, tdi.DistributedDataset):
            check_processes(dataset.strategy, self.accelerator)
            claim(dataset, "Transformers")
            distributed, again = dataset, None
        else:
            order = sampler_fn if is_training and has_index(dataset) else None
            found = self._list_arguments(dataset, description, batch_size, order, is_training)
            again = partial(distribute, *found, self._find_strategy())
            distributed = again()
        if is_training:
            return TrainLoader(distributed, count_examples(dataset), again)
        return EvaluationLoader(distributed, self.accelerator, count_examples(dataset))

    def _list_arguments(
        self, dataset: Any, description: str, batch_size: int, sampler_fn: Any, is_training: bool
    ) -> tuple[Any, LoaderArguments]:
        """The dataset without the columns that the model does not take, and how it is read."""
        args, collate_fn = self.args, self.data_collator
        if has_columns(dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collate_fn = self._get_collator_with_removed_columns(collate_fn, description)
        sampler = sampler_fn(dataset) if sampler_fn is not None else None
        num_workers, loading = args.dataloader_num_workers, {}
        if num_workers:
            loading = {
                "persistent_workers": args.dataloader_persistent_workers,
                "multiprocessing_context": args.dataloader_multiprocessing_context,
                "prefetch_factor": args.dataloader_prefetch_factor,
                "in_order": args.dataloader_in_order,
            }
            if is_training:
                seed = partial(seed_worker, num_workers=num_workers, rank=args.process_index)
                loading["worker_init_fn"] = seed
        in_order = tdi.InputOptions(auto_shard_policy="data")
        arguments = LoaderArguments(
            global_batch_size=batch_size * args.world_size,
            sampler=sampler,
            seed=args.seed if args.data_seed is None else args.data_seed,
            drop_last=is_training and args.dataloader_drop_last,
            collate_fn=collate_fn,
            num_workers=num_workers,
            loading=loading,
            options=tdi.InputOptions() if is_training else in_order,
        )
        return dataset, arguments

    def _find_strategy(self) -> tdi.Strategy:
        """The strategy over Trainer's processes, made when it is needed first."""
        if self._strategy is None:
            self._strategy = tdi.MultiWorkerMirroredStrategy([str(self.args.device)])
            check_processes(self._strategy, self.accelerator)
        return self._strategy

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As of Trainer; a checkpoint is resumed on any number of processes, and costs nothing.

        Raises:
            ValueError: if the checkpoint does not say where the epoch stands.
        """
        check_means(self.args)
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        is_read = folder and not self.args.ignore_data_skip
        self._resumed = SavedPosition.read(Path(str(folder))) if is_read else None
        self._stand_in = StandIn()
        try:
            return super().train(resume_from_checkpoint, **kwargs)
        finally:
            self._resumed = self._run = None

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """As of Trainer, whose numbers are those of whole epochs; what is left may be more or less.

        With 5 of 10 steps left on half as many processes, they become 10: one epoch has 15 then.
        """
        values = super().set_initial_training_values(args, dataloader)
        if not isinstance(dataloader, TrainLoader):
            return values
        self._run = run = TrainRun(dataloader, self._resumed)
        left, resumed = run.count_left(), self._resumed
        if resumed is None:
            return values
        num_epochs, per_epoch, *others, max_steps = values
        done, first = resumed.global_step, run.first_epoch
        if left is not None:
            left = math.ceil(left / args.gradient_accumulation_steps)
            if args.max_steps > 0:
                later = max(0, max_steps - done - left)
                num_epochs = first + 1 + math.ceil(later / per_epoch)
            else:
                in_all = math.ceil(args.num_train_epochs * per_epoch)
                max_steps = max(done, done + left + in_all - (first + 1) * per_epoch)
        if max_steps <= done:
            num_epochs = first  # nothing is left
        return (num_epochs, per_epoch, *others, max_steps)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """As of Trainer, with the epoch and the updates that the checkpoint tells."""
        found = super()._init_training_state(*args, **kwargs)
        if self._run is None or self._resumed is None:
            return (int(found[0]), int(found[1]))
        in_epoch = 0 if self._resumed.has_ended else self._resumed.update_steps
        return self._run.first_epoch, in_epoch * self.args.gradient_accumulation_steps

    def _run_epoch(self, **kwargs: Any) -> Any:
        """As of Trainer, with the steps that this epoch has."""
        run, accumulation = self._run, self.args.gradient_accumulation_steps
        if run is not None:
            check_wrapped(kwargs["model"], self)
            skipped = run.begin(kwargs["epoch"], accumulation)
            left = run.num_left
            if left is not None:
                updates = skipped // accumulation + math.ceil(left / accumulation)
                kwargs.update(steps_in_epoch=skipped + left, num_update_steps_per_epoch=updates)
        return super()._run_epoch(**kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """As of Trainer; an epoch whose length was not known ends where its data does."""
        run = self._run
        if run is None:
            return tuple(super().get_batch_samples(epoch_iterator, num_batches, device))
        batches = run.fetch(epoch_iterator, num_batches, self.state.global_step)
        if not batches:
            self.control.should_epoch_stop = True
        rows = [*run.num_rows, *[0] * (len(batches) - len(run.num_rows))]
        if batches:
            self._stand_in.begin(batches[0], rows[0], self.accelerator)
        self._given = given = FilledBatches(map(self._stand_in.fill, batches, rows), rows)
        if given:
            self._model_loss.find_out(self, given[0], rows[0])
        _, num_items = super().get_batch_samples(iter(batches), len(batches), device)
        if isinstance(num_items, torch.Tensor):
            num_items = num_items.clamp(min=1)  # where no label counts: a loss of 0, and no NaN
        self._weights.clear()
        if batches and not self._is_scaled(num_items):
            self._weights.extend(self._weigh_means(batches, rows, device))
        else:
            nothing = torch.zeros((), device=device)
            self._weights.extend(None if own else nothing for own in rows)
        return given, num_items

    def _is_scaled(self, num_items: Any) -> bool:
        """Whether a loss is a part of its update's mean, and no mean of its own; Trainer's rule."""
        if self.loss_is_scaled_for_ga is not None:
            return bool(self.loss_is_scaled_for_ga)
        by_model = self.model_accepts_loss_kwargs and num_items is not None
        return bool(by_model or self.compute_loss_func is not None)

    def _weigh_means(
        self, batches: list[Any], num_rows: list[int], device: torch.device
    ) -> Iterator[torch.Tensor]:
        """What the mean of each batch counts in the mean of its update on all processes.

        Gradients are averaged over processes, hence their number.
        """
        pairs = zip(batches, num_rows, strict=True)
        items = torch.stack(
            [self._model_loss.count(self, batch, own).to(device) for batch, own in pairs]
        )
        total = self.accelerator.gather(items.sum()).sum().clamp(min=1)
        yield from items * self.accelerator.num_processes / total

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """As of Trainer, which divides a mean loss by the batches that it accumulates.

        It divides by what makes it its share of the mean over all examples of the update instead;
        and the loss of what stands in for no rows by infinity, whoever has scaled it.
        """
        weight = self._weights.popleft() if self._weights else None
        if weight is None:
            return cast(torch.Tensor, super().training_step(model, inputs, num_items_in_batch))
        check_names("transformers", self, ("current_gradient_accumulation_steps",))  # before we do
        before = self.loss_is_scaled_for_ga
        self.loss_is_scaled_for_ga = False
        self.current_gradient_accumulation_steps = 1 / weight
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self.loss_is_scaled_for_ga = before
        return torch.where(weight == 0, 0, loss)  # the mean over labels that do not count is NaN

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """As of Trainer, which takes what was not logged from one process: its share is no mean."""
        self._tr_loss: Any = self.accelerator.gather(self._tr_loss).mean()
        return super()._finalize_training(*args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As of Trainer, with the position in the same folder."""
        if self._run is not None:
            step = self.state.global_step
            position = self._run.position(step)
            if self.args.should_save:
                folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
                position.write(folder)
        super()._save_checkpoint(model, trial)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """As of Trainer; batches may differ in size, and each example counts once."""
        if not isinstance(dataloader, EvaluationLoader):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        check_gathering(self.args)
        before, self._evaluated = self.gather_function, dataloader
        self.gather_function = RowGatherer(dataloader, self.accelerator)
        try:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self._evaluated, self.gather_function = None, before

    def prediction_step(
        self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """As of Trainer; the loss is that of the step on all processes."""
        if self._evaluated is None:
            return tuple(super().prediction_step(model, inputs, *args, **kwargs))
        stand_in, num_rows = self._evaluated.stand_in, self._evaluated.num_rows
        stand_in.begin(inputs, num_rows, self.accelerator)
        given = stand_in.fill(inputs, num_rows)
        self._model_loss.find_out(self, given, num_rows)
        counts_labels = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if counts_labels and not num_rows:
            given = ignore_labels(given)
        loss, logits, labels = super().prediction_step(model, given, *args, **kwargs)
        if loss is not None:
            is_scaled = counts_labels and self.args.average_tokens_across_devices
            loss = self._model_loss.average(self, loss, inputs, num_rows, is_scaled=is_scaled)
        self._evaluated.gathers_loss = loss is not None
        return loss, logits, labels
