"""A loader for Lightning: what it delivers, which step of that is in use, what comes next.

It is no DataLoader, so Lightning leaves it as it is. It is lazy, since Lightning calls ``iter()``
to have a look: an epoch begins when its first step is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

import torch_distinput as tdi
from torch_distinput.integrations import lengths
from torch_distinput.integrations.claims import play
from torch_distinput.integrations.lightning import checks, framework
from torch_distinput.integrations.lightning.delivered_steps import (
    DeliveredStep,
    LossWeights,
    grouped,
    note_last,
    one_by_one,
    to_the_end,
)
from torch_distinput.integrations.lightning.training_progress import (
    LoaderPosition,
    Trained,
    find_progress,
)
from torch_distinput.integrations.wrapping import refuse_item

if TYPE_CHECKING:
    import torch


@final
class Loader:
    """Plays a source in a trainer: for training, validation, test or prediction.

    Return it from a ``..._dataloader()`` hook, alone or in a list or dict with others, or pass it
    to ``trainer.fit``. The trainer needs a :class:`DataModule` or, among its callbacks, an
    :class:`InputState`, which keep in checkpoints where an epoch stands.

    Args:
        trainer: the Trainer that plays it; in a hook ``self.trainer``.
        source: what ``Strategy.distribute_dataset`` takes.
        arguments: what it takes with it: ``global_batch_size``, ``shuffle``, ``seed``, ``options``
            and so on. And ``weights``: what :func:`tdi.accumulate` takes, for losses by token.

    Raises:
        UsageError: if the trainer has neither.
    """

    def __init__(
        self, trainer: Any, source: Any, *, weights: LossWeights = None, **arguments: Any
    ) -> None:
        framework.check_lightning()
        self._trainer = trainer
        self._progress = find_progress(trainer)
        self._weights, self._source, self._arguments = weights, source, arguments
        self._dataset: tdi.DistributedDataset | None = None
        self._delivered: deque[DeliveredStep] = deque()  # and not in use yet
        self._in_use: DeliveredStep | None = None
        # of the epoch under way
        self._is_under_way = self._is_resumed = self._is_read = False
        self._num_steps: int | None = None
        self._was_cut_short = False

    def __len__(self) -> int:
        """The number of steps of the epoch under way, or else of the next one.

        Where it goes on from a checkpoint, those before it are counted as they were delivered:
        Lightning counts them too.

        Raises:
            TypeError: where it is not known before the data is read.
            ConfigurationError: where it is not known and Lightning is to play a fraction of it.
        """
        trained = self._trained
        if not self._is_under_way:
            self._aim()
            self._num_steps = self.count_steps()
            if self._num_steps is not None and trained is not None and self._is_at_its_end(trained):
                self._num_steps, self._is_resumed = trained.last.num_steps, True
        unknown = self._find_unknown()
        if self._num_steps is not None and unknown is None:
            return self._num_steps
        dataset = self.dataset if unknown is None else getattr(unknown, "dataset", unknown)
        checks.check_limits(self._trainer, dataset, is_training=trained is not None)
        raise TypeError("The number of steps is not known before the data is read.")

    def __iter__(self) -> Iterator[Any]:
        """Play an epoch; it begins when its first step is asked for."""
        self._is_under_way = False
        return self._play()

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse: a DataLoader around this one would sample it, and distribute it once more."""
        del index
        refuse_item(self)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the DataModule or InputState keeps where it stands, also between loaders.

        Lightning looks for this method, and without it warns that the loader cannot be resumed.
        """
        return {}

    def load_state_dict(self, state_dict: object) -> None:
        """Nothing, as in :meth:`state_dict`."""

    @property
    def dataset(self) -> tdi.DistributedDataset:
        """What it plays; made when it is asked for first, on all ranks."""
        framework.refuse_many_alone(self._trainer)  # each time: it may have evaluated before
        if self._dataset is None:
            distribute = self._progress.strategy.distribute_dataset
            self._dataset = distribute(self._source, **self._arguments)
        return self._dataset

    @property
    def step(self) -> tdi.Step:
        """The step in use: its ``num_examples``, ``local_counts`` and ``ids``; without its batch.

        Raises:
            UsageError: before the first one.
        """
        return self._used.step

    def average_loss(
        self, per_example_loss: torch.Tensor, *, per: Literal["example", "token"] | None = None
    ) -> torch.Tensor:
        """The loss that ``training_step`` returns for the losses of its examples.

        The gradients are those of the mean over all examples of the optimizer's step: over all
        ranks, whose gradients Lightning averages, and all batches that it accumulates, however
        many examples each of them has.

        Args:
            per_example_loss: shape ``(rows, ...)``: losses of this rank's batch, with
                ``reduction="none"``.
            per: as of ``Step.average``; by token with the ``weights`` of the loader.

        Returns:
            A 0-dim tensor; exactly 0, with gradients, for a batch of zero rows.

        Raises:
            ValueError: if the loss has other rows than the batch.
            UsageError: if the steps were grouped for another ``accumulate_grad_batches``.
        """
        used = self._used
        num_accumulated = self._trainer.accumulate_grad_batches if self._trainer.training else 1
        if used.num_accumulated != num_accumulated:
            msg = (
                f"Expected steps that are grouped for accumulate_grad_batches={num_accumulated}, "
                f"got some for {used.num_accumulated}: the trainer's value has changed since the "
                "step was read. Set it before the epoch begins."
            )
            raise tdi.UsageError(msg)
        scale = self.dataset.strategy.num_workers * num_accumulated
        average: torch.Tensor = used.step.average(per_example_loss, per=per) * scale
        return average

    def average(self, per_example_value: torch.Tensor) -> torch.Tensor:
        """The mean of a value over the global batch of the step in use, for ``self.log``.

        Lightning's mean over ranks is the mean of the batch, and that over an epoch the mean of all
        its examples:

            self.log("loss", loader.average(losses), batch_size=loader.step.num_examples,
                     on_epoch=True, sync_dist=True)

        Args:
            per_example_value: shape ``(rows, ...)``: a value for each example of the batch.

        Returns:
            A 0-dim tensor; exactly 0 for a batch of zero rows.
        """
        used = self._used
        scale = self.dataset.strategy.num_workers * used.num_averaged / used.step.num_examples
        average: torch.Tensor = used.step.average(per_example_value, per="example") * scale
        return average

    @property
    def was_resumed(self) -> bool:
        """Whether the epoch under way went on from a checkpoint."""
        return self._is_resumed

    @property
    def begins_epoch(self) -> bool:
        """Whether the checkpoint is of an epoch before the one that Lightning begins."""
        if self._trained is None:
            return False
        last, epoch = self._trained.last, framework.epoch_of(self._trainer)
        return last.loaded is not None and last.epoch < epoch

    def begin_step(self) -> bool:
        """The oldest of the steps delivered goes into use; whether none is known to follow."""
        if self._delivered:
            self._in_use = self._delivered.popleft()
        used = self._in_use
        return used is not None and (used.is_last or used.step.index + 1 == self._num_steps)

    def end_step(self, *, is_waiting: bool) -> None:
        """The step in use was trained; if it is waiting, the optimizer has yet to step with it."""
        trained, used = self._trained, self._in_use
        if trained is not None and used is not None:
            is_last = used.step.index + 1 == self._num_steps
            is_known = used.num_accumulated == 1 or not framework.is_at_limit(self._trainer)
            is_end = used.is_last and is_known  # a group ends at the limit, whatever follows
            is_over = is_last or is_end or (self._is_read and not self._delivered)
            epoch = framework.epoch_of(self._trainer)
            position = LoaderPosition(epoch=epoch, is_over=is_over, step=used.step)
            trained.note(position, is_waiting=is_waiting)

    def end_epoch(self) -> None:
        """Lightning ends its epoch, or stops: what stopped it may go on from a checkpoint."""
        trained = self._trained
        if trained is None or trained.last.is_over:
            return
        if framework.takes_no_more(self._trainer):
            self._leave_the_rest(trained)

    def _leave_the_rest(self, trained: Trained) -> None:
        """Lightning goes on to the next epoch; say once how much of this one it leaves."""
        trained.end_epoch()
        self._warn_of_rest(trained)

    def _warn_of_rest(self, trained: Trained) -> None:
        if self._was_cut_short or not self._trainer.is_global_zero:
            return
        self._was_cut_short = True
        checks.warn_of_rest(trained.last, self._num_steps, self._source)

    @property
    def _used(self) -> DeliveredStep:
        if self._in_use is None:
            msg = (
                "Expected a step in use, got none: Lightning has not begun one of this loader. Ask "
                "in training_step or another step of the model, or in a hook of its batches."
            )
            raise tdi.UsageError(msg)
        return self._in_use

    @property
    def _trained(self) -> Trained | None:
        """How far it is as a training loader; None for one that evaluates."""
        ours = self._training_loaders
        place = next((index for index, loader in enumerate(ours) if loader is self), None)
        return None if place is None else self._progress.trained(place, len(ours))

    def _aim(self) -> None:
        """Let the dataset's next ``iter()`` play what the trainer takes next."""
        trained, epoch = self._trained, framework.epoch_of(self._trainer)
        self._is_resumed = False
        if trained is None:
            self.dataset.set_epoch(epoch)
            return
        last, state = trained.last, trained.last.input_state
        if state is None and framework.steps_done(self._trainer):
            checks.refuse_a_lost_state(self._trainer, self.dataset)
        if last.loaded is not None and epoch <= last.epoch and not last.is_over:
            self.dataset.load_state_dict(last.loaded)
            self._is_resumed = True
            return
        if state is not None and not last.is_over:
            if epoch > last.epoch:
                self._leave_the_rest(trained)
            elif epoch == last.epoch:  # fit() has failed in it, and begins it anew
                self._warn_of_rest(trained)
        if self._trainer.overfit_batches:
            self.dataset.set_epoch(0)  # the same batches again
        else:  # a loader that is shorter than others is played again in one epoch of Lightning
            self.dataset.set_epoch(epoch if state is None else max(epoch, state["epoch"] + 1))

    def _is_at_its_end(self, trained: Trained) -> bool:
        """Whether Lightning is yet to end the epoch whose last step the checkpoint has."""
        last, epoch = trained.last, framework.epoch_of(self._trainer)
        return last.loaded is not None and last.is_over and epoch <= last.epoch

    def _find_unknown(self) -> Any:
        """A loader with which the epoch of this one may end, though nobody knows when; or None.

        Lightning would take the length of this one for that of the epoch, and not validate there.
        """
        is_shortest = framework.ends_with_the_shortest(self._trainer)
        loaders = framework.training_loaders(self._trainer) if is_shortest else []
        others = loaders if any(loader is self for loader in loaders) else []
        return next((loader for loader in others if not checks.knows_length(loader)), None)

    @property
    def _training_loaders(self) -> list[Loader]:
        loaders = framework.training_loaders(self._trainer)
        return [loader for loader in loaders if isinstance(loader, Loader)]

    def _num_done(self) -> int:
        """Steps that Lightning counts in the epoch under way; none where it begins one."""
        trained = self._trained
        if trained is not None and trained.last.loaded is not None and not self._is_resumed:
            return 0
        return framework.steps_done(self._trainer)

    def count_steps(self) -> int | None:
        """Steps of the next epoch; None where they are not known before the data is read."""
        return lengths.count_steps(self.dataset)

    def _play(self) -> Iterator[Any]:
        """Deliver an epoch, or the rest of one; where nothing is left of it, the next one."""
        trained, trainer = self._trained, self._trainer
        if trained is None or not (
            framework.has_only_to_end(trainer)
            or (self._is_at_its_end(trained) and framework.waits_for_the_longest(trainer))
        ):
            yield from self._deliver()

    def _deliver(self) -> Iterator[Any]:
        self._aim()
        self._delivered.clear()
        self._is_under_way, self._is_read = True, False
        self._num_steps = self.count_steps()
        checks.check_mode(self._trainer)
        if self._trained is not None and self._num_steps is not None:
            checks.check_num_steps(self._trainer, self._num_steps)
        cure = "Call average_loss of the DataModule or loader, or average for what is logged."
        with closing(play(self.dataset, cure=cure)) as steps:
            for delivered in self._group(to_the_end(steps, self._num_steps)):
                batch = delivered.step.batch
                self._delivered.append(replace(delivered, step=replace(delivered.step, batch=None)))
                yield batch
        self._is_read = True

    def _group(self, steps: Iterator[tdi.Step]) -> Iterator[DeliveredStep]:
        """Join the steps whose gradients Lightning accumulates."""
        size = 1 if self._trained is None else self._trainer.accumulate_grad_batches
        if size == 1:
            found = one_by_one(steps, self._weights)
        else:
            done = self._num_done()
            room = framework.steps_of_epoch(self._trainer, self._num_steps) - done
            if self._trained is not None and self._num_steps is not None:
                before = self._trained.last.num_steps if self._is_resumed else 0
                left = self._num_steps - before
                checks.check_groups(self._trainer, size, done=done, left=left, room=room)
            found = grouped(steps, size, done=done, room=room, weights=self._weights)
        is_unknown = self._trained is not None and self._num_steps is None
        return note_last(found) if is_unknown and framework.has_length(self._trainer) else found
