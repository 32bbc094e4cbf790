"""The inside of an actor of ``RayEngine``: holds an object, and answers calls to it.

    thread       writes                     reads     guarded by
    one of Ray's ``_made``, before it says  any       the event ``_is_made``
                 that there is one

Ray starts a dead actor again by itself: in vain and for ever, if making the object is what kills
it. So an actor begins without one, and is told to make it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from torch_distinput import threads
from torch_distinput.coordinator.engines import outcome
from torch_distinput.coordinator.engines.outcome import Made
from torch_distinput.coordinator.engines.process_state import begin_process
from torch_distinput.coordinator.engines.wire import Frame


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

    def answer(self, identity: bytes | None, *parts: Any) -> list[Any]:
        """Run a call: the parts of the reply, none to a call for the object of another process."""
        if identity not in {None, self._identity}:
            return []
        self._is_made.wait()
        return to_parts(outcome.answer(self._made, to_frame_of(parts)))


def to_parts(frame: Frame) -> list[Any]:
    """What Ray carries of a frame: bytes, and arrays, which it copies once."""
    return [bytes(frame.text), *(np.frombuffer(array, dtype=np.uint8) for array in frame.arrays)]


def to_frame_of(parts: Sequence[Any]) -> Frame:
    """The frame again, in memory of its own: what processes share must not be written to."""
    text, *arrays = parts
    own = [array if array.flags.writeable else array.copy() for array in arrays]
    return Frame(text=text, arrays=own)
