"""What a dataset warns of at the start and at the end of its epochs: once, on one worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, final

from torch_distinput.data.sources.dataloader import is_loader

if TYPE_CHECKING:
    from torch_distinput.data.sources.source import Request
    from torch_distinput.engine.epoch_record import EpochRecord
    from torch_distinput.engine.input import Input
    from torch_distinput.plan.progress.position import BatchLayout, Position

_log = logging.getLogger(__name__)

Played = dict[tuple[int, ...], bool]
"""By the key of an order of some data: whether a warning said that it came again."""


def _cure(layout: BatchLayout, *, in_every_step: bool) -> str:
    """What to do about batches of zero rows."""
    size, num_replicas = layout.global_batch_size, layout.num_workers * layout.replicas_per_worker
    if isinstance(size, int):
        piece = -(-size // num_replicas)
        if size < num_replicas:
            return (
                f"The global batch size is {size}, and there are {num_replicas} replicas: choose a "
                "larger one, or fewer replicas."
            )
        if in_every_step and layout.rebatch == "split" and piece * (num_replicas - 1) >= size:
            return (
                f"Pieces of {piece} of {size} examples leave some of {num_replicas} replicas "
                f"without any in every step: choose a multiple of {num_replicas} as the global "
                'batch size, or InputOptions(rebatch="even").'
            )
    return (
        'If your model or metric does not, use InputOptions(partial_batch="pad"), or '
        'drop_last=True (with whole files also auto_shard_policy="data").'
    )


@final
class FirstOrder:
    """The order in which shuffled data begins: a dataset that is made anew has it again.

    Args:
        played: the orders of the same data that were played; each with whether a warning said so.
        seed: of this one.
        others: what else the data consists of.
    """

    def __init__(self, played: Played, seed: int, others: Iterable[Any]) -> None:
        """Nothing has been played by this dataset."""
        self.seed = seed
        self._played = played
        self._key = (seed, *map(id, others))

    def takes_warning(self) -> bool:
        """Whether to say that another dataset has played it; True once, as that is enough."""
        was_played = self._played.get(self._key) is False
        if was_played:
            self._played[self._key] = True
        return was_played

    def end(self) -> None:
        """It has been played."""
        self._played.setdefault(self._key, False)


def find_first_order(
    orders: MutableMapping[Any, Played], source: Any, request: Request, seed: int
) -> FirstOrder | None:
    """The order of the first epoch, where there is a new one in each.

    None for a list, say, which cannot be referred to weakly.

    Args:
        orders: what has been played of which data; refers to the data weakly.
        source: what is distributed.
        request: how.
        seed: of its order.
    """
    if not request.shuffle:
        return None
    data, *others = _find_lasting(source)
    try:
        if data not in orders:
            orders[data] = {}
    except TypeError:
        return None
    return FirstOrder(orders[data], seed, others)


def _find_lasting(source: Any) -> tuple[Any, ...]:
    """What stays where a dataset is made anew for each epoch: a loader and a dict are made anew."""
    data = source.dataset if is_loader(source) else source
    if isinstance(data, list):
        return (source,)
    columns = tuple(data.values()) if isinstance(data, Mapping) else data
    return columns if type(columns) is tuple and columns else (data,)


@final
class EpochWarnings:
    """The warnings of one dataset.

    Args:
        name: what the dataset is called.
        source: what it plays.
        speaks: this rank speaks for all.
        num_workers: workers that the source is dealt out to.
        allows_zero_rows: batches of zero rows may be delivered.
        order: of the first epoch, where it is drawn.

    Attributes:
        hides_zero_rows: who plays the dataset keeps them from the model: nobody need do anything.
    """

    def __init__(
        self,
        name: str,
        source: Input,
        *,
        speaks: bool,
        num_workers: int,
        allows_zero_rows: bool,
        order: FirstOrder | None,
    ) -> None:
        """Nothing has been said."""
        self._name = name
        self._input = source
        self._num_workers = num_workers
        self._foresees = speaks and allows_zero_rows
        self._speaks = self._tells_empty = speaks
        self._order = order if speaks else None
        self._is_new = self._tells_look = True
        self.hides_zero_rows = False

    def begin(self, position: Position) -> None:
        """Before the first epoch, foresee batches of zero rows, and an order that was played.

        Some models cannot take batches without rows.
        """
        epoch = position.epoch
        is_new, self._is_new = self._is_new, False
        if is_new and not epoch and not position.steps:
            self._warn_of_order()
        foresees, self._foresees = self._foresees, False
        if not foresees:
            return
        idle = self._input.idle(epoch)
        if idle is None:
            self._warn_of_few_parts()
        elif idle.steps and not self.hides_zero_rows:
            first = self._input.first(epoch)
            num_steps = self._input.num_steps(first)
            _log.warning(
                "%s: in %d of the %s steps of epoch %d some replicas have no examples and get "
                "batches of zero rows (%d of them). Most of torch's layers, step.average and our "
                "integrations accept them. %s For a metric, test step.is_empty.",
                self._name,
                idle.steps,
                num_steps,
                epoch,
                idle.batches,
                _cure(first.layout, in_every_step=idle.steps == num_steps),
            )

    def end_look(self, left: EpochRecord | None) -> None:
        """Tell of an epoch that was left after its first step: it may have been a look at a batch.

        Before the next one begins: then a sampler need not be asked for its length, which may draw.

        ``left``: what the epoch to come follows, as nobody has chosen another one.
        """
        if left is None or not (self._speaks and self._tells_look):
            return
        has_looked = left.steps == 1 and not (left.before.steps or left.ended or left.failed)
        if not has_looked or self._input.num_steps(left.before) == 1:
            return
        self._tells_look = False
        _log.warning(
            "%s: epoch %d was left after one step. The rest of it will not be played, because "
            "each iter() begins a new epoch. To look at a batch, write `with dataset.set_aside(): "
            "batch = next(iter(dataset))`: epoch %d is still to come then. If the epoch should "
            "end there, ignore this warning.",
            self._name,
            left.before.epoch,
            left.before.epoch,
        )

    def end(self, record: EpochRecord) -> None:
        """Tell of an epoch without a step, or without one left; note that an order was played."""
        if self._order is not None and not record.before.epoch:
            self._order.end()
        if not record.steps:
            self._warn_of_nothing(record.before.epoch)
        elif record.steps == record.before.steps:
            self._warn_of_no_rest(record.before.epoch)

    def _warn_of_nothing(self, epoch: int) -> None:
        if not self._tells_empty:
            return
        self._tells_empty = False
        _log.warning(
            "%s: expected at least one step in epoch %d, got none, and nothing was trained on: "
            "the source is empty, a filter kept nothing of it, or drop_last=True left out all "
            "of it, because it has fewer examples than a global batch. Check the source and "
            "the filter, or choose a smaller batch.",
            self._name,
            epoch,
        )

    def _warn_of_no_rest(self, epoch: int) -> None:
        """It may well be empty; but what comes once in each epoch may come twice then."""
        if not self._speaks:
            return
        _log.warning(
            "%s: epoch %d had no step left: it was complete when the state was saved. What the "
            "script does after each epoch, such as a scheduler's step, comes now; for the "
            "second time, if it came before the state was saved. To go on with the next epoch "
            "instead, call set_epoch(%d) before saving at the end of this one.",
            self._name,
            epoch,
            epoch + 1,
        )

    def _warn_of_order(self) -> None:
        if self._order is not None and self._order.takes_warning():
            _log.warning(
                "%s: the same data was distributed before, and is played in the same order, that "
                "of epoch 0 with seed=%d. Call distribute_dataset once, before the loop over "
                "epochs: each iter() of what it returns is an epoch, with an order of its own. If "
                "this is another training, ignore this warning.",
                self._name,
                self._order.seed,
            )

    def _warn_of_few_parts(self) -> None:
        num_parts = self._input.num_parts()
        if num_parts is not None and num_parts < self._num_workers:
            _log.warning(
                "%s: expected a part of a file for each of %d workers, got %d: workers without one "
                "get batches of zero rows in every step. split_files=True does not cut CSV, "
                "compressed or very small files. Use "
                'InputOptions(auto_shard_policy="data"), or write %d or more files.',
                self._name,
                self._num_workers,
                num_parts,
                self._num_workers,
            )
