"""An attribute that is worked out when it is asked for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyProperty(Generic[T]):
    """Worked out when it is asked for first, and then found as an attribute, without this.

    ``functools.cached_property`` has a lock before Python 3.12: one for all instances and threads,
    which a loader process would inherit held. Two threads may work one out twice here, and alike.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        """Take the method that works it out."""
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        """Work it out, and leave it where it is found from now on."""
        value: T = self._make(owner)
        vars(owner)[self._make.__name__] = value
        return value
