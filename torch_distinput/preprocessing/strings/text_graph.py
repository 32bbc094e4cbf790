"""Text as packed bytes: what :mod:`.text` does, as tensor code.

No shape follows from a value but from those of the arguments, so ``torch.export`` follows it all.
Tokens are not copied: each, and each n-gram, is a part of its row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from torch_distinput.preprocessing.strings.text import TextRules

_SPACE = 0x20
_UPPER = (0x41, 0x5A)
_WHITESPACE = ((0x09, 0x0D), (0x20, 0x20))
_PUNCTUATION = ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E))
# UTF-8 (Unicode, table 3-7): first bytes of characters of several bytes, from which on there are
# three and four, bytes that follow, and which of them cannot be second behind which first byte.
_FIRST = (0xC2, 0xF4)
_THREE, _FOUR = 0xE0, 0xF0
_FOLLOWING = (0x80, 0xBF)
_NOT_SECOND = (
    (0xE0, (0x80, 0x9F)),
    (0xED, (0xA0, 0xBF)),
    (0xF0, (0x80, 0x8F)),
    (0xF4, (0x90, 0xBF)),
)


class Rows(NamedTuple):
    """Bytes of rows in which it is known where tokens are.

    Attributes:
        data: uint8 ``(rows, bytes)``.
        inside: bool, whether a byte is part of a token.
        begins: bool, whether it is the first one of a token.
    """

    data: torch.Tensor
    inside: torch.Tensor
    begins: torch.Tensor

    def count_tokens(self) -> torch.Tensor:
        """The number of tokens of each row, int64 ``(rows,)``."""
        return self.begins.sum(1)


class Spans(NamedTuple):
    """Parts of rows.

    Attributes:
        data: uint8 ``(rows, bytes)``.
        starts: int64 ``(rows, parts)``, the first byte of each part.
        ends: int64, one past the last.
        places: int64, which item of its row a part is; -1 for none.
    """

    data: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    places: torch.Tensor


def _are_among(data: torch.Tensor, *ranges: tuple[int, int]) -> torch.Tensor:
    """Whether bytes are in one of some ranges."""
    found = [(data >= first) & (data <= last) for first, last in ranges]
    return functools.reduce(torch.bitwise_or, found)


def _shift(values: torch.Tensor, by: int) -> torch.Tensor:
    """What stands ``by`` columns before; zero where there is none."""
    width = values.shape[1]
    return pad(values, (by, 0))[:, :width] if by > 0 else pad(values, (0, -by))[:, -by:]


def _put(
    values: torch.Tensor, columns: torch.Tensor, where: torch.Tensor, *, width: int, fill: int
) -> torch.Tensor:
    """Put values ``where`` it holds into columns; what is not below the width is dropped.

    Elsewhere columns may be -2 or more. (Arithmetic is several times faster than torch.where.)
    """
    columns = (columns + ~where * (width + 2)).clamp_max(width)
    out = values.new_full((values.shape[0], width + 1), fill)
    return out.scatter(1, columns, values)[:, :width]


def standardize(
    data: torch.Tensor, lengths: torch.Tensor, rules: TextRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardise rows ``(rows, bytes)`` of lengths ``(rows,)``; zero behind their ends."""
    if rules.lowers:
        data = data + _are_among(data, _UPPER).to(torch.uint8) * 0x20
    if not rules.strips:
        return data, lengths
    width = data.shape[1]
    kept = (torch.arange(width, device=data.device) < lengths.unsqueeze(1)) & ~_are_among(
        data, *_PUNCTUATION
    )
    return _put(data, kept.cumsum(1) - 1, kept, width=width, fill=0), kept.sum(1)


def split(data: torch.Tensor, lengths: torch.Tensor, rules: TextRules) -> Rows:
    """Find the tokens of rows, by whitespace or by character."""
    inside = torch.arange(data.shape[1], device=data.device) < lengths.unsqueeze(1)
    if rules.split == "character":
        return Rows(data, inside, inside & ~_are_continued(data))
    inside = inside & ~_are_among(data, *_WHITESPACE)
    return Rows(data, inside, inside & ~_shift(inside, 1))


def _are_continued(data: torch.Tensor) -> torch.Tensor:
    """Whether a byte is not the first of its character; one that is no UTF-8 is one by itself."""
    second, follows = _shift(data, -1), _are_among(data, _FOLLOWING)
    three, four = data >= _THREE, data >= _FOUR
    begins = _are_among(data, _FIRST) & _shift(follows, -1)
    begins = begins & (_shift(follows, -2) | ~three) & (_shift(follows, -3) | ~four)
    for first, refused in _NOT_SECOND:
        begins = begins & ~((data == first) & _are_among(second, refused))
    return _shift(begins, 1) | _shift(begins & three, 2) | _shift(begins & four, 3)


def bound_tokens(num_bytes: int, rules: TextRules) -> int:
    """The most tokens that so many bytes can have."""
    return num_bytes if rules.split == "character" else (num_bytes + 1) // 2


def find_spans(rows: Rows, rules: TextRules, num_tokens: int) -> Spans:
    """Find n-grams: all of the first width, then of the next, in one row of parts.

    Args:
        rows: with their tokens.
        rules: which n-grams there are.
        num_tokens: how many tokens of a row are looked at, from its first on.
    """
    data, columns = _separate(rows, rules)
    which = rows.begins.cumsum(1) - 1
    last = rows.inside & ~(_shift(rows.inside, -1) & ~_shift(rows.begins, -1))
    starts = _put(columns, which, rows.begins, width=num_tokens, fill=0)
    ends = _put(columns + 1, which, last, width=num_tokens, fill=0)
    counts = rows.count_tokens().unsqueeze(1)
    parts, before = [], torch.zeros_like(counts)
    for width in rules.widths:
        num_parts = max(num_tokens - width + 1, 0)
        at = torch.arange(num_parts, device=data.device)
        present = (counts - width + 1).clamp_min(0)
        first, end = starts[:, :num_parts], ends[:, width - 1 : width - 1 + num_parts]
        there = at < present
        # Where there is no n-gram its end may be missing: an empty part at the front then.
        parts.append((first * there, end * there, torch.where(there, before + at, -1)))
        before = before + present
    return Spans(data, *(torch.cat(kind, 1) for kind in zip(*parts, strict=True)))


def _separate(rows: Rows, rules: TextRules) -> tuple[torch.Tensor, torch.Tensor]:
    """Put exactly one space between tokens, if there are n-grams; and say where each byte is."""
    num_columns = rows.data.shape[1]
    if max(rules.widths) == 1:
        columns = torch.arange(num_columns, device=rows.data.device)
        return rows.data, columns.expand(rows.inside.shape)
    columns = rows.inside.cumsum(1) + rows.begins.cumsum(1) - 2
    # Whitespace leaves room for the space; characters may stand side by side.
    width = 2 * num_columns if rules.split == "character" else num_columns
    return _put(rows.data, columns, rows.inside, width=width, fill=_SPACE), columns


def place(values: torch.Tensor, places: torch.Tensor, num_places: int) -> torch.Tensor:
    """Put values of parts where they belong, in int64 ``(rows, num_places)``; zeros elsewhere."""
    return _put(values, places, places >= 0, width=num_places, fill=0)
