"""What became of a call in another process: a value, or an error with the traceback it had there.

An error travels as a pickle inside the frame, and with it as text: some cannot be pickled, and
some only fail when they are unpickled. Then a RuntimeError has the text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from torch_distinput.coordinator.engines import pickling, wire
from torch_distinput.coordinator.engines.engine import Lent
from torch_distinput.coordinator.engines.wire import Frame
from torch_distinput.errors import parts_of_error, rebuild


@final
class RemoteTraceback(Exception):  # noqa: N818 - no error: the cause of one, as text
    """The traceback of an error in the process where it was raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error on its way to another process.

    Attributes:
        pickled: the error; empty where that cannot be done and undone.
        summary: its class and text.
        remote_traceback: as Python prints it.
    """

    pickled: bytes
    summary: str
    remote_traceback: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What ``make()`` of a process returned, or how it failed."""

    value: Any = None
    failure: Failure | None = None


def make_object(pickled: bytes) -> Made:
    """Make the object of this process."""
    try:
        return Made(value=pickle.loads(pickled)())  # noqa: S301 - from our own coordinator
    except BaseException as error:  # noqa: BLE001 - each call is to raise it
        return Made(failure=_describe(error))


def answer(
    made: Made, call: Frame, copy: Callable[[Sequence[Any]], Sequence[Any]]
) -> Frame:
    """Run one call in the process of the object: the frame that says what became of it.

    A call without a method asks only whether the object is there.

    Args:
        made: the object.
        call: what to do.
        copy: takes the arrays of a result that is lent, and returns what the frame then has.
    """
    if made.failure is not None:
        return wire.to_frame(made.failure)
    try:
        method, args = wire.to_value(call)
        result = getattr(made.value, method)(*args) if method else None
        if not isinstance(result, Lent):
            return wire.to_frame((result,))
        with result.opened as value:
            frame = wire.to_frame((value,))
            return Frame(text=frame.text, arrays=copy(frame.arrays))
    except BaseException as error:  # noqa: BLE001 - sys.exit() of a user's function, too
        return wire.to_frame(_describe(error))


def result_of(reply: Frame) -> Any:
    """Return the value of a call, or raise its error."""
    outcome = wire.to_value(reply)
    if not isinstance(outcome, Failure):
        return outcome[0]
    raise _error_of(outcome) from RemoteTraceback(outcome.remote_traceback)


def _describe(error: BaseException) -> Failure:
    return Failure(
        pickled=_pickled(error),
        summary="".join(traceback.format_exception_only(error)).strip(),
        remote_traceback="".join(traceback.format_exception(error)),
    )


def _pickled(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        return b""  # an exit of the worker is none of the caller's
    try:
        pickled, words = _dump_loadable(error)
        if words == str(error):
            return pickled
    except Exception:  # noqa: BLE001 - its __init__ takes something else than its args
        pickled = b""
    with suppress(Exception):  # whatever a class of the user's raises
        rebuilt, words = _dump_loadable(_Rebuilt(error))
        if not pickled or words == str(error):
            return rebuilt
    return pickled  # of a text with addresses in it, say, which differ there


def _dump_loadable(error: Exception | _Rebuilt) -> tuple[bytes, str]:
    """Pickle an error; return that and the words it is loaded with. Raises what either does."""
    try:
        pickled = pickle.dumps(error)
    except Exception:  # noqa: BLE001 - a class that was handed over by value
        pickled = pickling.dump_by_value(error)
    return pickled, str(pickle.loads(pickled))  # noqa: S301 - our own


@final
class _Rebuilt:
    """Stands for an error in a pickle: what is loaded is the error, made without its __init__."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, parts_of_error(self._error)


def _error_of(failure: Failure) -> Exception:
    if failure.pickled:
        try:
            error = pickle.loads(failure.pickled)  # noqa: S301 - from our own process
        except Exception:  # noqa: BLE001 - its class may be there, and not here
            error = None
        if isinstance(error, Exception):
            return error
    return RuntimeError(failure.summary)
