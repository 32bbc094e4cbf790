"""What attention has to know of packed rows: where documents begin, and which tokens may meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_distinput.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_MOST_TOKENS = 2**31 - 1


def cu_seqlens(document_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where documents begin in packed rows, for attention over sequences of many lengths.

    Of the rows one behind the other, as ``hidden.flatten(0, 1)`` puts them. Padding at the end of a
    row is a sequence, too, so that each token is in one. The second value waits for the device.

    Args:
        document_ids: those of a batch of :func:`pack`: ``(rows, length)``, dense or jagged.

    Returns:
        ``cu_seqlens``: int32 ``(sequences + 1,)``, the first token of each sequence, and the number
        of all tokens; on the same device. ``max_seqlen``: the length of the longest sequence.

    Raises:
        ValueError: if there are more tokens than an int32 counts.
    """
    ids: Any = document_ids  # torch does not type what nested tensors have
    values = ids.values() if ids.is_nested else ids.flatten()
    if len(values) > _MOST_TOKENS:
        msg = (
            f"cu_seqlens expects at most {_MOST_TOKENS} tokens, which kernels count in int32, got "
            f"{len(values)}. Give it fewer rows at a time."
        )
        raise ConfigurationError(msg)
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    if ids.is_nested:
        offsets = ids.offsets()
        is_first[offsets[offsets < len(values)]] = True
    else:
        is_first.view_as(ids)[:, :1] = True
    begins = is_first.nonzero().flatten()
    bounds = torch.cat([begins, begins.new_full((1,), len(values))]).to(torch.int32)
    longest = int(bounds.diff().max()) if len(bounds) > 1 else 0
    return bounds, longest


def document_mask(document_ids: torch.Tensor, *, causal: bool = True) -> BlockMask:
    """The mask with which FlexAttention lets each document of packed rows attend to itself alone.

    Args:
        document_ids: those of a batch of :func:`pack` with dense rows: ``(rows, length)``.
        causal: whether a token sees only those before it, and itself.

    Returns:
        A ``BlockMask`` for all heads, on the same device, for ``flex_attention(block_mask=)``.
        Tokens of padding see each other.
    """
    # Imported here: it loads the compiler, which nobody needs for input.
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415

    rows, length = document_ids.shape

    def is_seen(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        del head
        same = document_ids[batch, query] == document_ids[batch, key]
        return same & (query >= key) if causal else same

    return create_block_mask(is_seen, rows, None, length, length, device=document_ids.device)
