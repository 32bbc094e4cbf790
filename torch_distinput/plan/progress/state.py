"""A position as a dict of plain values, and back: versioned, with what must not have changed.

The keys are the same in every version and the values never dicts, not even within lists: checkpoint
libraries which merge what they load into a state of a fresh dataset look for what that one has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.bounds import BatchBudget, Size
from torch_distinput.plan.progress import packing, state_version_1
from torch_distinput.plan.progress.parts import DEALING, keep_parts_whole
from torch_distinput.plan.progress.place import list_place, read_place
from torch_distinput.plan.progress.position import (
    ALL,
    BatchLayout,
    Position,
    Segment,
    StreamPosition,
)

VERSION = 2
PACKED_VERSION = 3
"""The version of a state of many workers: as version 2, but that its lists are packed."""
_MOST_LISTED = 16
"""Workers whose entries are listed one by one, as one reads them."""
_LISTS = ("rows", "reaches", "streams", "deals")
SETTINGS = "seeds and shards of the stream"
"""A fact of a recipe that older states lack, as they do ``DEALING``."""
READERS = "number of processes that read the stream"
"""A fact of a recipe, also unknown to older states: a DataLoader's order depends on it."""
COSTS = "costs of examples"
"""A fact of a recipe whose examples are dealt to replicas by what they cost."""
LENGTHS = "lengths for the budget"
"""A fact of a recipe with a token budget; states of batches of a number of examples lack it.

They go on with a budget all the same, since a place is an example of the order.
"""
SUBSET = "indices of the subset"
"""A fact of a recipe, unknown to older states: which part of a dataset is played."""
WHOLE = "all"
NOT_TOLD = "not told"
"""Of a dataset that may be a part, but has no indices: those of before may have been applied."""
SAMPLED = "order of the sampler"
"""A fact of a recipe whose order a sampler of the user's gives."""
SAMPLER_CURE = (
    "A sampler may draw from the generators of torch, NumPy and Python, which are seeded by seed "
    "and epoch when it is iterated. One with a generator of its own gives another order each time: "
    "let it make that anew, from a seed and the epoch, in a method set_epoch(epoch). One that "
    "takes a rank's part is not needed here: pass one of the whole dataset."
)
_TOKENS = "tokens"
Recipe = Mapping[str, Any]
"""What decides which examples come in which order: names and plain values."""


def to_state(position: Position, recipe: Recipe) -> dict[str, Any]:
    """A position of a recipe as a dict for JSON."""
    layout = position.layout
    state = {
        "version": VERSION,
        "recipe": [[name, value] for name, value in recipe.items()],
        "epoch": position.epoch,
        "steps": position.steps,
        "examples": position.examples,
        "grid": [
            layout.num_workers,
            layout.replicas_per_worker,
            _listed_size(layout.global_batch_size),
            layout.rebatch,
        ],
        "rounds": position.steps_done,
        "rows": list(position.rows),
        "reaches": list(map(_listed_count, position.files_touched)),
        "streams": [
            [stream.batch, stream.row, *map(_listed, stream.segments)]
            for stream in position.streams
        ],
        "deals": [list(map(_listed_count, touched)) for touched in position.reassignments],
    }
    return compact_state(state)


