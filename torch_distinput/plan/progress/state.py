"""A position as a dict of plain values, and back: versioned, with what must not have changed.

The keys are always the same and the values never dicts, so that checkpoint libraries which merge
what they load into what there is find the same structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.progress.position import BatchLayout, Position, Segment, StreamPosition

VERSION = 1
SETTINGS = "seeds and shards of the stream"
"""A fact of a recipe that older states lack."""
Recipe = Mapping[str, Any]
"""What decides which examples come in which order: names and plain values."""


def to_state(position: Position, recipe: Recipe) -> dict[str, Any]:
    """A position of a recipe as a dict for JSON."""
    layout = position.layout
    return {
        "version": VERSION,
        "recipe": [[name, value] for name, value in recipe.items()],
        "epoch": position.epoch,
        "steps": position.steps,
        "examples": position.examples,
        "grid": [
            layout.num_workers,
            layout.replicas_per_worker,
            layout.global_batch_size,
            layout.rebatch,
        ],
        "rounds": position.steps_done,
        "rows": list(position.rows),
        "reaches": list(position.files_touched),
        "streams": [
            [stream.batch, stream.row, *map(_listed, stream.segments)]
            for stream in position.streams
        ],
        "deals": [list(files_touched) for files_touched in position.reassignments],
    }


def from_state(state: Mapping[str, Any]) -> Position:
    """The position in a state.

    Raises:
        ValueError: if it is none, or of another version.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != VERSION:
        shown = f"version {version!r}"
        if version is None:
            shown = type(state).__name__
            if isinstance(state, Mapping):
                shown = f"a dict with the keys {', '.join(map(repr, list(state)[:5]))}"
        msg = (
            f"Expected what DistributedDataset.state_dict() returned (version {VERSION}), got "
            f"{shown}. Pass the dict that was saved, unchanged, to the release that saved it or a "
            "later one."
        )
        raise ValueError(msg)
    try:
        return _position(state)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        msg = (
            "Expected a whole state of a DistributedDataset, got a damaged one "
            f"({type(error).__name__}: {error}). Load another checkpoint."
        )
        raise ValueError(msg) from error


def check_recipe(state: Mapping[str, Any], recipe: Recipe, *, name: str) -> None:
    """Refuse a state that was taken with another recipe; says what differs.

    Raises:
        ConfigurationError: a ValueError.
    """
    saved = dict(state["recipe"])
    here = {fact: value for fact, value in recipe.items() if fact != SETTINGS or fact in saved}
    odd = {fact: value for fact, value in here.items() if saved.get(fact) != value}
    if odd:
        said = "; ".join(
            f"{fact} was {saved.get(fact, 'another')!r}, and here it is {value!r}"
            for fact, value in odd.items()
        )
        msg = (
            f"Expected a state of {name} as it is distributed here, got one in which {said}. A "
            "position counts in the order that the recipe makes: distribute the same data with "
            "the same settings, or start a new epoch without the state."
        )
        raise ConfigurationError(msg)


def _position(state: Mapping[str, Any]) -> Position:
    dict(state["recipe"])
    num_workers, num_replicas, size, rebatch = state["grid"]
    return Position(
        epoch=_count(state["epoch"]),
        steps=_count(state["steps"]),
        examples=_count(state["examples"]),
        layout=BatchLayout(
            num_workers=_count(num_workers),
            replicas_per_worker=_count(num_replicas),
            global_batch_size=None if size is None else _count(size),
            rebatch=str(rebatch),
        ),
        steps_done=_count(state["rounds"]),
        rows=tuple(map(_count, state["rows"])),
        files_touched=tuple(map(int, state["reaches"])),
        streams=tuple(
            StreamPosition(
                batch=_count(batch), row=int(row), segments=tuple(map(_segment, segments))
            )
            for batch, row, *segments in state["streams"]
        ),
        reassignments=tuple(tuple(map(int, files_touched)) for files_touched in state["deals"]),
    )


def _count(value: Any) -> int:
    number = int(value)
    if number != value or number < 0:
        msg = f"{value!r} is no count"
        raise ValueError(msg)
    return number


def _listed(segment: Segment) -> list[Any]:
    numbers = [segment.assignment, segment.worker, segment.num_files, segment.skip]
    return [*numbers, *map(_with_lists, segment.start)]


def _with_lists(value: Any) -> Any:
    """A start of several streams holds a start for each."""
    return list(map(_with_lists, value)) if isinstance(value, tuple) else value


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _segment(listed: Sequence[Any]) -> Segment:
    assignment, worker, num_files, skip, *start = listed
    return Segment(
        assignment=_count(assignment),
        worker=_count(worker),
        num_files=int(num_files),
        skip=_count(skip),
        start=tuple(map(_with_tuples, start)),
    )
