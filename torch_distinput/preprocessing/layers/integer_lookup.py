"""Integers as indices into a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from torch_distinput.preprocessing.columns.tensors import Takes, to_integers, to_numbers
from torch_distinput.preprocessing.layers.index_layout import IndexLayout
from torch_distinput.preprocessing.layers.lookup import Lookup, check_flat
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.hashes.decimal_text import decimal_text
from torch_distinput.preprocessing.strings.oov_slots import choose_slots, parse_salt
from torch_distinput.preprocessing.vocabulary.sorted_table import (
    ABSENT,
    MASKED,
    NOT_FOUND,
    SortedTable,
)
from torch_distinput.preprocessing.vocabulary.vocabulary import IntegerVocabulary

_OOV_METHODS = ("floormod", "farmhash")


@final
class IntegerLookup(Lookup):
    """The index of each integer in a vocabulary (``keras.layers.IntegerLookup``).

    As :class:`~torch_distinput.preprocessing.StringLookup`, for integers of any shape; those of one
    count are ordered by value, descending. Floats are looked up by their value: a fraction is no
    token, and NaN is what None is.

    Args:
        max_tokens: the most indices, special ones included; None for any number.
        num_oov_indices: slots for integers that are no token; 0 refuses them.
        mask_token: the integer that stands for nothing.
        oov_token: what ``invert`` gives for a slot.
        vocabulary: the tokens.
        idf_weights: the weight of each token, for a given vocabulary with ``"tf_idf"``.
        invert: indices in, integers out.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"``, ``"count"`` or ``"tf_idf"``.
        pad_to_max_tokens: make vectors ``max_tokens`` long.
        oov_method: how a slot is chosen: ``"floormod"``, the remainder, or ``"farmhash"``, the hash
            of the decimal text.
        salt: one or two integers that key the hash (SipHash) for ``"farmhash"``.
        missing: None or NaN is refused (``"error"``), or taken as the mask (``"mask"``) or
            as an integer that is no token, in the first slot (``"oov"``).
    """

    state_types: Mapping[str, torch.dtype] = {"vocabulary": torch.int64, "idf": torch.float32}
    vocabulary: torch.Tensor | None

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Sequence[int] | None = None,
        *,
        idf_weights: Sequence[float] | None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: int | Sequence[int] | None = None,
        missing: str = "error",
    ) -> None:
        """See the class."""
        if oov_method not in _OOV_METHODS:
            msg = f"Expected oov_method to be one of {_OOV_METHODS}, got {oov_method!r}."
            raise ValueError(msg)
        if salt is not None and oov_method == "floormod":
            msg = f"salt keys a hash and needs oov_method='farmhash', got salt={salt!r} alone."
            raise ValueError(msg)
        self.oov_method = oov_method
        self.salt = parse_salt(salt)
        layout = IndexLayout(
            kind=int,
            max_tokens=max_tokens,
            num_oov_indices=num_oov_indices,
            mask_token=mask_token,
            oov_token=oov_token,
            output_mode=output_mode,
            invert=invert,
            pad_to_max_tokens=pad_to_max_tokens,
            missing=missing,
        )
        super().__init__(layout, IntegerVocabulary.of, oov_method=oov_method, salt=self.salt)
        self._give(None if vocabulary is None else self._flatten_tokens(vocabulary), idf_weights)

    @property
    def takes(self) -> Takes:
        """Integers; what is missing among them is NaN, if anything may be missing."""
        may_lack = self.layout.missing != "error" and not self.layout.invert
        return "integers or NaN" if may_lack else "integers"

    def forward(self, inputs: Any) -> torch.Tensor:
        """Look integers up; with ``invert`` find the integers of indices."""
        if self.layout.invert:
            return self._invert(to_integers(inputs, self))
        given, absent = to_numbers(inputs, self)
        keys, places = self.need("keys"), self.need("places")
        values = self._truncate(given)
        found = SortedTable(keys, places).find(values)
        if self.layout.mask_token is not None:
            found = torch.where(values == self.layout.mask_token, MASKED, found)
        if given.is_floating_point():
            found = torch.where(given == values, found, NOT_FOUND)
        if absent is not None:
            found = torch.where(absent, ABSENT, found)
        indices = self.layout.index(
            found, lambda: self._choose_slots(values), lambda: self._explain(given, found)
        )
        return self.encode(indices)

    def _flatten_tokens(self, vocabulary: Sequence[int]) -> list[int]:
        given = to_integers(vocabulary, self)
        check_flat(vocabulary, tuple(given.shape))
        return given.tolist()

    def _truncate(self, given: torch.Tensor) -> torch.Tensor:
        """Cut fractions off; what int64 cannot hold is 0, so that it is so on every machine."""
        if not given.is_floating_point():
            return given
        is_held = (given >= -(2.0**63)) & (given < 2.0**63)
        return torch.where(is_held, given, 0).to(torch.int64)

    def _choose_slots(self, values: torch.Tensor) -> torch.Tensor:
        num_slots = self.layout.num_oov_indices
        if self.oov_method == "floormod":
            return values.remainder(num_slots)
        data, lengths = decimal_text(values.reshape(-1))
        return choose_slots(data, lengths, num_slots, self.salt).reshape(values.shape)

    def _explain(self, given: torch.Tensor, found: torch.Tensor) -> str:
        if torch.compiler.is_compiling():  # there are no values yet
            return (
                f"{self.describe()} got NaN or None without missing='mask' or 'oov', or, with "
                "num_oov_indices=0, a number that is not in its vocabulary."
            )
        if self.layout.missing == "error" and bool((found == ABSENT).any()):
            return (
                f"{self.describe()} got NaN or None {int((found == ABSENT).sum())} times in "
                f"{found.numel()} numbers. Fill it in, or pass missing='mask' or missing='oov'."
            )
        return self._explain_unknown(given[found == NOT_FOUND][:6].tolist())

    def _invert(self, indices: torch.Tensor) -> torch.Tensor:
        tokens = self.need("vocabulary")
        by_index = torch.cat([tokens.new_tensor(self.layout.specials), tokens])
        inside = (indices >= 0) & (indices < by_index.shape[0])
        return torch.where(inside, by_index[indices * inside], self.layout.oov_token)

    def _count_tokens(self) -> int:
        return 0 if self.vocabulary is None else self.vocabulary.shape[0]

    def _list_tokens(self) -> list[int]:
        return [] if self.vocabulary is None else self.vocabulary.tolist()

    def _set_vocabulary(self, vocabulary: IntegerVocabulary) -> None:
        self.vocabulary, table = vocabulary
        self.keys, self.places = table.keys, table.places

    def _derive_vocabulary(
        self,
        before: Mapping[str, torch.Tensor | None],  # noqa: ARG002 - for lookups of strings
    ) -> IntegerVocabulary:
        return IntegerVocabulary.of(self.need("vocabulary"))

    def count(self, state: TokenCounts, column: Any) -> None:
        """Add integers ``(rows, ...)``; each row is a document."""
        given, absent = to_numbers(column, self)
        values = self._truncate(given)
        if absent is not None:
            if bool(((given != values) & ~absent).any()) or (
                self.layout.missing == "error" and bool(absent.any())
            ):
                msg = (
                    f"{self.describe()} adapts to integers, got a fraction, or NaN or None "
                    "without missing='mask' or 'oov'. Clean the column first."
                )
                raise ValueError(msg)
            # Counted as what is left out in the end: it is none of the tokens.
            values = torch.where(absent, self.layout.oov_token, values)
        num_rows = values.shape[0] if values.ndim else 1
        state.update(values.reshape(num_rows, math.prod(values.shape[1:])).cpu().numpy())
