"""Results of loader processes, carried in shared memory that is used again.

A loader process writes tensors and arrays into a slot, which it shares with the main process once;
from then on only the slot's number and a short text travel. Torch by itself makes a file of shared
memory for each tensor of each batch, which costs more than most batches.

    thread                          writes             reads          guarded by
    the loader process              content; SENT      first byte     first byte: FREE or LEFT
    main: who takes results         OPENED             the content    first byte: SENT
    main: who drops the last view   FREE or LEFT                      first byte: OPENED

The first byte of a slot says whose it is. The process takes a FREE one and makes it SENT; the main
process makes it OPENED when it takes the result out, and FREE when nothing of the result is
referred to any more: no tensor, view or array that shares its memory. So a user who keeps a batch
never sees it change. While all slots are taken, results travel torch's way, and by value where
there is no shared memory left. A process that was forked meanwhile may keep the result too: its
slot is made LEFT, and never written to again.
"""

from __future__ import annotations

import io
import logging
import pickle
import re
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.serialized import view_bytes
from torch_distinput.data.loader.layout import (
    ALIGN,
    Layout,
    align,
    copy_leaves,
    is_plain_tensor,
    look,
    plain_leaves,
)
from torch_distinput.threads import num_forks

FREE, SENT, OPENED, LEFT = range(4)
_UNUSED = (FREE, LEFT)

_MOST_SLOTS, _MOST_LARGE, _LARGE_BYTES = 24, 8, 2 << 20
"""For each loader process; it fills no more than are on their way or in use. If all together have
more than these bytes, there are fewer."""
_MOST_LAYOUTS = 64
"""More come of sizes that always change: those results are pickled."""
_NO_MEMORY = "shared memory"
"""What is in the words of torch where there is none left."""
_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux has it
_FILE_NAME = re.compile(r"</(torch_\w+)>")
_FULL = (
    "What loader processes get and return is copied through a pipe, which is slower: there is no "
    "shared memory left. Give this machine or container more of it (/dev/shm; docker run "
    "--shm-size=8g)."
)

_log = logging.getLogger(__name__)


Parcel = tuple["int | None", "bytes | int", Any, "torch.Tensor | None"]
"""A result under way; a plain tuple, which travels fastest.

    number of the slot; None where the result travels torch's way
    the result, pickled but for what is in the slot; or the number of its layout
    start and stop in the slot of each buffer that is missing; or the layout, the first time
    the slot itself, the first time; it replaces another of that number, which was too small
"""


_NO_PLACES: tuple[Layout | None, list[Any]] = (None, [])


@final
class Sender:
    """The end in a loader process."""

    def __init__(self, process: int) -> None:
        """Share nothing yet; each process has numbers of its own."""
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self._layouts: dict[Any, tuple[int, Layout]] = {}
        self._places: dict[int, tuple[Layout, list[Any]]] = {}  # of a slot, as it was filled last
        self._numbers = range(process * _MOST_SLOTS, (process + 1) * _MOST_SLOTS)

    def forget_unopened(self) -> None:
        """Nobody will open what was sent before: the main process has begun anew.

        Nor does it know those slots, if they were sent for the first time.
        """
        self._slots = {number: slot for number, slot in self._slots.items() if slot[0] != SENT}
        self._layouts.clear()
        self._places.clear()

    def pack(self, result: Any) -> Parcel:
        """Write a result into a slot."""
        try:
            return self._shared(result)
        except RuntimeError as error:  # torch reserves memory before it is written to
            if not _tell_full(error):
                raise
        return None, _dump_by_value(result), [], None

    def _shared(self, result: Any) -> Parcel:
        free = self._free()
        if free and (leaves := plain_leaves(result)) is not None:
            key = look(result, leaves)
            known = self._layouts.get(key)
            if known is not None or len(self._layouts) < _MOST_LAYOUTS:
                return self._laid_out(result, leaves, key, free)
        if not free:  # pickled once, for it may open files of shared memory, and here, if it can be
            return None, bytes(ForkingPickler.dumps(result)), [], None
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, 5, False, buffers.append).dump(result)  # ForkingPickler takes no names
        views = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
        places, end = [], ALIGN
        for view in views:
            places.append((end, end + view.nbytes))
            end = align(places[-1][1])
        number, memory = self._with_room(free, end)
        slot = self._slots[number]
        for view, (start, stop) in zip(views, places, strict=True):
            slot[start:stop] = view
        slot[0] = SENT
        return number, file.getvalue(), places, memory

    def _laid_out(
        self, result: Any, leaves: Sequence[Any], key: Any, free: Sequence[int]
    ) -> Parcel:
        """Write a plain result; its layout travels with the first one that has it."""
        shown, known = None, self._layouts.get(key)
        if known is None:
            shown = Layout.of(result, leaves)
            known = len(self._layouts), shown
        index, layout = known
        number, memory = self._with_room(free, layout.num_bytes)
        if shown is not None:  # not before there is memory: else nobody is ever told of the layout
            self._layouts[key] = known
        slot = self._slots[number]
        of, places = self._places.get(number, _NO_PLACES)
        if of is not layout:
            places = layout.view(slot)
            self._places[number] = (layout, places)
        copy_leaves(leaves, places)
        slot[0] = SENT
        return number, index, shown, memory

    def _free(self) -> Sequence[int]:
        """Numbers of the slots that may be written to or made."""
        slots = self._slots
        if len(slots) == _MOST_SLOTS or (len(slots) >= _MOST_LARGE and self._is_large()):
            return [number for number, slot in slots.items() if slot.item(0) in _UNUSED]
        return [n for n in self._numbers if n not in slots or slots[n].item(0) in _UNUSED]

    def _is_large(self) -> bool:
        return sum(slot.nbytes for slot in self._slots.values()) >= _LARGE_BYTES

    def _with_room(self, free: Sequence[int], num_bytes: int) -> tuple[int, torch.Tensor | None]:
        """Number of a slot, and its memory if it is new."""
        slots = self._slots
        for number in free:
            slot = slots.get(number)
            if slot is not None and slot.item(0) == FREE and slot.nbytes >= num_bytes:
                return number, None
        memory: Any = torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")
        memory.share_memory_()
        self._places.pop(free[0], None)  # they lie in the memory that is replaced
        slots[free[0]] = memory.numpy()  # in the place of one that is too small or left, if any
        return free[0], memory


