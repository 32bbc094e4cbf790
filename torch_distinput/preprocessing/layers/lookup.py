"""What both lookups share: a vocabulary that is given, found in data or loaded, and its indices.

A vocabulary of any origin becomes the layer's own by :meth:`adopt`::

    a list, or a file                    adapt()                  load_state_dict(), pp.load()
        |                                    |                              |
    checked by the layout          VocabularyAnalyzer.finish                |
        +------------------> Learned(vocabulary, idf) <---------------------+
                                             |
                                          adopt
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch

from torch_distinput.preprocessing.layers.index_layout import IndexLayout
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.packed import decode_texts, flatten_nested, show_some


class Learned(NamedTuple):
    """What a lookup adopts.

    Attributes:
        vocabulary: a :class:`StringVocabulary` or an :class:`IntegerVocabulary`.
        idf: float32 ``(tokens,)``, the weight of each token; None for none.
    """

    vocabulary: Any
    idf: torch.Tensor | None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyAnalyzer:
    """The most frequent tokens, and how much each says of a document.

    Attributes:
        layout: says how many, and what is no token.
        make: the vocabulary of a list of tokens; may refuse.
    """

    layout: IndexLayout
    make: Callable[[Sequence[Any]], Any]

    def new_state(self) -> TokenCounts:
        """Begin to count."""
        return TokenCounts(documents=self.layout.output_mode == "tf_idf")

    def trim(self, state: TokenCounts) -> TokenCounts:
        """Keep the most frequent tokens; special ones, which are left out later, may be among."""
        capacity = self.layout.capacity
        return state if capacity is None else state.top(capacity + len(self.layout.reserved))

    def finish(self, state: TokenCounts) -> Learned | None:
        """Return the most frequent tokens, and their weights ``ln(1 + N / (1 + df))`` as Keras."""
        counted = state.without(self.layout.reserved)
        tokens, num_documents_of = counted.finalize(self.layout.capacity)
        if not tokens:
            return None
        idf = None
        if self.layout.output_mode == "tf_idf":
            share = 1 + counted.num_documents / (1 + num_documents_of.astype(np.float64))
            idf = torch.from_numpy(np.log(share).astype(np.float32))
        return Learned(self.make(tokens), idf)


class Lookup(AdaptiveLayer, ABC):
    """A vocabulary; places in it become indices."""

    state_called = "vocabulary"
    analyzer: VocabularyAnalyzer
    keys: torch.Tensor | None
    places: torch.Tensor | None
    idf: torch.Tensor | None
    weights: torch.Tensor | None

    def __init__(
        self, layout: IndexLayout, make: Callable[[Sequence[Any]], Any], **config: Any
    ) -> None:
        """Begin without a vocabulary, which ``make`` makes of tokens."""
        analyzer = VocabularyAnalyzer(layout=layout, make=make)
        super().__init__(analyzer, **layout.to_config(), **config)
        self.layout = layout
        if layout.output_mode != "tf_idf":
            self.optional_state = frozenset({"idf"})
        for name in ("keys", "places", "weights"):  # what follows from the state
            self.register_buffer(name, None, persistent=False)

    @abstractmethod
    def _set_vocabulary(self, vocabulary: Any) -> None:
        """Set the buffers to those of a vocabulary."""

    @abstractmethod
    def _derive_vocabulary(self, before: Mapping[str, torch.Tensor | None]) -> Any:
        """Return the vocabulary of a state that was loaded, given the buffers ``before`` it."""

    @abstractmethod
    def _count_tokens(self) -> int:
        """Return the number of tokens, without special ones."""

    @abstractmethod
    def _list_tokens(self) -> list[Any]:
        """Return tokens in order, without special ones."""

    @property
    def output_mode(self) -> str:
        """See the class."""
        return self.layout.output_mode

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens by index; before :meth:`adapt` the special ones alone."""
        return (self.layout.specials if include_special_tokens else []) + self._list_tokens()

    def vocabulary_size(self) -> int:
        """The number of indices, those of the special tokens included."""
        return self.layout.first_token + self._count_tokens()

    def encode(self, indices: torch.Tensor) -> torch.Tensor:
        """Encode indices, int64 ``(...)``, as the output mode says."""
        if self.layout.output_mode == "int":
            return indices
        weights = self.need("weights") if self.layout.output_mode == "tf_idf" else None
        return self.layout.encode(indices, self._count_tokens(), weights)

    def _set_state(self, found: Learned) -> None:
        self._set_vocabulary(found.vocabulary)
        self.idf, self.weights = found.idf, None
        if found.idf is not None:  # special tokens weigh what all do on average
            mean = math.fsum(found.idf.tolist()) / max(len(found.idf), 1)  # rounded once
            specials = found.idf.new_full((self.layout.first_token,), mean)
            self.weights = torch.cat([specials, found.idf])

    def _give(self, tokens: Sequence[Any] | None, idf_weights: Sequence[float] | None) -> None:
        """Adopt a given vocabulary, if there is one."""
        if tokens is not None:
            tokens = self.layout.parse_tokens(tokens)
            idf = self.layout.parse_weights(idf_weights, len(tokens))
            self.adopt(Learned(self.analyzer.make(tokens), idf))
            self.is_given = True
        elif idf_weights is not None:
            msg = (
                "idf_weights belong to a given vocabulary, got vocabulary=None. Pass both, or none."
            )
            raise ValueError(msg)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Take over a state, and derive what follows from it."""
        before = dict(self._buffers)
        super()._load_from_state_dict(*args, **kwargs)
        if any(self._buffers[name] is not before[name] for name in self.state_types):
            self.adopt(Learned(self._derive_vocabulary(before), self.idf))

    def _explain_unknown(self, lost: Sequence[Any]) -> str:
        """Say which are no tokens where there is no slot for them."""
        return (
            f"{self.describe()} expected tokens of its vocabulary, because num_oov_indices is 0; "
            f"got {show_some(lost)}. Give it an out-of-vocabulary slot, or a complete vocabulary."
        )


def check_flat(vocabulary: Any, shape: tuple[int, ...]) -> None:
    """Refuse a vocabulary that is no list of tokens."""
    if len(shape) != 1:
        msg = (
            f"Expected a vocabulary as a flat list, got shape {shape}: {vocabulary!r:.60}. Put all "
            "tokens into one list."
        )
        raise ValueError(msg)


def flatten_tokens(vocabulary: Any) -> list[str]:
    """Return the tokens of a vocabulary as strings, or refuse it."""
    flat, shape = flatten_nested(vocabulary)
    check_flat(vocabulary, shape)
    tokens = [token for token in decode_texts(flat) if token is not None]
    if len(tokens) < len(flat):
        msg = f"Expected a vocabulary of strings, got None at {flat.index(None)}. Leave it out."
        raise ValueError(msg)
    return tokens
