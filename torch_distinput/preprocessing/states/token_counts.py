"""How often each token occurs, and in how many documents.

Counts are integers, which add up in any order. What could show an order is the order of tokens:
it is always that of their bytes in UTF-8, or of the integers.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.states.pending_texts import PendingTexts

Token = str | int
"""What is counted. Bytes that are no UTF-8 are a ``str`` as ``surrogateescape`` decodes them."""

TokenIterable = Iterable[Token] | NDArray[Any]
Documents = Iterable[Collection[Token]] | NDArray[Any]

_INT64 = np.iinfo(np.int64)


@final
class TokenCounts:
    """Counts of tokens: all ``str``, or all ``int`` (of 64 bits).

    Args:
        documents: whether ``update`` takes documents, and counts for each token those it is in.
    """

    def __init__(self, *, documents: bool) -> None:
        self._documents = documents
        self._kind: type[Token] | None = None  # of all tokens; none yet
        self._counted: Counter[Any] = Counter()
        self._pending = PendingTexts()
        self._document_counts: Counter[Any] = Counter()
        self._num_documents = 0

    def __len__(self) -> int:
        """Return the number of distinct tokens."""
        return len(self._counts)

    @property
    def num_tokens(self) -> int:
        """Tokens seen, each time that they occurred."""
        return self._counts.total()

    @property
    def num_documents(self) -> int:
        """Documents seen, empty ones included; 0 without ``documents``."""
        return self._num_documents

    def update(self, examples: TokenIterable | Documents) -> None:
        """Add tokens, or with ``documents`` documents, each a collection of tokens.

        Arrays of integers are welcome: of any shape, or with ``documents`` one document a row.
        """
        if isinstance(examples, str):
            raise TypeError(
                f"TokenCounts take a list of tokens; got one string of {len(examples)} characters. "
                "Put it into a list."
            )
        if isinstance(examples, np.ndarray) and examples.dtype.kind not in "iu":
            raise TypeError(
                f"TokenCounts take arrays of integers; got {examples.dtype} of shape "
                f"{examples.shape}. Lists of strings come from its tolist()."
            )
        num_known = len(self._counted)
        try:
            if self._documents:
                self._add_documents(examples)
            elif isinstance(examples, np.ndarray):
                tokens, counts = np.unique(examples, return_counts=True)
                self._counted.update(dict(zip(tokens.tolist(), counts.tolist(), strict=True)))
            else:
                self._counted.update(iter(examples))
        finally:
            # Only tokens that were not there before need a look: a dict keeps their order.
            self._check(list(islice(reversed(self._counted), len(self._counted) - num_known)))

    def update_rows(self, rows: Iterable[Collection[str]]) -> None:
        """Add rows of texts, as many as each has; with ``documents`` each is a document."""
        if self._documents:
            self.update(rows)
        elif not self.update_texts(texts := list(chain.from_iterable(rows))):
            self.update(texts)

    def update_texts(self, texts: list[Any] | PackedStrings) -> bool:
        """Add tokens, faster than :meth:`update` does; False, and none is added, if it cannot be.

        Whatever is a ``str`` is taken, one of a subclass too; a copy is made of packed strings.
        """
        if self._documents or self._kind is int:
            return False
        pending = self._pending
        if isinstance(texts, PackedStrings):
            is_added = pending.add_packed(texts)
        else:
            is_added = pending.add(texts)
        if not is_added:
            return False
        self._kind = str
        if self._pending.is_full:
            self._count_pending()
        return True

    def merge(self, other: TokenCounts) -> None:
        """Add all that ``other`` has seen; ``other`` stays as it is."""
        if other._documents != self._documents:
            raise ValueError(
                f"TokenCounts with documents={self._documents} cannot take those with "
                f"documents={other._documents}: merge states of the same layer."
            )
        if other._kind is not None:
            self._set_kind(other._kind)
        self._counts.update(other._counts)
        self._document_counts.update(other._document_counts)
        self._num_documents += other._num_documents

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return counts in the order of the tokens: their bytes and ends, or their integers."""
        tokens = sorted(self._counts, key=_choose_sort_key(self._kind))
        encoded = list(map(_to_bytes, tokens)) if self._kind is str else []
        return {
            "bytes": np.frombuffer(b"".join(encoded), np.uint8),
            "ends": np.cumsum(_to_int64(map(len, encoded))),
            "integers": _to_int64(tokens if self._kind is int else ()),
            "counts": _to_int64(map(self._counts.__getitem__, tokens)),
            "document_counts": self._get_document_counts(tokens),
            "num_documents": np.array(self._num_documents, np.int64),
            "documents": np.array(self._documents),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TokenCounts:
        """Build the state that ``to_arrays`` described."""
        state = cls(documents=bool(arrays["documents"]))
        state._num_documents = int(arrays["num_documents"])
        tokens: list[Any] = arrays["integers"].tolist()
        if len(arrays["ends"]):
            blob, ends = arrays["bytes"].tobytes(), arrays["ends"].tolist()
            pieces = (blob[i:j] for i, j in zip([0, *ends], ends, strict=False))
            tokens = [piece.decode("utf-8", "surrogateescape") for piece in pieces]
        if tokens:
            state._kind = type(tokens[0])
        state._counts.update(dict(zip(tokens, arrays["counts"].tolist(), strict=True)))
        if state._documents:
            counts = arrays["document_counts"].tolist()
            state._document_counts.update(dict(zip(tokens, counts, strict=True)))
        return state

    def __reduce__(self) -> tuple[object, ...]:
        return TokenCounts.from_arrays, (self.to_arrays(),)

    def finalize(self, max_tokens: int | None = None) -> tuple[list[Any], NDArray[np.int64]]:
        """Return tokens, the most frequent first, and their document counts.

        Of tokens that are equally frequent the one with the greater bytes (or integer) is first.
        The document counts are empty without ``documents``.
        """
        tokens = self._rank(max_tokens)
        return tokens, self._get_document_counts(tokens)

    def top(self, max_tokens: int | None) -> TokenCounts:
        """Return the counts of the tokens of ``finalize(max_tokens)`` alone.

        Merge it only with states that have no token in common with this one, such as the parts
        of ``partition``: what was left out is forgotten.
        """
        return self._choose(self._rank(max_tokens), num_documents=self._num_documents)

    def without(self, tokens: Collection[Token]) -> TokenCounts:
        """Return the counts of all other tokens."""
        rest = [token for token in self._counts if token not in tokens]
        return self._choose(rest, num_documents=self._num_documents)

    def partition(self, num_parts: int) -> list[TokenCounts]:
        """Return states that merge to this one; where a token goes, its bytes alone decide.

        The first part has the number of documents.
        """
        if num_parts < 1:
            raise ValueError(f"TokenCounts need at least one part; got num_parts={num_parts}.")
        chosen: list[list[Token]] = [[] for _ in range(num_parts)]
        to_bytes = _to_bytes if self._kind is str else _int_to_bytes
        for token in self._counts:
            chosen[zlib.crc32(to_bytes(token)) % num_parts].append(token)
        return [
            self._choose(tokens, num_documents=0 if i else self._num_documents)
            for i, tokens in enumerate(chosen)
        ]

    @property
    def _counts(self) -> Counter[Any]:
        """The counts of all tokens."""
        self._count_pending()
        return self._counted

    def _count_pending(self) -> None:
        for tokens, counts in self._pending.take_counts():
            if self._counted:
                self._counted.update(dict(zip(tokens, counts, strict=True)))
            else:  # as above, without a dict between
                dict.update(self._counted, zip(tokens, counts, strict=True))

    def _add_documents(self, documents: Any) -> None:
        rows = documents.tolist() if isinstance(documents, np.ndarray) else list(documents)
        if not all(hasattr(kind, "__len__") and kind is not str for kind in set(map(type, rows))):
            wrong = next(row for row in rows if isinstance(row, str) or not hasattr(row, "__len__"))
            raise TypeError(
                f"TokenCounts with documents=True take lists of tokens; got the document "
                f"{wrong!r}. Put its tokens into a list."
            )
        self._counted.update(chain.from_iterable(rows))
        self._document_counts.update(chain.from_iterable(map(set, rows)))
        self._num_documents += len(rows)

    def _check(self, new: list[Any]) -> None:
        """Accept tokens not seen before."""
        for kind in set(map(type, new)):
            if kind is not str and kind is not int:
                raise TypeError(
                    f"TokenCounts take tokens that are str or int; got {kind.__qualname__}. "
                    "Convert them first: numpy's tolist(), or bytes.decode()."
                )
            self._set_kind(kind)
        if self._kind is str:
            _check_encoding(new)
        elif new and not _INT64.min <= min(new) <= max(new) <= _INT64.max:
            wrong = next(token for token in new if not _INT64.min <= token <= _INT64.max)
            raise ValueError(f"TokenCounts take integers of 64 bits; got {wrong}. Pass it as str.")

    def _set_kind(self, kind: type[Token]) -> None:
        if self._kind not in {None, kind}:
            raise TypeError(
                "TokenCounts take tokens that are all str or all int; got both. Convert one kind."
            )
        self._kind = kind

    def _rank(self, max_tokens: int | None) -> list[Any]:
        tokens = list(self._counts)
        if max_tokens is not None and max_tokens < len(tokens):
            if max_tokens < 1:
                return []
            # Only those that are as frequent as the last one kept need to be sorted.
            counts = np.fromiter(self._counts.values(), np.int64, len(tokens))
            least = int(np.partition(counts, -max_tokens)[-max_tokens])
            tokens = [token for token, count in self._counts.items() if count >= least]
        tokens.sort(key=_choose_sort_key(self._kind), reverse=True)
        tokens.sort(key=self._counts.__getitem__, reverse=True)  # equals stay in their order
        return tokens[:max_tokens]

    def _choose(self, tokens: Sequence[Token], *, num_documents: int) -> TokenCounts:
        state = TokenCounts(documents=self._documents)
        state._num_documents = num_documents
        state._kind = self._kind if tokens else None
        state._counts.update({token: self._counts[token] for token in tokens})
        if self._documents:
            state._document_counts.update({token: self._document_counts[token] for token in tokens})
        return state

    def _get_document_counts(self, tokens: Sequence[Token]) -> NDArray[np.int64]:
        return _to_int64(map(self._document_counts.__getitem__, tokens if self._documents else ()))


def _to_bytes(token: Any) -> bytes:
    return str.encode(token, "utf-8", "surrogateescape")


def _int_to_bytes(token: Any) -> bytes:
    return int.to_bytes(token, 8, "little", signed=True)


def _choose_sort_key(kind: type[Token] | None) -> Any:
    """Bytes, since a str with escaped bytes sorts differently; None for integers."""
    return _to_bytes if kind is str else None


def _to_int64(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(numbers, np.int64)


def _check_encoding(tokens: list[str]) -> None:
    """Refuse what has no bytes, and what has the bytes of another token."""
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        for token in _find_ambiguous(tokens):
            raise ValueError(
                f"TokenCounts take strings that UTF-8 can encode, with surrogateescape for other "
                f"bytes; got {token!r}. Decode it from its bytes with errors='surrogateescape'."
            ) from None


def _find_ambiguous(tokens: list[str]) -> Iterator[str]:
    """Strings that do not come back from their bytes."""
    for token in tokens:
        try:
            back = _to_bytes(token).decode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            back = None
        if back != token:
            yield token