def dump_shared(value: Any) -> bytes:
    """Pickle in torch's way, with tensors in shared memory; by value where there is none left."""
    try:
        return bytes(ForkingPickler.dumps(value))
    except RuntimeError as error:
        if not _tell_full(error):
            raise
    return _dump_by_value(value)


def _dump_by_value(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, 5).dump(value)
    return file.getvalue()


def _tell_full(error: Exception) -> bool:
    """Whether it is for want of shared memory: then what torch has left of it is removed."""
    if _NO_MEMORY not in str(error):
        return False
    _remove_left_file(str(error))
    _warn_of_full_memory()
    return True


@cache
def _warn_of_full_memory() -> None:
    _log.warning(_FULL)


def _remove_left_file(words: str) -> None:
    """Remove the file for which there was no memory: torch leaves it, one for each result."""
    named = _FILE_NAME.search(words)
    if named is not None:
        with suppress(OSError):
            (_FOLDER / named[1]).unlink()


@final
class Receiver:
    """The end in the main process.

    Attributes:
        inboxes: what has come from each process and was not taken out.
    """

    def __init__(self, num_processes: int = 1) -> None:
        """Know no slot yet."""
        self.inboxes: list[deque[Parcel]] = [deque() for _ in range(num_processes)]
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}

    def begin(self) -> None:
        """Drop what came for a run that was left.

        Not when it is left: its processes, which would have to answer, may be about to end.
        """
        for inbox in self.inboxes:
            while inbox:
                self.drop(inbox.popleft())

    def drop(self, parcel: Parcel) -> None:
        """Open what was sent torch's way: its process keeps files and memory until then."""
        _, text, places, _ = parcel
        if isinstance(text, bytes) and b"multiprocessing" in text:
            buffers = [bytearray(stop - start) for start, stop in places]
            with suppress(Exception):  # what it is made of may be gone
                pickle.loads(text, buffers=buffers)  # noqa: S301 - our own process wrote it

    def num_bytes(self, parcel: Parcel) -> int:
        """Memory that a result takes; 0 where it has nothing in a slot."""
        number, _, _, memory = parcel
        if number is None:
            return len(parcel[1]) if isinstance(parcel[1], bytes) else 0
        slot = self._slots[number] if memory is None else memory
        return slot.nbytes if slot.nbytes > ALIGN else 0

    def open(self, parcel: Parcel) -> Any:
        """Take a result out; its tensors and arrays lie in the slot until all are dropped."""
        number, text, places, memory = parcel
        if number is None:
            assert isinstance(text, bytes), "a layout is of a slot"
            return pickle.loads(text)  # noqa: S301 - our own process wrote it
        if memory is not None:
            self._slots[number] = memory.numpy()
        slot = self._slots[number]
        slot[0] = OPENED
        # Everything in the result refers to `lent`; when that goes, so does the last of it.
        lent: Any = slot[:]
        weakref.finalize(lent, _release, slot, num_forks()).atexit = False
        if isinstance(text, int):
            process = number // _MOST_SLOTS
            if places is not None:
                self._layouts[process, text] = places
            layout = self._layouts[process, text]
            return layout.build(layout.view(lent))
        whole = memoryview(lent)
        buffers = [whole[start:stop] for start, stop in places]
        return pickle.loads(text, buffers=buffers)  # noqa: S301 - as above


def _release(slot: NDArray[np.uint8], forks: int) -> None:
    """Give a slot back, unless a process was forked since it was opened: they share it."""
    slot[0] = FREE if forks == num_forks() else LEFT


@final
class _Pickler(ForkingPickler):
    """Leaves the contents of dense tensors, as pickle does those of arrays, to its callback."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return NotImplemented
        if value.is_conj() or value.is_neg():  # bits that torch loses on the way
            value = value.resolve_conj().resolve_neg()
        if not is_plain_tensor(value):
            return self._torchs_way(value)
        content: Any = view_bytes(value)
        name = str(value.dtype).removeprefix("torch.")  # which is read faster than a dtype
        return _tensor, (pickle.PickleBuffer(content), name, tuple(value.shape))

    def _torchs_way(self, value: torch.Tensor) -> Any:
        """Share a copy: torch would move the storage, and others of the result may lie in it."""
        if value.layout is not torch.strided or not value.is_leaf:
            return NotImplemented
        own = value.detach().clone().requires_grad_(value.requires_grad)
        table: Any = self.dispatch_table
        return table[torch.Tensor](own)


def _tensor(content: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(content, dtype=getattr(torch, dtype)).view(shape)
