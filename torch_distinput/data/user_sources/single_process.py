"""Asking a source of the user's for its items as a main process does, also in a loader process.

One process reads all of a stream. Inside of it ``get_worker_info()`` is None: torch's datasets
would take a part for each process, and Hugging Face's draw another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

from torch.utils.data._utils import worker as torchs_worker


def iterate_as_single_process(
    iterator: Iterator[Any], end: Callable[..., None] = lambda **_: None
) -> Iterator[Any]:
    """The items of an iterator, asked for as in a main process; ``__iter__`` is never called.

    ``end(is_empty=)`` is called at its end.
    """
    is_empty = True
    is_single = torchs_worker._worker_info is None  # noqa: SLF001
    if is_single and isinstance(iterator, GeneratorType):
        for item in iterator:  # its __iter__ is known to do nothing, and this is the fastest way
            is_empty = False
            yield item
        end(is_empty=is_empty)
        return
    while True:
        try:
            if is_single:
                item = next(iterator)
            else:
                with as_single_process():
                    item = next(iterator)
        except StopIteration:
            break
        is_empty = False
        yield item
    end(is_empty=is_empty)


@contextmanager
def as_single_process() -> Iterator[None]:
    """Hide for a moment that this is a loader process.

    What torch knows of it belongs to the process: one thread of it at a time may be in here. In a
    loader process one thread reads streams; in a main process there is nothing to hide.
    """
    info, torchs_worker._worker_info = torchs_worker._worker_info, None  # noqa: SLF001
    try:
        yield
    finally:
        torchs_worker._worker_info = info  # noqa: SLF001
