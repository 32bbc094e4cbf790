"""Strings as indices into a vocabulary."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch

from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.columns.tensors import Takes
from torch_distinput.preprocessing.layers.index_layout import IndexLayout
from torch_distinput.preprocessing.layers.lookup import Learned, Lookup, flatten_tokens
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.byte_rows import MISSING, to_bytes
from torch_distinput.preprocessing.strings.hashes.token_hash import (
    prefix_sums,
    span_hash,
    token_hash,
)
from torch_distinput.preprocessing.strings.oov_slots import choose_slots, parse_salt
from torch_distinput.preprocessing.strings.packed import (
    PaddedStrings,
    apply_in_blocks,
    apply_to_packed,
    apply_to_rows,
    find_packed,
    flatten_strings,
    join_strings,
    nest,
    unbox_array,
    unpack_strings,
)
from torch_distinput.preprocessing.strings.text_graph import Spans
from torch_distinput.preprocessing.vocabulary.sorted_table import (
    ABSENT,
    MASKED,
    NOT_FOUND,
    Directory,
    SortedTable,
)
from torch_distinput.preprocessing.vocabulary.vocabulary import (
    StringVocabulary,
    TokenDict,
    Tokens,
    VocabularyOrigin,
    hash_tokens,
    index_tokens,
)
from torch_distinput.preprocessing.vocabulary.vocabulary_file import (
    open_vocabulary,
    reopen_vocabulary,
)

_MAPPED = ("text", "ends", "keys", "places", "starts")
LARGE_VOCABULARY = 1 << 20
"""From so many tokens on there is no dict of them: strings are found by their hash, in memory that
all processes of a machine share where the vocabulary came from a file."""

MANY_TOKENS, MANY_STRINGS = 1 << 15, 1 << 12
"""So many strings at once are found by their hash among so many tokens, too: a dict waits for
memory at each of them, tensor code for all together, but takes a third of a millisecond to begin.
"""


class _TableNumbers(NamedTuple):
    """What there is of a table beside its tensors; constants in a graph."""

    seed: int = 0
    num_steps: int = 0
    mask_hash: int = 0


@final
class StringLookup(Lookup):
    """The index of each string in a vocabulary (``keras.layers.StringLookup``).

    Takes strings of any shape, packed ones, or :func:`pack_strings` of them; gives int64 of the
    same shape with ``output_mode="int"``. ``"one_hot"``, ``"multi_hot"`` and ``"count"`` give int64
    vectors (:func:`~torch_distinput.preprocessing.layers.encoding.encode`), ``"tf_idf"`` float32.

    With ``"int"`` index 0 is the mask if there is a ``mask_token``; then come the
    ``num_oov_indices`` slots for strings that are no token; then the tokens. In other modes the
    mask has no index. :meth:`adapt` orders tokens by count, descending, and those of one count by
    their UTF-8 bytes, descending.

    Args:
        max_tokens: the most indices, special ones included; None for any number.
        num_oov_indices: slots for strings that are no token, chosen by hash; 0 refuses them.
        mask_token: the string that stands for nothing.
        oov_token: what ``invert`` gives for a slot.
        vocabulary: the tokens, or the path or URL of a file with one in each line
            (:func:`~torch_distinput.preprocessing.vocabulary.vocabulary_file.open_vocabulary`).
        idf_weights: the weight of each token, for a given vocabulary with ``"tf_idf"``.
        invert: indices in, strings out, in lists nested as the indices are.
        output_mode: see above.
        pad_to_max_tokens: make vectors ``max_tokens`` long.
        salt: one or two integers that key the hash (SipHash) which chooses slots.
        missing: None is refused (``"error"``), or taken as the mask (``"mask"``) or as a string
            that is no token, in the first slot (``"oov"``).
        storage_options: of fsspec, for a vocabulary in a file.
    """

    state_types: Mapping[str, torch.dtype] = {
        "text": torch.uint8,
        "ends": torch.int64,
        "idf": torch.float32,
    }
    text: torch.Tensor | None
    ends: torch.Tensor | None
    starts: torch.Tensor | None

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",  # noqa: S107 - a word, and no password
        vocabulary: Sequence[str | bytes] | str | os.PathLike[str] | None = None,
        *,
        idf_weights: Sequence[float] | None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        salt: int | Sequence[int] | None = None,
        missing: str = "error",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """See the class."""
        self.salt = parse_salt(salt)
        layout = IndexLayout(
            kind=str,
            max_tokens=max_tokens,
            num_oov_indices=num_oov_indices,
            mask_token=mask_token,
            oov_token=oov_token,
            output_mode=output_mode,
            invert=invert,
            pad_to_max_tokens=pad_to_max_tokens,
            missing=missing,
        )
        super().__init__(layout, StringVocabulary.of, salt=self.salt)
        self.register_buffer("starts", None, persistent=False)  # of the table's directory
        self._numbers = _TableNumbers()
        self._dict: TokenDict | None = None
        self._origin: VocabularyOrigin | None = None
        if isinstance(vocabulary, (str, os.PathLike)):
            self._map_file(os.fspath(vocabulary), storage_options or {}, idf_weights)
        else:
            self._give(None if vocabulary is None else flatten_tokens(vocabulary), idf_weights)

    @property
    def takes(self) -> Takes:
        """Strings, or the indices of some."""
        return "any" if self.layout.invert else "strings"

    def forward(self, inputs: Any) -> Any:
        """Look strings up; with ``invert`` find the strings of indices."""
        return self._invert(inputs) if self.layout.invert else self.encode(self.look_up(inputs))

    def look_up(self, inputs: Any) -> torch.Tensor:
        """The index of each string, not yet encoded; int64 of their shape.

        Of parts of packed rows (:class:`Spans`), what is no token goes to the first slot.
        """
        self.need("ends")
        if isinstance(inputs, PaddedStrings):
            return self._index_padded(inputs)
        if isinstance(inputs, Spans):
            sums = prefix_sums(inputs.data, self._numbers.seed)
            hashed = span_hash(sums, inputs.starts, inputs.ends, self._numbers.seed)
            found = self._find(hashed)
            return self.layout.index(found, lambda: torch.zeros_like(found), self._explain_graph)
        if (column := find_packed(inputs)) is not None:
            try:
                return apply_to_packed(column, self._index_padded)
            except ValueError:  # said of a block; for all of them, as of lists
                return self.look_up(column.to_nested())
        num_tokens, inputs = self._count_tokens(), unbox_array(inputs)
        if num_tokens >= LARGE_VOCABULARY:
            return apply_to_rows(*join_strings(inputs), self._index_padded)
        is_many = num_tokens >= MANY_TOKENS and type(inputs) is list
        if is_many and len(inputs) >= MANY_STRINGS:
            with contextlib.suppress(ValueError):  # said of a block; below, of all
                return apply_to_rows(*join_strings(inputs), self._index_padded)
        return self._index_host(inputs)

    def _index_host(self, inputs: Any) -> torch.Tensor:
        flat, shape, places = self._find_host(inputs)
        out = torch.from_numpy(places + self.layout.first_token)
        special = np.flatnonzero(places < 0)
        if len(special):  # a few, most often
            found = torch.from_numpy(places[special])

            def choose() -> torch.Tensor:
                slots = torch.zeros_like(found)
                lost = found == NOT_FOUND
                strings = [flat[place] for place in special[lost.numpy()].tolist()]
                slots[lost] = apply_in_blocks(flatten_strings(strings), self._choose_slots)
                return slots

            out[special] = self.layout.index(found, choose, lambda: self._explain(flat, places))
        return out.reshape(shape)

    def _find_host(self, inputs: Any) -> tuple[list[Any], tuple[int, ...], np.ndarray]:
        """The strings, flat, their shape, and their places."""
        tokens = self._make_tokens()
        if self._dict is None or not self._dict.is_of(tokens):
            self._dict = TokenDict(tokens, self.layout.mask_token)
        return self._dict.find_nested(inputs)

    def _index_padded(self, inputs: PaddedStrings) -> torch.Tensor:
        data, lengths = inputs.rows()
        found = self._find(token_hash(data, lengths, self._numbers.seed))
        found = torch.where(lengths == MISSING, ABSENT, found)

        def explain() -> str:
            if torch.compiler.is_compiling():
                return self._explain_graph()
            flat = unpack_strings(PaddedStrings(data, lengths))
            return self._explain(flat, found.cpu().numpy())

        chosen = self.layout.index(found, lambda: self._choose_slots(inputs), explain)
        return chosen.reshape(inputs.lengths.shape)

    def _choose_slots(self, strings: PaddedStrings) -> torch.Tensor:
        return choose_slots(*strings.rows(), self.layout.num_oov_indices, self.salt)

    def _find(self, hashed: torch.Tensor) -> torch.Tensor:
        found = self._make_table().find(hashed)
        if self.layout.mask_token is not None:
            found = torch.where(hashed == self._numbers.mask_hash, MASKED, found)
        return found

    def _make_tokens(self) -> Tokens:
        return Tokens(self.need("text"), self.need("ends"))

    def _make_table(self) -> SortedTable:
        seed, num_steps, _ = self._numbers
        directory = None if self.starts is None else Directory(self.starts, num_steps)
        return SortedTable(self.need("keys"), self.need("places"), seed, directory)

    def _explain(self, flat: Sequence[Any], places: np.ndarray) -> str:
        """Say which values are refused."""
        if (places == ABSENT).any():
            return (
                f"{self.describe()} got None {int((places == ABSENT).sum())} times in {len(flat)} "
                "strings. Fill it in, or pass missing='mask' or missing='oov'."
            )
        lost = np.flatnonzero(places == NOT_FOUND)[:6]
        return self._explain_unknown([flat[place] for place in lost])

    def _explain_graph(self) -> str:
        """Say the same where there are no values yet."""
        lost = "or with num_oov_indices=0 what is no token of its vocabulary."
        return f"{self.describe()} got None, {lost}"

    def _invert(self, inputs: Any) -> Any:
        tokens = self._make_tokens()
        first, size = self.layout.first_token, self.vocabulary_size()
        specials = [*self.layout.specials, self.layout.oov_token]
        indices = torch.as_tensor(inputs)
        flat = indices.reshape(-1).tolist()
        found = {
            index: tokens.at(index - first)
            if first <= index < size
            else specials[index if 0 <= index < first else -1]
            for index in set(flat)
        }
        return nest([found[index] for index in flat], tuple(indices.shape))

    def _count_tokens(self) -> int:
        return 0 if self.ends is None else self.ends.shape[0]

    def _list_tokens(self) -> list[str]:
        return [] if self.ends is None else self._make_tokens().strings()

    def _set_vocabulary(self, vocabulary: StringVocabulary) -> None:
        (self.text, self.ends), table, self._origin = vocabulary
        self.keys, self.places, seed, directory = table
        self.starts, num_steps = directory or (None, 0)
        mask = self.layout.mask_token
        mask_hash = 0 if mask is None else int(hash_tokens(Tokens.of([to_bytes(mask)]), seed))
        self._numbers, self._dict = _TableNumbers(seed, num_steps, mask_hash), None

    def _derive_vocabulary(self, before: Mapping[str, torch.Tensor | None]) -> StringVocabulary:
        """Hash the tokens; what is mapped stays so where they are the same."""
        loaded = self._make_tokens()
        text, ends = before["text"], before["ends"]
        if self._origin is not None and text is not None and ends is not None:
            mapped = Tokens(text, ends)
            if all(map(torch.equal, mapped, loaded)):
                return StringVocabulary(mapped, self._make_table(), self._origin)
        return index_tokens(Tokens(*(tensor.cpu() for tensor in loaded)))

    def _map_file(
        self, url: str, storage_options: Mapping[str, Any], idf_weights: Sequence[float] | None
    ) -> None:
        """Adopt a vocabulary in a file."""
        vocabulary = open_vocabulary(url, storage_options)
        num_tokens = len(vocabulary.tokens.ends)
        self.layout.check_room(num_tokens)
        idf = self.layout.parse_weights(idf_weights, num_tokens)
        self.layout.check_first(vocabulary.tokens.at(0))
        for token in self.layout.forbidden:
            wanted = hash_tokens(Tokens.of([to_bytes(token)]), vocabulary.table.seed)
            if int(vocabulary.table.find(wanted)) != NOT_FOUND:
                self.layout.refuse(token)
        self.adopt(Learned(vocabulary, idf))
        self.is_given = True

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is mapped from a file: whoever unpickles this opens it again.

        Torch would copy the tensors into shared memory for each loader process that is spawned.
        """
        state = {**self.__dict__, "_dict": None}
        if self._origin is not None:
            state["_buffers"] = {**self._buffers, **dict.fromkeys(_MAPPED)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._origin is not None:
            self.adopt(Learned(reopen_vocabulary(self._origin), self.idf))

    def count(self, state: TokenCounts, column: Any) -> None:
        """Add strings ``(rows, ...)``; each row is a document."""
        packed = find_packed(column)
        plain = unbox_array(column) if packed is None else packed.strings
        if isinstance(plain, (list, PackedStrings)) and state.update_texts(plain):
            return
        found, shape, is_complete = flatten_strings(column)
        if not is_complete and self.layout.missing == "error":
            places = np.array([ABSENT if value is None else 0 for value in found])
            raise ValueError(self._explain(found, places))
        flat: list[Any] = found
        if not is_complete:  # None is counted as what is left out in the end: it is no token
            flat = [self.layout.oov_token if value is None else value for value in found]
        if self.layout.output_mode != "tf_idf":
            state.update(flat)
            return
        size = math.prod(shape[1:])
        num_rows = shape[0] if shape else 1
        state.update([flat[row * size : (row + 1) * size] for row in range(num_rows)])
