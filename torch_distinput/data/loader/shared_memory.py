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
never sees it change; while all slots are taken, results travel torch's way, and by value where
there is no shared memory left. A process that was
forked meanwhile may keep the result too: its slot is made LEFT, and never written to again.
"""

from __future__ import annotations

import io
import logging
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.threads import num_forks

FREE, SENT, OPENED, LEFT = range(4)

_ALIGN = 64
"""The header of a slot, and what the places in it are multiples of: a cache line."""
_MOST_SLOTS, _MOST_LARGE, _LARGE_BYTES = 24, 8, 2 << 20
"""For each loader process; it fills no more than are on their way or in use. If all together have
more than these bytes, there are fewer."""
_NO_MEMORY = "shared memory"
"""What is in the words of torch where there is none left."""
_FULL = (
    "Results of a loader process are copied through a pipe, which is slower: %s. Give this machine "
    "or container more shared memory (/dev/shm; docker run --shm-size=8g)."
)

_log = logging.getLogger(__name__)


Parcel = tuple["int | None", bytes, "list[tuple[int, int]]", "torch.Tensor | None"]
"""A result under way; a plain tuple, which travels fastest.

    number of the slot; None where the result travels torch's way
    the result, pickled but for what is in the slot
    start and stop in the slot of each buffer that is missing
    the slot itself, the first time; it replaces another of that number, which was too small
"""


def num_bytes(parcel: Parcel) -> int:
    """How large a result is."""
    places = parcel[2]
    return len(parcel[1]) + (places[-1][1] if places else 0)


@final
class Sender:
    """The end in a loader process."""

    def __init__(self, process: int) -> None:
        """Share nothing yet; each process has numbers of its own."""
        self._slots: dict[int, NDArray[np.uint8]] = {}
        self._was_full = False
        self._numbers = range(process * _MOST_SLOTS, (process + 1) * _MOST_SLOTS)

    def forget_unopened(self) -> None:
        """Nobody will open what was sent before: the main process has begun anew.

        Nor does it know those slots, if they were sent for the first time.
        """
        self._slots = {number: slot for number, slot in self._slots.items() if slot[0] != SENT}

    def pack(self, result: Any) -> Parcel:
        """Write a result into a slot."""
        try:
            return self._shared(result)
        except RuntimeError as error:  # torch reserves memory before it is written to
            if _NO_MEMORY not in str(error):
                raise
            if not self._was_full:
                self._was_full = True
                _log.warning(_FULL, error)
        file = io.BytesIO()
        _Pickler(file, 5).dump(result)
        return None, file.getvalue(), [], None

    def _shared(self, result: Any) -> Parcel:
        free = self._free()
        if not free:  # pickled once, for it may open files of shared memory, and here, if it can be
            return None, bytes(ForkingPickler.dumps(result)), [], None
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, 5, False, buffers.append).dump(result)  # ForkingPickler takes no names
        views = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
        places, end = [], _ALIGN
        for view in views:
            places.append((end, end + view.nbytes))
            end = -(-places[-1][1] // _ALIGN) * _ALIGN
        number, memory = self._with_room(free, end)
        slot = self._slots[number]
        for view, (start, stop) in zip(views, places, strict=True):
            slot[start:stop] = view
        slot[0] = SENT
        return number, file.getvalue(), places, memory

    def _free(self) -> list[int]:
        """Numbers of the slots that may be written to or made."""
        slots, numbers = self._slots, self._numbers
        if len(slots) >= _MOST_LARGE:
            is_small = sum(slot.nbytes for slot in slots.values()) < _LARGE_BYTES
            numbers = numbers if is_small else [*slots]
        return [n for n in numbers if n not in slots or slots[n][0] in (FREE, LEFT)]

    def _with_room(self, free: list[int], num_bytes: int) -> tuple[int, torch.Tensor | None]:
        """Number of a slot, and its memory if it is new."""
        slots = self._slots
        for number in free:
            slot = slots.get(number)
            if slot is not None and slot[0] == FREE and slot.nbytes >= num_bytes:
                return number, None
        memory: Any = torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")
        memory.share_memory_()
        slots[free[0]] = memory.numpy()  # in the place of one that is too small or left, if any
        return free[0], memory


@final
class Receiver:
    """The end in the main process."""

    def __init__(self) -> None:
        """Know no slot yet."""
        self._slots: dict[int, NDArray[np.uint8]] = {}

    def open(self, parcel: Parcel) -> Any:
        """Take a result out; its tensors and arrays lie in the slot until all are dropped."""
        number, text, places, memory = parcel
        if number is None:
            return pickle.loads(text)  # noqa: S301 - our own process wrote it
        if memory is not None:
            self._slots[number] = memory.numpy()
        slot = self._slots[number]
        slot[0] = OPENED
        # Everything in the result refers to `lent`; when that goes, so does the last of it.
        lent: Any = slot[:]
        weakref.finalize(lent, _release, slot, num_forks()).atexit = False
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
        if not _is_plain(value):
            return self._torchs_way(value)
        content: Any = value.view(-1).view(torch.uint8).numpy()
        name = str(value.dtype).removeprefix("torch.")  # which is read faster than a dtype
        return _tensor, (pickle.PickleBuffer(content), name, tuple(value.shape))

    def _torchs_way(self, value: torch.Tensor) -> Any:
        """Share a copy: torch would move the storage, and others of the result may lie in it."""
        if value.layout is not torch.strided or not value.is_leaf:
            return NotImplemented
        own = value.detach().clone().requires_grad_(value.requires_grad)
        table: Any = self.dispatch_table
        return table[torch.Tensor](own)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes, its dtype and its shape."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized)
    )


def _tensor(content: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(content, dtype=getattr(torch, dtype)).view(shape)
