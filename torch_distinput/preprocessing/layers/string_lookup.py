"""Strings as indices into a vocabulary."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from torch_distinput.preprocessing.layers.lookup import NO_VOCABULARY, Lookup
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.hashes.token_hash import (
    prefix_sums,
    span_hash,
    token_hash,
)
from torch_distinput.preprocessing.strings.oov_slots import checked_salt, slots_of
from torch_distinput.preprocessing.strings.packed import (
    MISSING,
    PackedStrings,
    flattened,
    host_strings,
    in_blocks,
    listed,
    nested,
    to_bytes,
    unpack_strings,
)
from torch_distinput.preprocessing.strings.token_dict import TokenDict, given_tokens
from torch_distinput.preprocessing.strings.token_table import (
    ABSENT,
    MASKED,
    NOT_FOUND,
    Directory,
    SortedTable,
    Tokens,
    directory_of,
    hashed_table,
    hashes,
)
from torch_distinput.preprocessing.strings.vocabulary_file import (
    MappedVocabulary,
    Origin,
    open_vocabulary,
    reopened,
)

_MAPPED = ("text", "ends", "keys", "places", "starts")
LARGE = 1 << 20
"""From so many tokens on there is no dict of them: strings are found by their hash, in memory that
all processes of a machine share where the vocabulary came from a file."""


@final
class StringLookup(Lookup):
    """The index of each string in a vocabulary (``keras.layers.StringLookup``).

    Takes strings of any shape, or :func:`pack_strings` of them; gives int64 of the same shape with
    ``output_mode="int"``. ``"one_hot"``, ``"multi_hot"`` and ``"count"`` give int64 vectors
    (:func:`~torch_distinput.preprocessing.layers.encoding.encoded`), ``"tf_idf"`` float32 ones.

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
            (:func:`~torch_distinput.preprocessing.strings.vocabulary_file.open_vocabulary`).
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
        self.salt = checked_salt(salt)
        super().__init__(
            str,
            max_tokens=max_tokens,
            num_oov_indices=num_oov_indices,
            mask_token=mask_token,
            oov_token=oov_token,
            output_mode=output_mode,
            invert=invert,
            pad_to_max_tokens=pad_to_max_tokens,
            missing=missing,
            salt=self.salt,
        )
        self.register_buffer("starts", None, persistent=False)  # of the table's directory
        self._seed = self._mask_hash = self._num_steps = 0
        self._dict: TokenDict | None = None
        self._mapped: Origin | None = None
        if isinstance(vocabulary, (str, os.PathLike)):
            self._open(os.fspath(vocabulary), storage_options or {}, idf_weights)
        elif vocabulary is not None:
            self.give(given_tokens(vocabulary), idf_weights)
        elif idf_weights is not None:
            raise ValueError(NO_VOCABULARY)

    def forward(self, inputs: Any) -> Any:
        """Look strings up; with ``invert`` find the strings of indices."""
        if self.invert:
            return self._inverted(inputs)
        return self.encode(self.look_up(inputs))

    def look_up(self, inputs: Any) -> torch.Tensor:
        """The index of each string, not yet encoded."""
        if isinstance(inputs, PackedStrings):
            return self._packed_indices(inputs)
        return self._host_indices(inputs)

    def look_up_spans(
        self, data: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        """The index of each part of packed rows, int64 ``(rows, parts)``.

        What is no token goes to the first slot.
        """
        found = self._found(span_hash(prefix_sums(data, self._seed), starts, ends, self._seed))
        return self.indices(found, lambda: torch.zeros_like(found), self.lost_or_absent)

    def _host_indices(self, inputs: Any) -> torch.Tensor:
        self.need("ends")
        if self.num_tokens() >= LARGE:
            return in_blocks(host_strings(inputs), self._packed_indices)
        flat, shape, places = self._host_places(inputs)
        out = torch.from_numpy(places + self.layout.first_token)
        special = np.flatnonzero(places < 0)
        if len(special):  # a few, most often
            found = torch.from_numpy(places[special])

            def slots() -> torch.Tensor:
                slots = torch.zeros_like(found)
                lost = found == NOT_FOUND
                strings = [flat[place] for place in special[lost.numpy()].tolist()]
                slots[lost] = in_blocks(host_strings(strings), self._slots)
                return slots

            out[special] = self.indices(found, slots, lambda: self._refusal(flat, places))
        return out.reshape(shape)

    def _host_places(self, inputs: Any) -> tuple[list[Any], tuple[int, ...], np.ndarray]:
        """The strings, flat, their shape, and their places."""
        inputs = listed(inputs)
        if type(inputs) is list:
            # To look at the type of each would take longer than this, which fails for lists.
            with contextlib.suppress(TypeError):
                return inputs, (len(inputs),), self._places_of(inputs)
        flat, shape = flattened(inputs)
        return flat, shape, self._places_of(flat)

    def _places_of(self, flat: Sequence[Any]) -> np.ndarray:
        tokens = Tokens(self.need("text"), self.need("ends"))
        if self._dict is None or not self._dict.is_of(tokens):
            self._dict = TokenDict(tokens, self.layout.mask_token)
        return self._dict.places_of(flat)

    def _refusal(self, flat: Sequence[Any], places: np.ndarray) -> str:
        if (places == ABSENT).any():
            return (
                f"{self.described()} got None {int((places == ABSENT).sum())} times in {len(flat)} "
                "strings. Fill it in, or pass missing='mask' or missing='oov'."
            )
        return self.unknown([flat[place] for place in np.flatnonzero(places == NOT_FOUND)[:6]])

    def _packed_indices(self, inputs: PackedStrings) -> torch.Tensor:
        self.need("ends")
        data, lengths = inputs.rows()
        found = self._found(token_hash(data, lengths, self._seed))
        found = torch.where(lengths == MISSING, ABSENT, found)
        chosen = self.indices(
            found,
            lambda: self._slots(inputs),
            lambda: self._packed_refusal(inputs, found),
        )
        return chosen.reshape(inputs.lengths.shape)

    def _slots(self, strings: PackedStrings) -> torch.Tensor:
        return slots_of(*strings.rows(), self.layout.num_oov_indices, self.salt)

    def _found(self, hashed: torch.Tensor) -> torch.Tensor:
        directory = None if self.starts is None else Directory(self.starts, self._num_steps)
        table = SortedTable(self.need("keys"), self.need("places"), self._seed, directory)
        found = table.find(hashed)
        if self.layout.mask_token is not None:
            found = torch.where(hashed == self._mask_hash, MASKED, found)
        return found

    def _packed_refusal(self, inputs: PackedStrings, found: torch.Tensor) -> str:
        if torch.compiler.is_compiling():  # there are no values yet
            return self.lost_or_absent()
        flat = unpack_strings(PackedStrings(*inputs.rows()))
        return self._refusal(flat, found.cpu().numpy())

    def _inverted(self, inputs: Any) -> Any:
        self.need("ends")
        indices = torch.as_tensor(inputs)
        flat = indices.reshape(-1).tolist()
        tokens = {index: self._token_at(index) for index in set(flat)}
        return nested([tokens[index] for index in flat], tuple(indices.shape))

    def _token_at(self, index: int) -> str:
        first = self.layout.first_token
        if first <= index < self.vocabulary_size():
            return Tokens(self.need("text"), self.need("ends")).at(index - first)
        is_mask = index == 0 and self.layout.masks
        return str(self.layout.mask_token if is_mask else self.layout.oov_token)

    def num_tokens(self) -> int:
        """Tokens of the vocabulary, without special ones."""
        return 0 if self.ends is None else self.ends.shape[0]

    def tokens(self) -> list[str]:
        """Tokens of the vocabulary in order, without special ones."""
        if self.text is None or self.ends is None:
            return []
        return Tokens(self.text, self.ends).strings()

    def prepared(self, tokens: Sequence[str]) -> tuple[Tokens, SortedTable]:
        """Return tokens one behind the other, and the table of their hashes."""
        joined = Tokens.of([to_bytes(token) for token in tokens])
        return joined, hashed_table(joined)

    def hold(self, prepared: tuple[Tokens, SortedTable]) -> None:
        """Take over a vocabulary."""
        self._mapped = None
        (self.text, self.ends), table = prepared
        self._take_table(table)

    def derive(self) -> None:
        """Derive the table of hashes."""
        self._mapped = None
        if self.text is not None and self.ends is not None:
            self._take_table(hashed_table(Tokens(self.text.cpu(), self.ends.cpu())))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Take over a state; what is mapped stays so where the tokens are the same."""
        origin, before = self._mapped, {**self._buffers}
        super()._load_from_state_dict(*args, **kwargs)
        if origin is None:
            return
        pairs = [(before[name], self.get_buffer(name)) for name in ("text", "ends")]
        if all(old is not None and torch.equal(old, new) for old, new in pairs):
            self._mapped = origin
            self._buffers.update({name: before[name] for name in _MAPPED})

    def _take_table(self, table: SortedTable) -> None:
        device = self.need("ends").device
        self.keys, self.places = table.keys.to(device), table.places.to(device)
        directory = directory_of(table.keys)
        if directory is None:
            self.starts = None
        else:
            self.starts, self._num_steps = directory.starts.to(device), directory.num_steps
        self._seed, self._dict = table.seed, None
        if self.layout.mask_token is not None:
            mask = Tokens.of([to_bytes(self.layout.mask_token)])
            self._mask_hash = int(hashes(mask, table.seed))

    def _open(
        self, url: str, storage_options: Mapping[str, Any], idf_weights: Sequence[float] | None
    ) -> None:
        """Map a vocabulary's file to memory."""
        vocabulary = open_vocabulary(url, storage_options)
        self.layout.check_room(len(vocabulary.tokens.ends))
        self.weigh(len(vocabulary.tokens.ends), idf_weights)
        self.layout.check_first(vocabulary.tokens.at(0))
        for token in self.layout.forbidden:
            wanted = hashes(Tokens.of([to_bytes(token)]), vocabulary.table.seed)
            if int(vocabulary.table.find(wanted)) != NOT_FOUND:
                self.layout.refuse(token)
        self.map_tokens(vocabulary)
        self.is_given = True

    def map_tokens(self, vocabulary: MappedVocabulary) -> None:
        """Take over a vocabulary that is mapped to memory."""
        self._mapped = vocabulary.origin
        self.text, self.ends = vocabulary.tokens
        self._take_table(vocabulary.table)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is mapped from a file: whoever unpickles this opens it again.

        Torch would copy the tensors into shared memory for each loader process that is spawned.
        """
        state = {**self.__dict__, "_dict": None}
        if self._mapped is not None:
            state["_buffers"] = {**self._buffers, **dict.fromkeys(_MAPPED)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._mapped is not None:
            self.map_tokens(reopened(self._mapped))
            self.to(self.device)

    def count(self, state: TokenCounts, column: Any) -> None:
        """Add strings ``(rows, ...)``; each row is a document."""
        found, shape, is_complete = host_strings(column)
        if not is_complete and self.missing == "error":
            places = np.array([ABSENT if value is None else 0 for value in found])
            raise ValueError(self._refusal(found, places))
        flat: list[Any] = found
        if not is_complete:  # None is counted as what is left out in the end: it is no token
            flat = [self.layout.oov_token if value is None else value for value in found]
        if self.output_mode != "tf_idf":
            state.update(flat)
            return
        size = math.prod(shape[1:])
        num_rows = shape[0] if shape else 1
        state.update([flat[row * size : (row + 1) * size] for row in range(num_rows)])
