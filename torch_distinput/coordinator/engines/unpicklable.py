"""Finds what in a value cannot be pickled, and says where it is.

    train_step, args=(iterator, state)
                                └ attribute 'hooks' ┬ item 0: can be pickled
                                                    └ item 1: a lambda
                                                              └ variable 'f': an open file

From the whole to its parts: the first that cannot be pickled either, until no part is to blame.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_DEEPEST = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What cannot be pickled, and where it is in the value.

    Attributes:
        place: as in "attribute 'lock' of argument 'state' (args[1])".
        value: the innermost part.
        error: what pickle says of it.
    """

    place: str
    value: Any
    error: Exception


LabelledParts = Iterator[tuple[str, Any]]
"""Words for the place of each part, and the part."""


def find_unpicklable(
    place: str, value: Any, module: Any, *, above: tuple[int, ...] = ()
) -> Found | None:
    """Return the innermost part that a module cannot pickle; None if the value can be pickled.

    ``pickle`` itself asks only where a function was defined; others look into it. ``above`` has the
    ids of the values that this one is a part of.
    """
    if id(value) in above or len(above) > _DEEPEST:
        return None
    try:
        module.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises
        by_reference = module is pickle and isinstance(value, (types.FunctionType, type))
        parts = () if by_reference else _parts(place, value)
        found = (find_unpicklable(*part, module, above=(*above, id(value))) for part in parts)
        return next(filter(None, found), Found(place=place, value=value, error=error))
    return None


def arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LabelledParts:
    """A function and its arguments, by their names in it."""
    yield f"function {name_of(function)}", function
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin
        names = []
    for index, value in enumerate(args):
        named = index < len(names)
        yield f"argument '{names[index]}' (args[{index}])" if named else f"args[{index}]", value
    for name, value in kwargs.items():
        yield f"argument '{name}'", value


def _parts(place: str, value: Any) -> LabelledParts:
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield f"the object whose method is {place}", value.__self__
    elif isinstance(value, functools.partial):
        yield from arguments(value.func, value.args, value.keywords)
    elif isinstance(value, dict):
        yield from ((f"item {key!r} of {place}", item) for key, item in value.items())
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"item {index} of {place}", item) for index, item in enumerate(value))
    elif isinstance(value, type):
        yield from ((f"attribute '{key}' of {place}", item) for key, item in vars(value).items())
    else:
        yield from _of_object(place, value)


def _of_object(place: str, value: Any) -> LabelledParts:
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - it refuses to be pickled as a whole
        return
    state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    for attributes in state if isinstance(state, tuple) else (state,):  # those in slots come second
        for name, item in (attributes if isinstance(attributes, dict) else {}).items():
            yield f"attribute '{name}' of {place}", item
    if type(value).__module__ == "__main__" or "<locals>" in type(value).__qualname__:
        yield f"class {name_of(type(value))}", type(value)


def _of_function(function: types.FunctionType) -> LabelledParts:
    name = name_of(function)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for variable, cell in cells:
        with suppress(ValueError):  # it has no value yet
            yield f"variable '{variable}' of {name}", cell.cell_contents
    for code in _codes(function.__code__):
        for used in code.co_names:
            if used in function.__globals__:
                yield f"global variable '{used}' of {name}", function.__globals__[used]
    for key, parameter in inspect.signature(function).parameters.items():
        yield f"default of parameter '{key}' of {name}", parameter.default


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those inside of it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def name_of(function: Any) -> str:
    """What to call a function in a message."""
    name: str = getattr(function, "__qualname__", None) or type(function).__name__
    return name.replace("<locals>.", "")
