"""Text and binary of Arrow as packed strings: the same bytes, and offsets of 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_distinput.packed_strings import PackedStrings, is_ascii, tensor_over


def pack_array(pa: Any, array: Any) -> PackedStrings:
    """Return an array of text or binary without a copy of its bytes, where its type has offsets.

    Views and fixed sizes have none, and are copied. The bytes of a mapped file stay in the file.

    Raises:
        ArrowInvalid, UnicodeDecodeError: for text that is no UTF-8, or offsets out of their order.
    """
    types, kind = pa.types, array.type
    dtype = str if any(is_text(kind) for is_text in _texts(types)) else bytes
    if not any(has_offsets(kind) for has_offsets in _with_offsets(types)):
        array = array.cast(pa.large_string() if dtype is str else pa.large_binary())
    wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
    binary = array.view(pa.large_binary() if wide else pa.binary())
    binary.validate(full=True)  # the offsets
    missing = None
    if array.null_count:
        missing = torch.from_numpy(np.array(array.is_null().to_numpy(zero_copy_only=False)))
        binary = _without_hidden_bytes(binary, missing.numpy(), wide=wide)
    offsets = _offsets(binary, wide=wide)
    start, stop = int(offsets[0]), int(offsets[-1])
    content = binary.buffers()[2].slice(start, stop - start) if stop > start else b""
    if dtype is str and not is_ascii(np.frombuffer(content, np.uint8)):
        _check_text(array)
    return PackedStrings(tensor_over(content), torch.from_numpy(offsets - start), missing, dtype)


def _texts(types: Any) -> tuple[Any, ...]:
    return types.is_string, types.is_large_string, types.is_string_view


def _with_offsets(types: Any) -> tuple[Any, ...]:
    return types.is_string, types.is_large_string, types.is_binary, types.is_large_binary


def _check_text(array: Any) -> None:
    """Refuse what cannot be decoded, in the words of who decodes it."""
    try:
        array.validate(full=True)
    except Exception:
        array.to_pylist()
        raise


def _offsets(binary: Any, *, wide: bool) -> np.ndarray[Any, Any]:
    """A copy: neighbouring slices share the one at their border."""
    if not len(binary):
        return np.zeros(1, np.int64)
    found = np.frombuffer(binary.buffers()[1], np.int64 if wide else np.int32)
    return found[binary.offset : binary.offset + len(binary) + 1].astype(np.int64)


def _without_hidden_bytes(binary: Any, missing: np.ndarray[Any, Any], *, wide: bool) -> Any:
    """Arrow may have bytes behind a null; packed strings have none."""
    lengths = np.diff(_offsets(binary, wide=wide))
    return binary.fill_null(b"") if lengths[missing].any() else binary
