"""From where a stream can be read again: nested, as the operations are that its rows went through.

Of ``files.interleave(2, 2).filter(is_odd).shuffle(4)``, in a state:

    ["shuffle", ["window", 3], ["skip", 1], ["from",       start the filter, pass over 1 row of it,
        ["filter", ["skip", 0], ["from",                   and shuffle window 3
            ["turn", ["next", 4], ["visited", [[2, 5], null]]]]]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

from torch_distinput.errors import ConfigurationError

TURN = "turn"
"""The kind of place at which a turn begins, of files that are read in turn."""
NEXT = "next"
"""What it calls the first file that has not been opened."""
Value = Any
"""An int, a str, None, or a tuple of values."""


@final
class Place(NamedTuple):
    """From where a stream can be read again; one is made for each chunk of each operation.

    Attributes:
        kind: what yields its rows: an operation, or what reads them.
        values: what that has to know to begin here, by name.
        skip: rows to pass over of what it takes its rows from, which is started from ``inner``.
        inner: the places of the streams that it takes its rows from; none where it reads them.
    """

    kind: str
    values: tuple[tuple[str, Value], ...] = ()
    skip: int = 0
    inner: tuple[Start, ...] = ()

    def number(self, name: str) -> int:
        """Return a number that it holds."""
        value = self.value(name)
        if type(value) is not int:
            raise self._make_misfit_error(f"a number of {self.kind!r} named {name!r}")
        return value

    def value(self, name: str) -> Value:
        """Return what it holds by a name."""
        for own, value in self.values:
            if own == name:
                return value
        raise self._make_misfit_error(f"a value of {self.kind!r} named {name!r}")

    def several(self, name: str, count: int) -> tuple[Value, ...]:
        """Return so many values that it holds by one name."""
        values = self.value(name)
        if not isinstance(values, tuple) or len(values) != count:
            raise self._make_misfit_error(f"{count} values of {self.kind!r} named {name!r}")
        return values

    def check(self, kind: str, num_inner: int = 0) -> Place:
        """Return this place, if it is of a kind and of so many streams.

        Raises:
            ConfigurationError: a ValueError; it is of another.
        """
        if self.kind != kind or len(self.inner) != num_inner:
            raise self._make_misfit_error(f"a place of {kind!r} with {num_inner} inside")
        return self

    def _make_misfit_error(self, expected: str) -> ConfigurationError:
        msg = (
            f"Expected {expected}, as the data is distributed here, got {list_place(self)}. "
            "The state is of data that is read in another way, or damaged: distribute the same "
            "data with the same operations, or load another checkpoint."
        )
        return ConfigurationError(msg)


Start = Place | None
"""From where a stream can be read again; None from its beginning."""


def count_needed_files(start: Start) -> int:
    """How many files have to be there for a place: those that were opened before it."""
    if start is None:
        return 0
    own = start.number(NEXT) if start.kind == TURN else 0
    return max([own, *map(count_needed_files, start.inner)])


def list_place(start: Start) -> list[Any] | None:
    """Return a place as lists for JSON."""
    if start is None:
        return None
    listed: list[Any] = [start.kind, *([name, _listed(value)] for name, value in start.values)]
    if start.inner:
        listed += [["skip", start.skip], ["from", *map(list_place, start.inner)]]
    return listed


def read_place(listed: Any) -> Start:
    """Return the place in such lists.

    Raises:
        ValueError: if it is none.
    """
    if listed is None:
        return None
    if not isinstance(listed, list) or not listed or not all(map(_is_pair, listed[1:])):
        msg = f"{listed!r} is no place"
        raise ValueError(msg)
    kind, pairs = str(listed[0]), listed[1:]
    if not pairs or pairs[-1][0] != "from":
        return Place(kind, _values(pairs))
    *pairs, (skipped, skip), (_, *inner) = pairs
    if skipped != "skip" or type(skip) is not int or skip < 0:
        msg = f"{listed!r} does not say how many rows to skip"
        raise ValueError(msg)
    return Place(kind, _values(pairs), skip, tuple(map(read_place, inner)))


def _is_pair(item: Any) -> bool:
    """A name with a value, or with the places inside."""
    return isinstance(item, list) and len(item) > 1 and isinstance(item[0], str)


def _values(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, _valued(value)) for name, value in pairs)


def _listed(value: Value) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value


def _valued(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(map(_valued, value))
    if value is None or isinstance(value, str) or (type(value) is int and value >= 0):
        return value
    msg = f"{value!r} is no value of a place"
    raise ValueError(msg)