def compact_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of this version as it is saved; of many workers packed."""
    most = max(map(len, (state["rows"], state["streams"], *state["deals"])))
    if most <= _MOST_LISTED:
        return dict(state)
    packed = {name: packing.pack_items(state[name]) for name in _LISTS}
    return {**state, "version": PACKED_VERSION, **packed}


def to_current(
    state: Mapping[str, Any], recipe: Recipe, read: state_version_1.ReadFlat, *, name: str
) -> dict[str, Any]:
    """Return what was saved, in any version, as a state of this one.

    Args:
        state: what is said to be a state.
        recipe: of what it must be, as far as that is known.
        read: takes apart the places in a state of version 1 with this recipe.
        name: of the data set.

    Raises:
        ValueError: if it is none, of a later version, or damaged.
        ConfigurationError: a ValueError; if it is of another recipe.
    """
    _check_version(state)
    with _refusing_damage():
        dict(state["recipe"])
    check_recipe(state, recipe, name=name, is_whole=False)
    current = dict(state)
    with _refusing_damage():
        if state["version"] == state_version_1.VERSION_1:
            current = state_version_1.upgrade(state, read)
        elif state["version"] == PACKED_VERSION:
            unpacked = {name: packing.unpack_items(state[name]) for name in _LISTS}
            current = {**state, "version": VERSION, **unpacked}
        if DEALING in recipe and DEALING not in dict(state["recipe"]):
            current = keep_parts_whole(current)
    return current


def _check_version(state: Mapping[str, Any]) -> None:
    version = state.get("version") if isinstance(state, Mapping) else None
    if version not in (state_version_1.VERSION_1, VERSION, PACKED_VERSION):
        shown = f"version {version!r}"
        if version is None:
            shown = type(state).__name__
            if isinstance(state, Mapping):
                shown = f"a dict with the keys {', '.join(map(repr, list(state)[:5]))}"
        msg = (
            "Expected what DistributedDataset.state_dict() returned (version "
            f"{state_version_1.VERSION_1}, {VERSION} or {PACKED_VERSION}), got {shown}. Pass the "
            "dict that was saved, unchanged, to the release that saved it or a later one."
        )
        raise ValueError(msg)


def from_state(state: Mapping[str, Any]) -> Position:
    """The position in a state of this version.

    Raises:
        ValueError: if it is damaged.
    """
    with _refusing_damage():
        position = _position(state)
        _check_whole(position)
    return position


@contextmanager
def _refusing_damage() -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except (KeyError, IndexError, TypeError, ValueError) as error:
        msg = (
            "Expected a whole state of a DistributedDataset, got a damaged one "
            f"({type(error).__name__}: {error}). Load another checkpoint."
        )
        raise ValueError(msg) from error


def check_recipe(
    state: Mapping[str, Any],
    recipe: Recipe,
    *,
    name: str,
    is_whole: bool = True,
    dealt_alike: bool = False,
) -> None:
    """Refuse a state that was taken with another recipe; says what differs.

    ``is_whole``: all of the recipe is known; what comes of the data itself is found out late.
    ``dealt_alike``: it matters which replica had which rows. Else only costs that have changed are
    refused: an epoch may well go on with them, or without, if it was begun otherwise. A state from
    before the first step need not hold them: they may not have been measured by then.

    Raises:
        ConfigurationError: a ValueError.
    """
    saved = dict(state["recipe"])
    here = {
        fact: value
        for fact, value in recipe.items()
        if fact not in (SETTINGS, READERS, DEALING, LENGTHS, SUBSET) or fact in saved
    }
    if SUBSET in here and _are_one_part(saved[SUBSET], here[SUBSET]):
        here.pop(SUBSET)
    if state.get("steps") == 0:  # no place in an order yet
        for fact in (READERS, SUBSET):
            here.pop(fact, None)
    if DEALING in saved and DEALING not in here:
        here[DEALING] = "in parts"
    if is_whole and SAMPLED in saved:
        here.setdefault(SAMPLED, None)
    if dealt_alike and COSTS in saved:
        here.setdefault(COSTS, None)
    elif COSTS not in saved and not (dealt_alike and state["steps"]):
        here.pop(COSTS, None)
    odd = {fact: value for fact, value in here.items() if saved.get(fact) != value}
    if odd:
        said = "; ".join(
            f"{fact} was {saved.get(fact, 'another')!r}, and here "
            f"{'there is none' if value is None else f'it is {value!r}'}"
            for fact, value in odd.items()
        )
        why = f" {SAMPLER_CURE}" if odd.get(SAMPLED) is not None else ""
        msg = (
            f"Expected a state of {name} as it is distributed here, got one in which {said}. A "
            "position counts in the order that the recipe makes: distribute the same data with "
            f"the same settings, or start a new epoch without the state.{why}"
        )
        raise ConfigurationError(msg)


def _are_one_part(saved: object, here: object) -> bool:
    """Whether two descriptions of a part agree, at the places that both tell."""
    if NOT_TOLD in (saved, here):
        return True
    one, other = (
        {} if value == WHOLE else value if isinstance(value, dict) else {"": value}
        for value in (saved, here)
    )
    places = one.keys() | other.keys()
    pairs = [(one.get(place, WHOLE), other.get(place, WHOLE)) for place in places]
    return all(mine == theirs or NOT_TOLD in (mine, theirs) for mine, theirs in pairs)


def _position(state: Mapping[str, Any]) -> Position:
    num_workers, num_replicas, size, rebatch = state["grid"]
    return Position(
        epoch=_count(state["epoch"]),
        steps=_count(state["steps"]),
        examples=_count(state["examples"]),
        layout=BatchLayout(
            num_workers=_count(num_workers),
            replicas_per_worker=_count(num_replicas),
            global_batch_size=_sized(size),
            rebatch=str(rebatch),
        ),
        steps_done=_count(state["rounds"]),
        rows=tuple(map(_count, state["rows"])),
        files_touched=tuple(map(_counted, state["reaches"])),
        streams=tuple(
            StreamPosition(
                batch=_count(batch), row=int(row), segments=tuple(map(_segment, segments))
            )
            for batch, row, *segments in state["streams"]
        ),
        reassignments=tuple(tuple(map(_counted, touched)) for touched in state["deals"]),
    )


def _check_whole(position: Position) -> None:
    """Refuse lists of which a part is missing: they hold one item for each stream or worker."""
    num_streams, num_workers = len(position.streams), position.layout.num_workers
    if (
        num_streams not in (0, 1, num_workers)
        or len(position.rows) != num_streams
        or len(position.files_touched) not in (0, num_streams)
        or not all(position.reassignments)
        or not all(stream.segments for stream in position.streams)
    ):
        msg = "lists that do not fit each other"
        raise ValueError(msg)


def _listed_size(size: Size | None) -> Any:
    """A budget as what it counts, its number of that, and what a longer example counts for."""
    return [_TOKENS, size.num_tokens, size.max_length] if isinstance(size, BatchBudget) else size


def _sized(listed: Any) -> Size | None:
    if not isinstance(listed, list):
        return None if listed is None else _count(listed)
    unit, num_tokens, max_length = listed
    if unit != _TOKENS:
        msg = f"{listed!r} is no budget"
        raise ValueError(msg)
    longest = None if max_length is None else _count(max_length)
    return BatchBudget(num_tokens=_count(num_tokens), max_length=longest)


def _count(value: Any) -> int:
    number = int(value)
    if number != value or number < 0:
        msg = f"{value!r} is no count"
        raise ValueError(msg)
    return number


def _listed_count(num_files: int) -> int | None:
    return None if num_files == ALL else num_files


def _counted(listed: int | None) -> int:
    return ALL if listed is None else _count(listed)


def _listed(segment: Segment) -> list[Any]:
    num_files = _listed_count(segment.num_files)
    place = list_place(segment.start)
    return [segment.assignment, segment.worker, num_files, segment.skip, place]


def _segment(listed: Sequence[Any]) -> Segment:
    assignment, worker, num_files, skip, place = listed
    return Segment(
        assignment=_count(assignment),
        worker=_count(worker),
        num_files=_counted(num_files),
        skip=_count(skip),
        start=read_place(place),
    )
