"""A value with tensors in it as one piece of memory, to be sent to another process, and back.

    | number of buffers, bytes of the text, bytes of each buffer | text | buffer | buffer | ...

The text is the pickled value but for the contents of dense tensors and arrays, which are copied
once, and are views of the piece where it is opened.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.buffer_pool import pageable
from torch_distinput.data.batch.jagged import has_ragged_rows, longest_row, make_jagged

_ALIGN = 64
"""What the places of the parts are multiples of: a cache line, and any dtype's size."""


def view_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor of the host, as bytes and without a copy.

    A tensor of one element is contiguous with any stride, a column of one row for instance; torch
    takes none but 1 for bytes.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def split_buffers(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the text of a value, and its buffers where they are: ``pickle.loads`` joins them.

    Raises whatever pickle does for a value that cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), buffers


def pickle_value(value: Any) -> bytes:
    """``pickle.dumps``, also for tensors of dtypes that torch pickles and cannot load.

    So it is with unsigned integers of more than a byte, and with floats of one.
    """
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def serialize(value: Any) -> torch.Tensor:
    """Return a value as a vector of bytes, which shares no memory with it.

    Raises whatever pickle does for a value that cannot be pickled.
    """
    text, buffers = split_buffers(value)
    parts = [np.frombuffer(text, dtype=np.uint8)]
    parts += [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
    sizes = [part.nbytes for part in parts]
    head = np.array([len(buffers), *sizes], dtype=np.int64).view(np.uint8)
    *starts, end = _places([head.nbytes, *sizes])
    piece = pageable(end)
    memory = piece.numpy()
    for part, start in zip([head, *parts], starts, strict=True):
        memory[start : start + part.nbytes] = part
    return piece


def deserialize(piece: torch.Tensor) -> Any:
    """Return the value; its tensors and arrays are views of the piece, which nobody else has."""
    memory = piece.numpy()
    num_buffers = int(memory[:8].view(np.int64)[0])
    head = memory[: 8 * (num_buffers + 2)].view(np.int64)
    sizes = [head.nbytes, *head[1:].tolist()]
    whole = memoryview(memory)  # type: ignore[arg-type]
    places = zip(_places(sizes), sizes, strict=False)
    _, text, *buffers = [whole[start : start + size] for start, size in places]
    return pickle.loads(text, buffers=buffers)  # noqa: S301 - from our own workers


def _places(sizes: Sequence[int]) -> list[int]:
    """Where parts of these sizes begin, and the end of the last."""
    return list(accumulate((-(-size // _ALIGN) * _ALIGN for size in sizes), initial=0))


@final
class _Pickler(pickle.Pickler):
    """Leaves the contents of dense tensors, as pickle does those of arrays, to its callback."""

    dispatch_table = copyreg.dispatch_table

    def reducer_override(self, value: Any) -> Any:
        return reduce_tensor(value) if isinstance(value, torch.Tensor) else NotImplemented


def reduce_tensor(value: torch.Tensor) -> Any:
    """Return what a pickler is to write of a tensor; NotImplemented where torch's own will do."""
    if value.is_nested and value.layout is torch.jagged and has_ragged_rows(value):
        jagged: Any = value  # whose methods torch's stubs lack
        return make_jagged, (jagged.values(), jagged.offsets(), longest_row(jagged))
    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        return NotImplemented
    if value.is_quantized or value.is_nested:
        return NotImplemented
    return _reduce_dense(value.detach().resolve_conj().resolve_neg().cpu())


def _reduce_dense(value: torch.Tensor) -> Any:
    """Its bytes, its dtype, and how its dimensions lie in memory: kernels depend on that."""
    order: tuple[int, ...] | None = None
    if not value.is_contiguous():
        order = tuple(sorted(range(value.ndim), key=value.stride, reverse=True))
        value = value.permute(order).contiguous()
    content: Any = view_bytes(value)
    name = str(value.dtype).removeprefix("torch.")
    return _tensor, (pickle.PickleBuffer(content), name, tuple(value.shape), order)


def _tensor(content: Any, name: str, shape: tuple[int, ...], order: Sequence[int] | None) -> Any:
    dtype = getattr(torch, name)
    if len(content):
        value = torch.frombuffer(content, dtype=dtype).view(shape)
    else:
        value = torch.empty(shape, dtype=dtype, device="cpu")
    return value if order is None else value.permute(np.argsort(order).tolist())
