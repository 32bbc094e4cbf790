"""Strings of a batch as two tensors: their bytes, and where each of them begins.

    rows       "ab"   ""   None   "cde"
    data       a b c d e                      uint8, one string behind the other
    offsets    0   2   2   2   5              row i is data[offsets[i]:offsets[i + 1]]
    missing    F   F   T   F                  only where a row is None

Arrow has the same layout, so that its columns need no copy. Slices share the bytes, and their
offsets begin where the slice does: rows 2 to 4 above have the offsets 2, 2, 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.packed_layout import check_layout, offsets_of

_FEW = 3
_NO_INDICES = {torch.uint8}  # a mask to some, indices to others
_FIRST_BEYOND = 0x80
MANY_BYTES = 64
"""Spans of this length and more are copied one by one, shorter ones by the bytes' places."""


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PackedStrings:
    """One string or bytes per row, without a Python object for each; a leaf of batches.

    ``FileDataset(..., strings="packed")`` hands text over so, preprocessing layers take it as it
    is, and :meth:`from_list` makes it of strings. Like a ``str`` it is not to be written to: its
    bytes may be those of a mapped file. Slices are views, and so is whatever shares its tensors.

    Attributes:
        data: uint8 ``(num_bytes,)``: UTF-8, or any bytes. More than those of the rows may be there.
        offsets: int64 ``(rows + 1,)``, ascending; they need not begin at 0.
        missing: bool ``(rows,)``, where a row is None, which has no bytes; None: nowhere.
        dtype: what a row is, ``str`` or ``bytes``.

    Raises:
        ValueError: for anything else; of tensors on a device only types and shapes are looked at.
    """

    data: torch.Tensor
    offsets: torch.Tensor
    missing: torch.Tensor | None = None
    dtype: type = str

    def __post_init__(self) -> None:
        """Refuse other tensors; what is not in one piece of memory is brought into one."""
        check_layout(self.data, self.offsets, self.missing, self.dtype)
        for name in ("data", "offsets"):
            if not (tensor := getattr(self, name)).is_contiguous():
                object.__setattr__(self, name, tensor.contiguous())  # the dataclass is frozen

    @staticmethod
    def from_list(values: Iterable[str | bytes | None], dtype: type | None = None) -> PackedStrings:
        """Pack strings, in memory of their own.

        Args:
            values: all ``str`` or all ``bytes``; None is a row that is missing. Bytes that are no
                UTF-8 may be in a ``str`` as surrogate escapes, as ``os.fsdecode`` puts them;
                escapes that together are UTF-8 come back as what they stand for.
            dtype: ``str`` or ``bytes``; None: what the values are, ``str`` where there are none.

        Raises:
            TypeError: for other values.
            ValueError: for a ``str`` that UTF-8 cannot express.
        """
        rows: list[Any] = list(values)
        kinds = set(map(type, rows)) - {type(None)}
        wanted, dtype = dtype, dtype or next(iter(kinds), str)
        if not kinds <= {dtype} or dtype not in (str, bytes):
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
            expected = "all str or all bytes" if wanted is None else f"of dtype {wanted.__name__}"
            msg = f"Expected values {expected}, or None, got {names}. Convert them first."
            raise TypeError(msg)
        missing = None
        if None in rows:
            missing = torch.tensor([row is None for row in rows], dtype=torch.bool, device="cpu")
            rows = [dtype() if row is None else row for row in rows]
        contents: Any = rows if dtype is bytes else _encode(rows)
        return PackedStrings(*join_bytes(contents), missing, dtype)

    @staticmethod
    def concat(parts: Sequence[PackedStrings]) -> PackedStrings:
        """Join the rows of one or more, in memory of their own.

        Raises:
            ValueError: for text and bytes together.
        """
        dtype = parts[0].dtype
        if any(part.dtype is not dtype for part in parts):
            msg = "Expected all text or all bytes to join, got both. Read the column as one type."
            raise ValueError(msg)
        missing = None
        if any(part.missing is not None for part in parts):
            missing = torch.cat([part.where_missing() for part in parts])
        contents: list[Any] = []
        bounds: list[Any] = []
        num_bytes, on_host = 0, parts[0].data.device.type == "cpu"
        for part in parts:
            data, offsets = part.data, part.offsets
            if on_host:  # NumPy tells a number, or cuts a piece, in a fifth of the time
                data, offsets = data.numpy(), offsets.numpy()  # type: ignore[assignment]
            start, stop = int(offsets[0]), int(offsets[-1])
            contents.append(data[start:stop])
            bounds.append(offsets[1 if bounds else 0 :] + (num_bytes - start))
            num_bytes += stop - start
        return _trust(_join(contents), _join(bounds), missing, dtype)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.offsets.shape[0] - 1

    def __getitem__(self, rows: Any) -> Any:
        """A row as ``str``, ``bytes`` or None; of a slice a view; of indices or a mask a copy."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                missing = None if self.missing is None else self.missing[start:stop]
                return _trust(self.data, self.offsets[start : stop + 1], missing, self.dtype)
            rows = range(start, stop, step)
        if isinstance(rows, (torch.Tensor, np.ndarray, Sequence)):
            chosen = torch.as_tensor(rows)
            if chosen.ndim:
                return self._take(chosen)
            rows = chosen.item()
        row = range(len(self))[rows]  # raises as a list does
        return self[row : row + 1].to_list()[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows as Python objects."""
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        """Whether both have the same rows, wherever they lie in memory."""
        if not isinstance(other, PackedStrings):
            return NotImplemented
        if len(self) != len(other) or self.dtype is not other.dtype:
            return False
        return all(map(torch.equal, self._content(), other._content()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the first rows."""
        some = ", ".join(f"{row!r:.40}" for row in self[:_FEW].to_list())
        more = ", ..." if len(self) > _FEW else ""
        return f"PackedStrings([{some}{more}], rows={len(self)}, num_bytes={self.num_bytes()})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process with the bytes of these rows only, in host memory."""
        own = self.narrow().tensors()
        return _restore, ([tensor.cpu().numpy() for tensor in own], self.dtype)

    def to_list(self) -> list[Any]:
        """The rows as ``str`` or ``bytes``, as :attr:`dtype` says, and None where one is missing.

        What is no UTF-8 is a surrogate escape in a ``str``.
        """
        if self.dtype is bytes:
            return self.to_bytes()
        own = self.narrow()
        memory = own.data.cpu().numpy()
        bounds = pairwise(own.offsets.tolist())
        if is_ascii(memory):  # decoded at once
            text = str(memory, "ascii")  # type: ignore[call-overload]
            rows = [text[start:stop] for start, stop in bounds]
        else:
            content = memory.tobytes()
            rows = [content[i:j].decode("utf-8", "surrogateescape") for i, j in bounds]
        return self._with_gaps(rows)

    def to_bytes(self) -> list[Any]:
        """The rows as ``bytes``, also those of text, and None where one is missing."""
        own = self.narrow()
        content = own.data.cpu().numpy().tobytes()
        return self._with_gaps([content[i:j] for i, j in pairwise(own.offsets.tolist())])

    def lengths(self) -> torch.Tensor:
        """Bytes of each row, int64 ``(rows,)``."""
        return self.offsets.diff()

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The data, the offsets and, if there is one, the mask of what is missing."""
        found = (self.data, self.offsets)
        return found if self.missing is None else (*found, self.missing)

    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    def where_missing(self) -> torch.Tensor:
        """Which rows are None, bool ``(rows,)``."""
        if self.missing is not None:
            return self.missing
        return torch.zeros(len(self), dtype=torch.bool, device=self.offsets.device)

    def narrow(self) -> PackedStrings:
        """The same rows with offsets from 0 and no other bytes; shares the bytes."""
        start, stop = int(self.offsets[0]), int(self.offsets[-1])
        if not start and stop == self.data.shape[0]:
            return self
        offsets = self.offsets - start if start else self.offsets
        return _trust(self.data[start:stop], offsets, self.missing, self.dtype)

    def clone(self) -> PackedStrings:
        """The rows in memory of their own."""
        return PackedStrings.concat([self])

    def to(self, device: Any, *, non_blocking: bool = False) -> PackedStrings:
        """The rows on a device; what is there already is shared."""
        own = self.narrow().tensors()
        moved = [tensor.to(device, non_blocking=non_blocking) for tensor in own]
        return strings_over(moved, self.dtype)

    def pin_memory(self) -> PackedStrings:
        """The rows in pinned host memory, as ``DataLoader(pin_memory=True)`` asks for."""
        own = self.narrow().tensors()
        return strings_over([tensor.pin_memory() for tensor in own], self.dtype)

    def _with_gaps(self, rows: list[Any]) -> list[Any]:
        for row in [] if self.missing is None else self.missing.nonzero().flatten().tolist():
            rows[row] = None
        return rows

    def _content(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = self.narrow()
        return own.lengths().cpu(), own.where_missing().cpu(), own.data.cpu()

    def _take(self, rows: torch.Tensor) -> PackedStrings:
        if rows.dtype is torch.bool:
            if rows.shape != (len(self),):
                msg = f"Expected a mask of {len(self)} rows, got shape {tuple(rows.shape)}."
                raise IndexError(f"{msg} Pass one bool per row.")
            rows = rows.nonzero().flatten()
        is_integer = rows.dtype not in _NO_INDICES and not rows.is_floating_point()
        if rows.ndim != 1 or not (is_integer or rows.shape[0] == 0):
            msg = (
                f"Expected indices of rows, int64 (count,), or a mask, bool ({len(self)},); got "
                f"{rows.dtype} {tuple(rows.shape)}. Convert them first."
            )
            raise IndexError(msg)
        chosen = np.arange(len(self))[rows.cpu().numpy().astype(np.int64)]  # raises as a list does
        offsets = self.offsets.cpu().numpy()
        starts, stops = offsets[chosen], offsets[chosen + 1]
        data = torch.from_numpy(gather_spans(self.data.cpu().numpy(), starts, stops))
        ends, device = offsets_of(stops - starts), self.data.device
        picked = torch.from_numpy(chosen).to(device)
        missing = None if self.missing is None else self.missing[picked]
        return _trust(data.to(device), ends.to(device), missing, self.dtype)


def _join(parts: list[Any]) -> torch.Tensor:
    """On the host by NumPy: torch copies even a batch by threads, which wait for a core each."""
    on_host = isinstance(parts[0], np.ndarray)
    return torch.from_numpy(np.concatenate(parts)) if on_host else torch.cat(parts)


def _trust(
    data: torch.Tensor, offsets: torch.Tensor, missing: torch.Tensor | None, dtype: type
) -> PackedStrings:
    """Parts of packed strings, without another look at them: slices are made in every step."""
    part = object.__new__(PackedStrings)
    put = object.__setattr__  # the dataclass is frozen
    put(part, "data", data)
    put(part, "offsets", offsets)
    put(part, "missing", missing)
    put(part, "dtype", dtype)
    return part


def join_bytes(rows: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes, or views of some, one behind the other, and their offsets."""
    joined = np.frombuffer(bytearray().join(rows), np.uint8)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return torch.from_numpy(joined), offsets_of(lengths)


def gather_spans(
    memory: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The bytes of spans of a memory, one behind the other, in memory of their own."""
    lengths = stops - starts
    total = int(lengths.sum())
    if total >= MANY_BYTES * len(lengths):
        view = memoryview(memory)  # type: ignore[arg-type]
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return np.frombuffer(bytearray().join([view[i:j] for i, j in spans]), np.uint8)
    shifts = starts - (lengths.cumsum() - lengths)
    gathered: NDArray[np.uint8] = memory[np.repeat(shifts, lengths) + np.arange(total)]
    return gathered


def is_ascii(memory: NDArray[np.uint8]) -> bool:
    """Whether all bytes are below 128; three times as fast as ``bytes.isascii``."""
    return not memory.size or bool(memory.max() < _FIRST_BEYOND)


def tensor_over(memory: Any) -> torch.Tensor:
    """A uint8 tensor over memory that is kept for it, without a copy.

    Torch warns of memory that Python may not write to, such as ``bytes``: whoever makes packed
    strings of it has promised that nobody writes.
    """
    array = np.frombuffer(memory, np.uint8)
    if not array.size or array.flags.writeable:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    return torch.from_numpy(np.asarray(_Writable(array)))


@final
class _Writable:
    """Memory that NumPy takes for one that may be written to."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        found = array.__array_interface__
        self._kept = array
        self.__array_interface__ = {**found, "data": (found["data"][0], False)}


def strings_over(tensors: Sequence[torch.Tensor], dtype: type) -> PackedStrings:
    """Make strings of copies of their ``tensors()``, unchecked: they may be on their way still."""
    data, offsets, *missing = tensors
    return _trust(data, offsets, missing[0] if missing else None, dtype)


def _encode(rows: list[str]) -> list[bytes]:
    try:
        return [text.encode("utf-8", "surrogateescape") for text in rows]
    except UnicodeEncodeError as error:
        msg = f"Expected text that UTF-8 can express, got {error.object!r:.80}: {error.reason}."
        cure = "Replace them before: text.encode('utf-8', 'replace').decode()."
        raise ValueError(f"{msg} {cure}") from None


def _restore(arrays: Sequence[NDArray[Any]], dtype: type) -> PackedStrings:
    return strings_over([torch.from_numpy(array) for array in arrays], dtype)
