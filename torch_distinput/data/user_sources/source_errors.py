"""What a source of the user's raised, and what is wrong with one that is started."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch_distinput.errors import SourceError, refer

_log = logging.getLogger(__name__)
_MOST_NAMED = 16
"""Examples of a batch that an error names."""


def source_error(error: Exception, where: str) -> SourceError:
    """Name the place at which a source raised; an error that names its place is left alone."""
    if isinstance(error, SourceError):
        return error
    said = str(error)
    is_an_end = isinstance(error, StopIteration)
    if is_an_end:
        said = (
            "it would pass for the end of the data, and the rest would be lost. Give next() a "
            "default, or catch StopIteration where it is called."
        )
    found = SourceError(f"The source raised {type(error).__name__} at {where}: {said}")
    return refer(found, "docs/errors.md#your-function-raises-stopiteration") if is_an_end else found


def make_batch_error(error: Exception, indices: Sequence[int]) -> SourceError:
    """Name the examples, in the order of their batch: what collates them knows only that."""
    named = ", ".join(map(str, indices[:_MOST_NAMED]))
    rest = f" and {len(indices) - _MOST_NAMED} more" if len(indices) > _MOST_NAMED else ""
    return source_error(error, f"the batch of examples {named}{rest}")


@contextmanager
def errors_of_member(name: str) -> Iterator[None]:
    """Name the source of a mixture whose examples an error counts."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"Source {name!r} of a mixture: {error}") from error.__cause__ or error


def make_exhausted_error(source: Any) -> SourceError:
    """Its iterator is used up, and comes again."""
    msg = (
        f"Expected __iter__ of {type(source).__name__} to start a new epoch, got the iterator of "
        "the epoch before, which is used up: no epoch after the first one would have an "
        "example. Let __iter__ make a new iterator, or start again where it returns itself."
    )
    return SourceError(msg)


def make_started_again_error(source: Any) -> SourceError:
    """Two loops over a source that keeps its place itself."""
    msg = (
        f"Expected {type(source).__name__} to be read by one loop at a time, because it keeps "
        "where it is itself (state_dict), got a second one, of another dataset or of replay(), "
        "before the first had ended. Distribute a copy of it for each (copy.deepcopy)."
    )
    return SourceError(msg)


def make_no_state_error(source: Any) -> SourceError:
    """The state is of a source that has one."""
    msg = (
        f"Expected a source that goes on from a state of its own, as the one did that the state "
        f"is from, got {type(source).__name__}, which has no load_state_dict. Distribute the "
        "source that was saved, or start a new epoch without the state."
    )
    return SourceError(msg)


def warn_of_state(source: Any, error: Exception) -> None:
    """Its state cannot be kept in a checkpoint; said once, not in each epoch."""
    _warn_of_state(type(source).__name__, str(error))


@lru_cache
def _warn_of_state(name: str, held: str) -> None:
    _log.warning(
        "The state_dict() of %s holds %s, which is not read from a file, as it might run code. So "
        "after a restart its examples are read again from the last state without that, or from "
        "the beginning of the epoch, and passed over. Return plain values, tensors, and NumPy's "
        "arrays and numbers, in dicts and lists. (Logged once.)",
        name,
        held,
    )


def warn_of_beginning(source: Any) -> None:
    """It was resumed, and its first epoch is asked for: nobody knows where that began."""
    _log.warning(
        "%s was resumed, and is asked for its first epoch, whose beginning the state does not "
        "hold. It starts as it does by itself: if it counts epochs, it plays the order of another "
        "one. Distribute a new one for the first epoch.",
        type(source).__name__,
    )
