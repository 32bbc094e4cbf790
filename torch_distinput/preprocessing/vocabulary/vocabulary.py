"""Vocabularies: tokens in order, and the table in which each of them is found.

A string is found by its 64-bit hash. A table refuses tokens of one hash by choosing another seed; a
string that is no token is taken for one with probability (tokens / 2**64).
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, final

import numpy as np
import torch

from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.strings.byte_rows import to_bytes, to_str
from torch_distinput.preprocessing.strings.hashes.token_hash import token_hash
from torch_distinput.preprocessing.strings.packed import (
    PackedColumn,
    apply_to_packed,
    decode_texts,
    flatten_nested,
)
from torch_distinput.preprocessing.vocabulary.sorted_table import (
    ABSENT,
    MASKED,
    NOT_FOUND,
    SortedTable,
    build_directory,
    sort_keys,
)

_MOST_SEEDS = 8  # two of them meet once in 2**63 tokens squared; only texts made for it meet always


class Tokens(NamedTuple):
    """Tokens one behind the other.

    Attributes:
        text: uint8 ``(bytes,)``, UTF-8.
        ends: int64 ``(tokens,)``, where each ends.
    """

    text: torch.Tensor
    ends: torch.Tensor

    @staticmethod
    def of(tokens: Sequence[bytes]) -> Tokens:
        """Join tokens."""
        text = np.frombuffer(bytearray(b"".join(tokens)), np.uint8)
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        return Tokens(torch.from_numpy(text), torch.from_numpy(np.cumsum(lengths)))

    def strings(self) -> list[str]:
        """The tokens in order."""
        content = self.text.cpu().numpy().tobytes()
        ends = self.ends.tolist()
        return [to_str(content[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def at(self, place: int) -> str:
        """One token."""
        start = int(self.ends[place - 1]) if place else 0
        return to_str(self.text[start : int(self.ends[place])].cpu().numpy().tobytes())


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyOrigin:
    """Where a mapped vocabulary came from.

    Attributes:
        url: of the file.
        storage_options: of fsspec.
        key: of what this machine keeps of it.
        sha256: of the file; empty until it was read.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    key: str
    sha256: str = ""


class StringVocabulary(NamedTuple):
    """Distinct strings.

    Attributes:
        tokens: in order.
        table: their hashes (:func:`hash_tokens`, with the seed of the table).
        origin: the file whose memory all processes of a machine share; None: it has its own.
    """

    tokens: Tokens
    table: SortedTable
    origin: VocabularyOrigin | None = None

    @staticmethod
    def of(tokens: Sequence[str]) -> StringVocabulary:
        """Hash tokens, which are distinct; see :func:`index_tokens`."""
        return index_tokens(Tokens.of([to_bytes(token) for token in tokens]))


class IntegerVocabulary(NamedTuple):
    """Distinct integers.

    Attributes:
        tokens: int64 ``(tokens,)``, in order.
        table: the integers, which are their own keys.
    """

    tokens: torch.Tensor
    table: SortedTable

    @staticmethod
    def of(tokens: Sequence[int] | torch.Tensor) -> IntegerVocabulary:
        """Sort tokens, which are distinct."""
        given = torch.as_tensor(tokens, dtype=torch.int64)
        return IntegerVocabulary(given, sort_keys(given))


def index_tokens(tokens: Tokens) -> StringVocabulary:
    """Hash tokens, which are distinct, with the first seed that tells all of them apart.

    Raises:
        ValueError: for tokens that no seed tells apart.
    """
    for seed in range(_MOST_SEEDS):
        table = sort_keys(hash_tokens(tokens, seed), seed)
        meets = table.keys[1:] == table.keys[:-1]
        if not bool(meets.any()):
            directory = build_directory(table.keys)
            return StringVocabulary(tokens, table._replace(directory=directory))
    first = int(meets.nonzero()[0])
    pair = [tokens.at(int(table.places[place])) for place in (first, first + 1)]
    msg = (
        f"Expected tokens with different hashes, got {pair[0]!r:.60} and {pair[1]!r:.60}, which "
        "were built to collide. Leave one out."
    )
    raise ValueError(msg)


def hash_tokens(tokens: Tokens, seed: int) -> torch.Tensor:
    """The hash of each token, int64 ``(tokens,)``; in blocks, whose tokens are about as long."""
    strings = PackedStrings(tokens.text, torch.nn.functional.pad(tokens.ends, (1, 0)))
    return apply_to_packed(
        PackedColumn(strings, (len(strings),)),
        lambda padded: token_hash(*padded.rows(), seed),
    )


@final
class TokenDict:
    """The place of each token, by a dict of Python: the fastest for host strings, below a million.

    Args:
        tokens: in order, each once.
        mask_token: the string that stands for nothing, if there is one.
    """

    def __init__(self, tokens: Tokens, mask_token: str | None) -> None:
        """See the class."""
        self._num_writes, self._checksum = _count_writes(tokens), _compute_checksum(tokens)
        # Strings alone: with None among them a dict is twice as large, and slower.
        self._places = {token: place for place, token in enumerate(tokens.strings())}
        if mask_token is not None:
            self._places[mask_token] = MASKED

    def is_of(self, tokens: Tokens) -> bool:
        """Whether it has these tokens, which may have been written over, as DDP does in place."""
        num_writes = _count_writes(tokens)
        if num_writes != self._num_writes:
            if _compute_checksum(tokens) != self._checksum:
                return False
            self._num_writes = num_writes  # most often what was there is written again
        return True

    def find_nested(self, inputs: Any) -> tuple[list[Any], tuple[int, ...], np.ndarray]:
        """The strings of a list or array, flat, their shape, and the place of each."""
        if type(inputs) is list:
            # To look at the type of each would take longer than this, which fails for lists.
            with contextlib.suppress(TypeError):
                return inputs, (len(inputs),), self.find(inputs)
        flat, shape = flatten_nested(inputs)
        return flat, shape, self.find(flat)

    def find(self, flat: Sequence[Any]) -> np.ndarray:
        """The place of each string, or NOT_FOUND, MASKED or ABSENT; int64 ``(strings,)``.

        Raises:
            TypeError: for values that are no strings.
        """
        find = self._places.get
        places = np.fromiter(map(find, flat, repeat(NOT_FOUND)), np.int64, len(flat))
        lost = np.flatnonzero(places == NOT_FOUND).tolist()
        if others := [place for place in lost if not _is_plain(flat[place])]:
            texts = map(_normalize, decode_texts([flat[place] for place in others]))
            places[others] = [ABSENT if text is None else find(text, NOT_FOUND) for text in texts]
        return places


def _count_writes(tokens: Tokens) -> int:
    text = tokens.text
    return 0 if text.is_inference() else text._version  # noqa: SLF001 - its only name


def _compute_checksum(tokens: Tokens) -> int:
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


def _normalize(text: str | None) -> str | None:
    """The one ``str`` of its bytes: escapes that together are UTF-8 are what they stand for."""
    return None if text is None else to_str(to_bytes(text))
