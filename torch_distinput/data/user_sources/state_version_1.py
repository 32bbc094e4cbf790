"""Places in sources of the user's, as states of version 1 hold them; they load for good.

example, words                       of a stream of examples; early releases wrote it like this
example, words, beginning            with the words for the beginning of the epoch
batch, row, words[, beginning]       of ready batches
0, words                             of the beginning itself; 0, 0, words of ready batches
(batch, row, words, ...), (), ...    of several streams of ready batches, played side by side
"""

from __future__ import annotations

from torch_distinput.data.user_sources.states import STREAMS, make_place
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.state_version_1 import Flat

EXAMPLES = ("example",)
BATCHES = ("batch", "row")


def read_flat(names: tuple[str, ...], flat: Flat) -> Place:
    """Return a place in a source whose numbers have these names.

    Raises:
        ConfigurationError: a ValueError; it is of another kind of source.
    """
    numbers, words = flat[: len(names)], flat[len(names) :]
    are_numbers = all(type(number) is int and number >= 0 for number in numbers)
    are_words = 0 < len(words) < 3 and all(isinstance(word, str) for word in words)
    if not (are_numbers and are_words):
        msg = (
            f"Expected the place of a source in ({', '.join(names)}, its own words), as the source "
            f"is distributed here, got {list(flat)}. Distribute the same source in the same way, "
            "or load another checkpoint."
        )
        raise ConfigurationError(msg)
    return make_place(dict(zip(names, numbers, strict=True)), *words)


def read_streams(flat: Flat) -> Place:
    """Return a place in several streams of ready batches.

    Raises:
        ConfigurationError: a ValueError; it is of another kind of source.
    """
    if not all(isinstance(own, tuple) for own in flat):
        msg = (
            f"Expected a place in each of the streams of a dataset_fn, got {list(flat)}. "
            "Distribute the same dataset_fn, or load another checkpoint."
        )
        raise ConfigurationError(msg)
    inner = (read_flat(BATCHES, own) if own else None for own in flat)
    return Place(STREAMS, inner=tuple(inner))
