"""Lists with an entry for each worker, written so that what is alike takes room once.

Sixteen thousand workers at the beginning of an epoch are told in a line. Where they differ, each
difference is a number, and names and brackets are written once for all:

    [7, 7, 7, 7, 9]                            ["values", [4, 7, 0], 9]
    [0, 1, 2, 3, 4, 5]                         ["values", [6, 0, 1]]        count, first, difference
    [[0, "a"], [5, "a"], [3, "a"], [8, "a"]]   ["rows", 4, ["values", 0, 5, 3, 8],
                                                           ["values", [4, "a", 0]]]
    [None, [0, 3], None]                       ["kinds", ["values", 0, 1, 0],
                                                  ["values", None, None], ["lists", ...]]
    [[1, 1, 1, 1, 1]]                          ["lists", ["values", [5, 1, 0]]]

Any nested lists of None, numbers and texts come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_VALUES, _ROWS, _LISTS, _KINDS = "values", "rows", "lists", "kinds"
_SHORTEST_RUN = 4
"""Shorter ones take less room one by one."""
_LONGEST = 1 << 24
"""More entries than workers or their segments can be: a damaged state."""


def pack_items(items: Sequence[Any]) -> list[Any]:
    """Write a list."""
    kinds = [len(item) if isinstance(item, list) else -1 for item in items]
    distinct = list(dict.fromkeys(kinds))
    if len(distinct) > 1:
        numbers = {kind: number for number, kind in enumerate(distinct)}
        alike: list[list[Any]] = [[] for _ in distinct]
        for item, kind in zip(items, kinds, strict=True):
            alike[numbers[kind]].append(item)
        return [_KINDS, pack_items([numbers[kind] for kind in kinds]), *map(pack_items, alike)]
    if distinct in ([], [-1]):
        return [_VALUES, *_find_runs(items)]
    if distinct[0] > len(items):
        return [_LISTS, *map(pack_items, items)]
    return [_ROWS, len(items), *map(pack_items, zip(*items, strict=True))]


def unpack_items(packed: Sequence[Any]) -> list[Any]:
    """Return the list that was written.

    Raises:
        ValueError: if it is none (or a TypeError, or an IndexError).
    """
    form, *parts = packed
    if form == _VALUES:
        return list(_read_runs(parts))
    if form == _LISTS:
        return list(map(unpack_items, parts))
    if form == _ROWS:
        count, *columns = parts
        _check_count(count)
        listed = [unpack_items(column) for column in columns]
        if any(len(column) != count for column in listed):
            msg = f"{count} rows have columns of {[len(column) for column in listed]}"
            raise ValueError(msg)
        return [[column[row] for column in listed] for row in range(count)]
    if form == _KINDS:
        numbers, *groups = map(unpack_items, parts)
        rest = [iter(group) for group in groups]
        items = [next(rest[number], rest) for number in numbers]
        if any(item is rest for item in items) or sum(map(len, groups)) != len(items):
            msg = f"{len(items)} entries are of groups of {[len(group) for group in groups]}"
            raise ValueError(msg)
        return items
    msg = f"{form!r} is no form of a packed list"
    raise ValueError(msg)


def _find_runs(values: Sequence[Any]) -> Iterator[Any]:
    """Values, and runs of them that are equal or grow alike."""
    start = 0
    while start < len(values):
        count, step = _measure_run(values, start)
        if count < _SHORTEST_RUN:
            count = 1
            yield values[start]
        else:
            yield [count, values[start], step]
        start += count


def _measure_run(values: Sequence[Any], start: int) -> tuple[int, int]:
    """How many values from one on belong together, and by how much each is more than the last."""
    first, stop, step = values[start], start + 1, 0
    if stop < len(values) and type(first) is int and type(values[stop]) is int:
        step = values[stop] - first
    while stop < len(values) and type(values[stop]) is type(first):
        if values[stop] != (first + step * (stop - start) if step else first):
            break
        stop += 1
    return stop - start, step


def _read_runs(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        if not isinstance(part, list):
            yield part
            continue
        count, first, step = part
        _check_count(count)
        yield from (first + step * number if step else first for number in range(count))


def _check_count(count: Any) -> None:
    if type(count) is not int or not 0 <= count <= _LONGEST:
        msg = f"{count!r} is no number of workers"
        raise ValueError(msg)
