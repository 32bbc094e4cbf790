"""Places in files, as states of version 1 hold them; they load for good.

Each operation put numbers behind those of the one before it. At the bottom, the file or part that
is read; with ``interleave`` the next one, and for each place of the cycle one and a row of it:

    partition                                             without interleave
    next, partition, row, partition, row, ...             with it; -1, 0 where a place is free
    ..., skip                                             filter; decoding, if the reader decodes
    ..., skip, window | taken | repetition                shuffle, take, repeat
"""

from __future__ import annotations

from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.decode import Decode, decode_index, has_decode
from torch_distinput.data.files.interleave import place_of_turn
from torch_distinput.data.files.operations import Filter, Map, Repeat, Shuffle, Take
from torch_distinput.data.files.partitions import place_of_partition
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.interleaving import NOBODY
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.state_version_1 import Flat

_Layer = tuple[str, tuple[str, ...]]
_LAYERS: dict[type, _Layer] = {
    Filter: (Filter.kind, ("skip",)),
    Decode: (Decode.kind, ("skip",)),
    Shuffle: (Shuffle.kind, ("skip", "window")),
    Take: (Take.kind, ("skip", "taken")),
    Repeat: (Repeat.kind, ("skip", "repetition")),
}


def read_flat_place_of_files(dataset: FileDataset, flat: Flat) -> Place:
    """Return a place in the files of a dataset.

    Raises:
        ConfigurationError: a ValueError; it is not of this dataset.
    """
    layers = _layers(dataset)
    try:
        return _read(flat, layers, dataset.cycle)
    except ValueError as error:  # too few numbers, or too many
        shown = ", ".join(kind for kind, _ in layers) or "no operation"
        turns = "" if dataset.cycle is None else f" and interleave{dataset.cycle}"
        msg = (
            f"Expected the numbers of a place in files with {shown}{turns}, as they are "
            f"distributed here, got {list(flat)}. Distribute the same files with the same "
            "operations, or load another checkpoint."
        )
        raise ConfigurationError(msg) from error


def _layers(dataset: FileDataset) -> list[_Layer]:
    """The operations that put numbers behind others, and their names."""
    kinds: list[type] = [type(operation) for operation in dataset.operations]
    if has_decode(dataset.reader):
        kinds.insert(decode_index(dataset.operations), Decode)
    return [_LAYERS[kind] for kind in kinds if kind is not Map]


def _read(flat: Flat, layers: list[_Layer], cycle: tuple[int, int] | None) -> Place:
    """Take the numbers of the last operation off, and go on with those before it."""
    if not layers:
        return _read_bottom(flat, cycle)
    *before, (kind, names) = layers
    skip, *own = flat[-len(names) :]
    inner = _read(flat[: -len(names)], before, cycle)
    return Place(kind, tuple(zip(names[1:], own, strict=True)), skip, (inner,))


def _read_bottom(flat: Flat, cycle: tuple[int, int] | None) -> Place:
    if cycle is None:
        (partition,) = flat
        return place_of_partition(partition)
    next_partition, *numbers = flat
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    visited = tuple(None if pair[0] == NOBODY else pair for pair in pairs)
    if len(visited) != cycle[0]:
        raise ValueError
    return place_of_turn(next_partition, visited)
