"""A stream of batches that are there already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.sources.beginning import Beginning
from torch_distinput.data.sources.examples import deal_shard
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.user_sources.bookmark import BookmarkedRun, start_run
from torch_distinput.data.user_sources.run import SourceRun
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard


def first_row(start: Start) -> tuple[int, int]:
    """The batch that a place lies before, and its first row."""
    return (start.number("batch"), start.number("row")) if start else (0, 0)


@final
@dataclass(frozen=True, slots=True)
class ReadyStream:
    """A stream whose elements already are batches.

    Attributes:
        source: what to iterate.
        expected: what an element is, and why; for the message where it is not.
        cure: what to do about it.
    """

    source: Any
    expected: str = "a ready global batch, because no global_batch_size was given"
    cure: str = "If the elements are examples, pass global_batch_size, or batch_size to adapt()."

    def chunks(self, shard: Shard, start: Start = None) -> Iterator[Chunk]:
        """Yield the batches, rows numbered; name the batch at which the source raises.

        ``start``: the number of a batch, that of its first row, and the source's own words.
        """
        number, first = first_row(start)
        try:
            run = start_run(deal_shard(self.source, shard), start, epoch=shard.epoch)
            place = Cursor(start=start if number else run.beginning(batch=0, row=0))
            beginning, items = None, _read_at_epoch(run)
            if shard.marked and not run.tells_beginning:
                beginning = Beginning(self.source, start, most=1)
                items = beginning.watch(items)
            for batch in items:
                stop = first + self._count(number, batch)
                if beginning is not None and not number:
                    place = Cursor(start=beginning.place(place.start, batch=0, row=0))
                yield Chunk(data=rows.with_tensors(batch), ids=np.arange(first, stop), place=place)
                number, first = number + 1, stop
                here = run.place(batch=number, row=first)
                # Without one, rows that were passed over say that it cannot be started from here.
                place = Cursor(start=here) if here else Cursor(skip=max(1, first))
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"batch {number}") from error

    def _count(self, number: int, batch: Batch) -> int:
        try:
            return rows.num_rows(batch)
        except (TypeError, ValueError) as error:
            msg = f"Element {number} of the source should be {self.expected}: {error} {self.cure}"
            raise SourceError(msg) from error


def _read_at_epoch(run: SourceRun | BookmarkedRun) -> Iterator[Any]:
    """What a run yields."""
    end = object()
    while True:
        with run.at_epoch:
            item = next(run.items, end)
        if item is end:
            return
        yield item
