"""Starting a DataLoader of the user's: two traps of torch that lose or repeat examples in silence.

A StopIteration that the dataset or the ``collate_fn`` raises is an error here; torch takes it for
the end of the data. A stream in several loader processes is played once by each of them, if it does
not take its part by itself; whether it does cannot be known, so the log says it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from torch.utils.data import DataLoader, IterableDataset, default_collate

from torch_distinput.data.batch.rows import (
    find_lists,
    num_rows,
    refuse_lists,
    refuse_made_lists,
    refuse_own_lists,
)
from torch_distinput.data.user_sources.parts import deals_shards, may_give_columns, parts_of
from torch_distinput.data.user_sources.states import is_prompt

_log = logging.getLogger(__name__)
_MANY = 8
"""Examples of a batch that hardly has as many columns."""


def start_source(source: Any) -> Iterator[Any]:
    """Start a source; a loader gives the end of its data alone for the end."""
    return _batches_of(source) if isinstance(source, DataLoader) else iter(source)


def starts_anew(source: Any) -> bool:
    """Whether each ``iter()`` of a source begins at its beginning by itself: that of a loader.

    Not where its dataset has a state and stays: it may go on where it was left.
    """
    if not isinstance(source, DataLoader):
        return False
    stays = not source.num_workers or source.persistent_workers
    return is_prompt(source) or not stays


def loads_late(source: Any) -> bool:
    """Whether a source loads a state when it is iterated, not before: a loader does."""
    return isinstance(source, DataLoader)


def count_readers(source: Any) -> list[int]:
    """How many processes read the stream of each DataLoader in it, on which its order depends.

    The loader's own process, or a single one of its own, read alike.
    """
    loaders = (part for part in parts_of(source) if isinstance(part, DataLoader))
    return [
        max(1, loader.num_workers)
        for loader in loaders
        if isinstance(loader.dataset, IterableDataset)
    ]


def _batches_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start a loader now: one that keeps a state may be asked for it before its first batch."""
    if loader.num_workers > 1 and not _takes_parts(loader.dataset):
        _warn_of_copies(type(loader.dataset).__name__, loader.num_workers)
    collate_fn = loader.collate_fn
    if isinstance(collate_fn, _Collate):  # of another thread: simulated workers share the loader
        collate_fn = collate_fn.collate_fn
    batch_size = None if may_give_columns(loader.dataset) else loader.batch_size
    loader.collate_fn = _Collate(collate_fn, batch_size)
    try:
        iterator = iter(loader)  # takes the function over, and hands it to its processes
    finally:
        loader.collate_fn = collate_fn
    return _until_the_end(loader, iterator)


def _takes_parts(dataset: Any) -> bool:
    """Whether a loader process may well play its part of a dataset only, as far as one can see."""
    if not isinstance(dataset, IterableDataset) or deals_shards(dataset):
        return True
    code = getattr(type(dataset).__iter__, "__code__", None)
    return code is None or bool({"get_worker_info", "_per_process"} & set(code.co_names))


@lru_cache
def _warn_of_copies(name: str, num_workers: int) -> None:
    """Say it once."""
    _log.warning(
        "A DataLoader has num_workers=%d over %s, whose __iter__ does not ask get_worker_info(). "
        "If nothing inside of it does, every example comes %d times, once from each process. Then "
        "use num_workers=1, or DataShardDataset, which takes a part in each process.",
        num_workers,
        name,
        num_workers,
    )


def _until_the_end(loader: DataLoader[Any], iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a loader that was started.

    Raises:
        RuntimeError: where it ends because the user's code has raised StopIteration.
    """
    number = 0
    while True:
        try:
            batch = next(iterator)
        except StopIteration as end:
            if _is_of_dataset(loader, end):
                msg = (
                    f"Expected an example of {type(loader.dataset).__name__}, got StopIteration "
                    f"in batch {number}, which torch takes for the end. Raise IndexError, for "
                    "example."
                )
                raise RuntimeError(msg) from end
            return
        yield batch
        number += 1


@final
@dataclass(frozen=True, slots=True)
class _Collate:
    """A ``collate_fn`` whose StopIteration is another error; it is pickled for loader processes.

    ``batch_size``: None where it may get something else than a list of examples.
    """

    collate_fn: Callable[[Any], Any]
    batch_size: int | None

    def __call__(self, examples: Any) -> Any:
        try:
            batch = self.collate_fn(examples)
        except StopIteration as error:
            msg = "Expected collate_fn to return a batch, got StopIteration. Fix the function."
            raise RuntimeError(msg) from error
        if self.batch_size is not None and self.collate_fn is not default_collate:
            self._refuse_lists(batch, examples)
        return batch

    def _refuse_lists(self, batch: Any, examples: Sequence[Any]) -> None:
        """Refuse lists for columns, that a batch of a stream may have merged or split rows of.

        Where nothing is the examples' own, a list as long as a whole batch tells it, whose parts
        look like the examples, or are many: else there may be as many columns.
        """
        if not any(find_lists(batch, len(examples))):  # nearly always
            return
        refuse_own_lists(batch, examples)
        if len(examples) == self.batch_size and not _has_rows(batch, len(examples)):
            refuse_made_lists(batch, examples)
            if len(examples) > _MANY:
                refuse_lists(batch, len(examples))


def _has_rows(batch: Any, num_examples: int) -> bool:
    """Whether the batch has one row for each example."""
    try:
        return num_rows(batch) == num_examples
    except (TypeError, ValueError):
        return False


def _is_of_dataset(loader: DataLoader[Any], end: StopIteration) -> bool:
    """Whether the end was raised where examples are fetched by index, here or in a process."""
    if isinstance(loader.dataset, IterableDataset):  # there it is the way to end
        return False
    if end.args and str(end.args[0]).startswith("Caught StopIteration"):
        return True
    frames = (frame for frame, _ in traceback.walk_tb(end.__traceback__))
    return any(
        frame.f_code.co_name == "fetch"
        and frame.f_globals.get("__name__", "").startswith("torch.utils.data.")
        for frame in frames
    )
