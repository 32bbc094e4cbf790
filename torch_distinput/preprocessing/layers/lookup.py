"""What both lookups share: from a token's place in the vocabulary to its index and encoding."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from torch_distinput.preprocessing.layers.encoding import NOWHERE, check_mode, encoded
from torch_distinput.preprocessing.layers.index_layout import IndexLayout
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, require
from torch_distinput.preprocessing.layers.tensors import check_missing
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.packed import shown
from torch_distinput.preprocessing.strings.token_table import ABSENT, MASKED, NOT_FOUND

LOOKUP_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
LOOKUP_MISSING = ("error", "mask", "oov")
NO_VOCABULARY = "idf_weights belong to a given vocabulary, got vocabulary=None. Pass both, or none."


def check_special(kind: type, *, mask_token: Any, oov_token: Any) -> None:
    """Refuse special tokens that are not of the kind that the others are."""
    for name, token in (("mask_token", mask_token), ("oov_token", oov_token)):
        if type(token) is not kind and not (name == "mask_token" and token is None):
            msg = f"{name} must be of type {kind.__name__}, got {token!r:.60}."
            raise TypeError(msg)


def check_flat(vocabulary: Any, shape: tuple[int, ...]) -> None:
    """Refuse a vocabulary that is no list of tokens."""
    if len(shape) != 1:
        msg = f"Expected a vocabulary as a flat list, got shape {shape}: {vocabulary!r:.60}."
        raise ValueError(msg)


class Lookup(AdaptiveLayer, ABC):
    """A vocabulary; places in it become indices."""

    state_called = "vocabulary"
    keys: torch.Tensor | None
    places: torch.Tensor | None
    idf: torch.Tensor | None

    def __init__(
        self,
        kind: type,
        *,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        output_mode: str,
        invert: bool,
        pad_to_max_tokens: bool,
        missing: str,
        **config: Any,
    ) -> None:
        """Lay out the indices of tokens of a kind, and check what does not fit together."""
        check_special(kind, mask_token=mask_token, oov_token=oov_token)
        self.layout = layout = IndexLayout(
            mask_token=mask_token,
            oov_token=oov_token,
            num_oov_indices=num_oov_indices,
            max_tokens=max_tokens,
            masks=mask_token is not None and output_mode == "int",
            inverts=invert,
        )
        self.output_mode = check_mode(output_mode, LOOKUP_MODES)
        self.invert = invert
        self.pad_to_max_tokens = pad_to_max_tokens
        self.missing = check_missing(missing, LOOKUP_MISSING)
        super().__init__(
            max_tokens=layout.max_tokens,
            num_oov_indices=layout.num_oov_indices,
            mask_token=layout.mask_token,
            oov_token=layout.oov_token,
            output_mode=output_mode,
            invert=invert,
            pad_to_max_tokens=pad_to_max_tokens,
            missing=missing,
            **config,
        )
        self._mean_weight = 0.0
        if output_mode != "tf_idf":
            self.optional_state = frozenset({"idf"})
        for name in ("keys", "places"):  # what the vocabulary says, in another order
            self.register_buffer(name, None, persistent=False)
        self._check_together()

    def _check_together(self) -> None:
        if self.invert and self.output_mode != "int":
            msg = f"invert=True needs output_mode='int', got {self.output_mode!r}."
            raise ValueError(msg)
        if self.pad_to_max_tokens and self.layout.max_tokens is None:
            msg = "pad_to_max_tokens=True needs max_tokens, got None."
            raise ValueError(msg)
        if self.missing == "mask" and self.layout.mask_token is None:
            msg = "missing='mask' needs a mask_token, got None."
            raise ValueError(msg)
        if self.missing == "oov" and not self.layout.num_oov_indices:
            msg = "missing='oov' needs an out-of-vocabulary slot, got num_oov_indices=0."
            raise ValueError(msg)

    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens of the vocabulary, without special ones."""

    @abstractmethod
    def tokens(self) -> list[Any]:
        """Tokens of the vocabulary in order, without special ones."""

    @abstractmethod
    def prepared(self, tokens: Sequence[Any]) -> Any:
        """Return what :meth:`hold` takes of tokens, which are distinct and not special."""

    @abstractmethod
    def hold(self, prepared: Any) -> None:
        """Take over a vocabulary."""

    @abstractmethod
    def derive(self) -> None:
        """Derive the table in which tokens are found, of buffers that were loaded."""

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens by index; before :meth:`adapt` the special ones alone."""
        return (self.layout.specials if include_special_tokens else []) + self.tokens()

    def vocabulary_size(self) -> int:
        """The number of indices, those of the special tokens included."""
        return self.layout.first_token + self.num_tokens()

    def new_state(self) -> TokenCounts:
        """Begin to count."""
        return TokenCounts(documents=self.output_mode == "tf_idf")

    def trimmed(self, state: TokenCounts) -> TokenCounts:
        """Keep the most frequent tokens; special ones, which are left out later, may be among."""
        capacity = self.layout.capacity
        return state if capacity is None else state.top(capacity + len(self.layout.reserved))

    def has_seen(self, state: TokenCounts) -> bool:
        """Whether there is a token that is not special."""
        reserved = self.layout.reserved
        return len(state.top(len(reserved) + 1).without(reserved)) > 0

    def count_rows(self, state: TokenCounts, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows of tokens, as many as each has; each row is a document."""
        state.update(rows if self.output_mode == "tf_idf" else chain.from_iterable(rows))

    def finish(self, state: TokenCounts) -> tuple[Any, torch.Tensor | None]:
        """Return the most frequent tokens, prepared, and their weights."""
        counted = state.without(self.layout.reserved)
        tokens, num_documents_of = counted.finalize(self.layout.capacity)
        if self.output_mode != "tf_idf":
            return self.prepared(tokens), None
        share = 1 + counted.num_documents / (1 + num_documents_of.astype(np.float64))
        return self.prepared(tokens), torch.from_numpy(np.log(share).astype(np.float32))

    def adopt(self, finished: tuple[Any, torch.Tensor | None]) -> None:
        """Take over tokens and weights."""
        prepared, idf = finished
        self.hold(prepared)
        self.weigh_by(idf)

    def weigh_by(self, idf: torch.Tensor | None) -> None:
        """Take over the weight of each token; special ones weigh what all do on average."""
        self.idf = idf
        if idf is not None:  # a sum without rounding: it depends on no number of threads
            self._mean_weight = math.fsum(idf.tolist()) / max(len(idf), 1)

    def set_tokens(self, tokens: Sequence[Any]) -> None:
        """Take over tokens, which are distinct and not special."""
        self.hold(self.prepared(tokens))

    def restored(self) -> None:
        """Derive what follows from buffers that were loaded."""
        self.weigh_by(self.idf)
        self.derive()

    def give(self, tokens: Sequence[Any], idf_weights: Sequence[float] | None) -> None:
        """Take over a given vocabulary, and its weights."""
        tokens = self.layout.tokens_of(tokens)
        self.weigh(len(tokens), idf_weights)
        self.set_tokens(tokens)
        self.is_given = True

    def weigh(self, num_tokens: int, idf_weights: Sequence[float] | None) -> None:
        """Take over the weights of a given vocabulary, which it has with ``"tf_idf"`` alone."""
        if (idf_weights is not None) != (self.output_mode == "tf_idf"):
            msg = (
                "A given vocabulary needs idf_weights with output_mode='tf_idf' and only then, got "
                f"{'some' if idf_weights is not None else 'none'} with {self.output_mode!r}."
            )
            raise ValueError(msg)
        if idf_weights is None:
            return
        weights = torch.as_tensor(idf_weights, dtype=torch.float32)
        if weights.shape != (num_tokens,):
            msg = (
                f"Expected a weight for each of {num_tokens} tokens, got idf_weights of shape "
                f"{tuple(weights.shape)}."
            )
            raise ValueError(msg)
        self.weigh_by(weights)

    def indices(
        self, places: torch.Tensor, oov: Callable[[], torch.Tensor], absent: Callable[[], str]
    ) -> torch.Tensor:
        """Turn places into indices.

        Args:
            places: int64, in the vocabulary, or one of NOT_FOUND, MASKED, ABSENT.
            oov: says into which slot each goes that is not found.
            absent: says what to tell of refused values.
        """
        layout = self.layout
        if not layout.num_oov_indices:
            require(places != NOT_FOUND, absent)
        if self.missing == "error":
            require(places != ABSENT, absent)
        slots = oov() if layout.num_oov_indices > 1 else 0
        lost = places == NOT_FOUND
        out = torch.where(lost, slots + layout.first_oov, places + layout.first_token)
        nothing = 0 if layout.masks else NOWHERE
        out = torch.where(places == MASKED, nothing, out)
        instead = nothing if self.missing == "mask" else layout.first_oov
        return torch.where(places == ABSENT, instead, out)

    def unknown(self, lost: Sequence[Any]) -> str:
        """Say which are no tokens where there is no slot for them."""
        return (
            f"{self.described()} expected tokens of its vocabulary, because num_oov_indices is 0; "
            f"got {shown(lost)}. Give it an out-of-vocabulary slot, or a complete vocabulary."
        )

    def lost_or_absent(self) -> str:
        """What a graph says of refused values, which it cannot name."""
        return (
            f"{self.described()} got None, or with num_oov_indices=0 what is no token of its "
            "vocabulary."
        )

    def encode(self, indices: torch.Tensor) -> torch.Tensor:
        """Encode indices as the output mode says."""
        if self.output_mode == "int":
            return indices
        depth = self.vocabulary_size()
        if self.pad_to_max_tokens and self.layout.max_tokens is not None:
            depth = self.layout.max_tokens
        if self.output_mode != "tf_idf":
            return encoded(indices, self.output_mode, depth)
        return encoded(indices, "count", depth) * self._weights(depth)

    def _weights(self, depth: int) -> torch.Tensor:
        """What each index weighs: the special ones the mean of all tokens, padding nothing."""
        idf = self.need("idf")
        specials = idf.new_full((self.layout.first_token,), self._mean_weight)
        padding = idf.new_zeros(depth - self.vocabulary_size())
        return torch.cat([specials, idf, padding])
