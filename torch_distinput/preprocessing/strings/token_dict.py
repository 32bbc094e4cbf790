"""Places of tokens by a dict of Python: the fastest lookup of host strings, below a million."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import repeat
from typing import Any, final

import numpy as np

from torch_distinput.preprocessing.layers.lookup import check_flat
from torch_distinput.preprocessing.strings.packed import as_text, flattened, to_bytes, to_str
from torch_distinput.preprocessing.strings.token_table import ABSENT, MASKED, NOT_FOUND, Tokens


@final
class TokenDict:
    """The place of each token.

    Args:
        tokens: in order, each once.
        mask_token: the string that stands for nothing, if there is one.
    """

    def __init__(self, tokens: Tokens, mask_token: str | None) -> None:
        """See the class."""
        self._num_writes, self._checksum = _num_writes(tokens), _checksum(tokens)
        # Strings alone: with None among them a dict is twice as large, and slower.
        self._places = {token: place for place, token in enumerate(tokens.strings())}
        if mask_token is not None:
            self._places[mask_token] = MASKED

    def is_of(self, tokens: Tokens) -> bool:
        """Whether it has these tokens, which may have been written over, as DDP does in place."""
        num_writes = _num_writes(tokens)
        if num_writes != self._num_writes:
            if _checksum(tokens) != self._checksum:
                return False
            self._num_writes = num_writes  # most often what was there is written again
        return True

    def places_of(self, flat: Sequence[Any]) -> np.ndarray:
        """The place of each string, or NOT_FOUND, MASKED or ABSENT; int64 ``(strings,)``.

        Raises:
            TypeError: for values that are no strings.
        """
        find = self._places.get
        places = np.fromiter(map(find, flat, repeat(NOT_FOUND)), np.int64, len(flat))
        lost = np.flatnonzero(places == NOT_FOUND).tolist()
        if others := [place for place in lost if not _is_plain(flat[place])]:
            texts = map(_text_of_bytes, as_text([flat[place] for place in others]))
            places[others] = [ABSENT if text is None else find(text, NOT_FOUND) for text in texts]
        return places


def _num_writes(tokens: Tokens) -> int:
    text = tokens.text
    return 0 if text.is_inference() else text._version  # noqa: SLF001 - its only name


def _checksum(tokens: Tokens) -> int:
    text, ends = (tensor.cpu().contiguous().numpy() for tensor in tokens)
    return zlib.crc32(ends.data, zlib.crc32(text.data))


def _is_plain(value: Any) -> bool:
    """Whether a value is the one ``str`` of its bytes; None and bytes are no ``str`` yet."""
    return type(value) is str and (value.isascii() or not _has_escapes(value))


def _has_escapes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _text_of_bytes(text: str | None) -> str | None:
    """The one ``str`` of its bytes: escapes that together are UTF-8 are what they stand for."""
    return None if text is None else to_str(to_bytes(text))


def given_tokens(vocabulary: Any) -> list[str]:
    """Return the tokens of a given vocabulary."""
    flat, shape = flattened(vocabulary)
    check_flat(vocabulary, shape)
    tokens = [token for token in as_text(flat) if token is not None]
    if len(tokens) < len(flat):
        msg = f"Expected a vocabulary of strings, got None at {flat.index(None)}. Leave it out."
        raise ValueError(msg)
    return tokens
