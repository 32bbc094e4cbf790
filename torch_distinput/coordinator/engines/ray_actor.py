"""The inside of an actor of ``RayEngine``: holds an object, and answers calls to it.

    thread       writes                     reads     guarded by
    one of Ray's ``_made``, before it says  any       the event ``_is_made``
                 that there is one

Ray starts a dead actor again by itself: in vain and for ever, if making the object is what kills
it. So an actor begins without one, and is told to make it.

A reply without arrays is bytes, which Ray carries as they are. One with arrays is a list: the text,
and the arrays, which Ray copies once, into its shared memory:

    the object's arrays are      copied                                  the list has
    its own, or new              when ``answer`` has returned            the arrays
    lent, and large              before they are given back              a reference to them

Whoever gets an array reads it there: it is read-only, and keeps that memory as long as it lives.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from torch_distinput import threads
from torch_distinput.coordinator.engines import outcome
from torch_distinput.coordinator.engines.outcome import Made
from torch_distinput.coordinator.engines.process_state import begin_process
from torch_distinput.coordinator.engines.wire import Frame

_LARGE_BYTES = 1 << 20
"""To follow a reference takes about as long as to copy so much once more."""


@final
class HostedObject:
    """An object in an actor, which a call may name by the identity of its process.

    Ray would pass a call that comes too late to another object, which lacks what calls have done to
    the one before.
    """

    def __init__(self) -> None:
        begin_process()
        self._identity = os.urandom(8)
        self._made = Made()
        self._is_made = threads.new_event()

    def identify(self) -> bytes:
        """Tell one process of this actor from another."""
        return self._identity

    def make(self, pickled: bytes) -> bytes:
        """Make the object: the identity of its process."""
        self._made = outcome.make_object(pickled)
        self._is_made.set()
        return self._identity

    def answer(self, identity: bytes | None, text: bytes, *arrays: Any) -> bytes | list[Any]:
        """Run a call: the reply, an empty one to a call for the object of another process."""
        if identity not in {None, self._identity}:
            return b""
        self._is_made.wait()
        reply = outcome.answer(self._made, Frame(text=text, arrays=arrays), _copy)
        text, *arrays_of_reply = to_parts(reply)
        return [text, *arrays_of_reply] if arrays_of_reply else text


def to_parts(frame: Frame) -> list[Any]:
    """What Ray carries of a frame."""
    return [bytes(frame.text), *map(_to_array, frame.arrays)]


def _to_array(content: Any) -> Any:
    is_there = not isinstance(content, memoryview)
    return content if is_there else np.frombuffer(content, dtype=np.uint8)


def _copy(arrays: Sequence[Any]) -> Sequence[Any]:
    """Copy what is lent: in Ray's memory, if it is much."""
    if sum(map(len, arrays)) < _LARGE_BYTES:
        return [_to_array(array).copy() for array in arrays]
    return [importlib.import_module("ray").put([_to_array(array) for array in arrays])]
