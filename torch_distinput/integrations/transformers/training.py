"""The loader that Trainer trains from, and what it has trained.

Trainer fetches the batches of one update of the optimizer, then trains them, then may save:

    fetched     0 1     2 3     4
    trained         0 1     2 3     4
    saved              ^       ^     ^    after 0 1, after 2 3, after 4

After a restart it skips the batches that it has trained, by their number in the run before. Here
nothing is to be skipped: the dataset goes on from its state. So as many empty placeholders come
first, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, final

from torch.utils.data import IterableDataset

import torch_distinput as tdi
from torch_distinput.integrations.claims import play
from torch_distinput.integrations.lengths import count_steps
from torch_distinput.integrations.transformers.checkpoint import SavedPosition
from torch_distinput.integrations.transformers.means import CURE
from torch_distinput.integrations.transformers.stand_in import without_rows


@final
class _Batches(IterableDataset[Any]):
    """Batches of the next epoch, behind the placeholders that ``skip_first_batches`` drops."""

    def __init__(self, dataset: tdi.DistributedDataset, num_examples: int | None) -> None:
        self.distributed = dataset
        self.num_examples = num_examples
        self.num_placeholders = 0
        self.step: tdi.Step | None = None

    def __len__(self) -> int:
        """Examples, as Trainer asks a loader's dataset for them."""
        if self.num_examples is None:
            msg = f"The examples of {self.distributed!r} are not counted before they are read."
            raise TypeError(msg)
        return self.num_examples

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.num_placeholders):
            yield {}
        self.num_placeholders = 0
        with closing(play(self.distributed, cure=CURE)) as steps:
            for step in steps:
                self.step = step
                yield step.batch


def _as_it_is(batch: Any) -> Any:
    return batch


@final
class TrainLoader:
    """What ``get_train_dataloader`` returns: the next epoch's batches of this process.

    Not a DataLoader, which Accelerate would cut again; with the attributes of one that Accelerate's
    ``skip_first_batches`` asks for.

    Args:
        dataset: distributed for this number of processes.
        num_examples: of it; None where nobody knows.
        distribute: does it again by another policy; None where it was given as it is.
    """

    def __init__(
        self,
        dataset: tdi.DistributedDataset,
        num_examples: int | None,
        distribute: Callable[[Any], tdi.DistributedDataset] | None = None,
    ) -> None:
        self.dataset = _Batches(dataset, num_examples)
        self._own, self._distribute = dataset, distribute
        self.batch_size = None
        self.drop_last = False
        self.prefetch_factor = None
        self.collate_fn = _as_it_is

    def choose_policy(self, policy: Any) -> None:
        """Play the epochs to come by a policy; None: by that for this number of processes.

        Where that has too few shards to deal out, another number may have had enough, and an epoch
        ends as it began.
        """
        self.dataset.distributed = self._own
        is_another = policy not in (None, self._own.auto_shard_policy)
        if is_another and self._distribute is not None:
            self.dataset.distributed = self._distribute(policy)

    def __len__(self) -> int:
        """Steps of the epoch, of those before a loaded position and those after."""
        return len(self.dataset.distributed)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


@final
class TrainRun:
    """One call of ``train()``: its loader, and how far the optimizer has come.

    Attributes:
        loader: what Trainer iterates.
        resumed: where a checkpoint was taken, if it goes on from one.
        first_epoch: the epoch that it begins with, or goes on in.
        num_left: steps to come when the epoch began; None where nobody knows.
    """

    def __init__(self, loader: TrainLoader, resumed: SavedPosition | None) -> None:
        self.loader = loader
        self.resumed = resumed
        self.first_epoch = 0 if resumed is None else resumed.epoch + resumed.has_ended
        self._start: SavedPosition | None = None  # of this epoch
        self.num_left: int | None = None
        self._num_steps: int | None = None
        self._fetched: tuple[tdi.Step, ...] = ()  # of the update under way
        self._fetched_at = 0  # updates in all epochs before it
        self._is_exhausted = False
        self._trained: tdi.Step | None = None
        self._num_updates = 0
        if resumed is not None and not resumed.has_ended:
            loader.choose_policy(resumed.policy)
            self._dataset.load_state_dict(resumed.state)

    @property
    def _dataset(self) -> tdi.DistributedDataset:
        return self.loader.dataset.distributed

    def count_left(self) -> int | None:
        """Steps to come of the epoch that it begins with; None where nobody knows."""
        num_steps = count_steps(self._dataset)
        goes_on = self.resumed is not None and not self.resumed.has_ended
        if num_steps is None or self.resumed is None or not goes_on:
            return num_steps
        return num_steps - self.resumed.delivered

    def begin(self, epoch: int, accumulation: int) -> int:
        """Choose the epoch to play; returns the batches that Trainer skips.

        They are those of as many updates as there were before in this epoch, whatever an update
        was then.
        """
        start = self.resumed
        if start is not None and (start.has_ended or start.epoch != epoch):
            start = None
        if start is None:
            self.loader.choose_policy(None)
        dataset = self._dataset
        dataset.set_epoch(epoch)
        if start is None:
            start = SavedPosition(
                state=dataset.state_dict(),
                epoch=epoch,
                delivered=0,
                update_steps=0,
                global_step=0,
                has_ended=False,
            )
        self._start = start
        self._fetched, self._trained, self._num_updates = (), None, start.update_steps
        self._num_steps, self._is_exhausted = count_steps(dataset), False
        self.num_left = None if self._num_steps is None else self._num_steps - start.delivered
        self.loader.dataset.num_placeholders = skipped = self._num_updates * accumulation
        return skipped

    def fetch(self, batches: Iterator[Any], num_batches: int, global_step: int) -> list[Any]:
        """The batches of one update; behind the last of an epoch come batches without rows.

        Where the length is not known, Trainer takes an update for one of ``num_batches``, and would
        keep the gradients of fewer for the next epoch.
        """
        self._settle(global_step)
        fetched, steps = [], []
        for batch in islice(batches, num_batches):
            fetched.append(batch)
            steps.append(self.loader.dataset.step)
        self._fetched, self._fetched_at = tuple(filter(None, steps)), global_step
        self._is_exhausted = len(fetched) < num_batches
        if fetched and self._num_steps is None:
            fetched += [without_rows(fetched[-1])] * (num_batches - len(fetched))
        return fetched

    @property
    def num_rows(self) -> list[int]:
        """Examples on this process of each step of the update under way."""
        return [sum(step.local_counts) for step in self._fetched]

    def position(self, global_step: int) -> SavedPosition:
        """Where the epoch stands after the last update of the optimizer."""
        self._settle(global_step)
        assert self._start is not None, "an epoch begins before something is saved"
        step, start = self._trained, self._start
        delivered = start.delivered if step is None else step.index + 1
        is_last = delivered == self._num_steps or self._is_exhausted
        return SavedPosition(
            state=start.state if step is None else step.state_dict(),
            epoch=start.epoch,
            delivered=delivered,
            update_steps=self._num_updates,
            global_step=global_step,
            has_ended=is_last and not self._fetched,
        )

    def _settle(self, global_step: int) -> None:
        """Note the update under way as trained, if the optimizer has taken it."""
        if self._fetched and global_step > self._fetched_at:
            self._trained, self._fetched = self._fetched[-1], ()
            self._num_updates += 1
