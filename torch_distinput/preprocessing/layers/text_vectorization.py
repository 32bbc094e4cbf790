"""Texts as indices of their tokens, or as vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch.nn.functional import pad

from torch_distinput.errors import UsageError
from torch_distinput.options import check_count
from torch_distinput.preprocessing.columns.tensors import Takes, require
from torch_distinput.preprocessing.layers.encoding import NOWHERE
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, check_choice, describe_value
from torch_distinput.preprocessing.layers.lookup import Learned
from torch_distinput.preprocessing.layers.string_lookup import StringLookup
from torch_distinput.preprocessing.states.token_counts import TokenCounts
from torch_distinput.preprocessing.strings.byte_rows import MISSING
from torch_distinput.preprocessing.strings.packed import (
    PaddedStrings,
    find_packed,
    flatten_strings,
)
from torch_distinput.preprocessing.strings.text import (
    Split,
    Standardize,
    TextRules,
    parse_ngrams,
    tokenize,
)
from torch_distinput.preprocessing.strings.text_graph import (
    bound_tokens,
    find_spans,
    place,
    split,
    standardize,
)

_MODES = ("int", "multi_hot", "count", "tf_idf")


@final
class TextVectorization(AdaptiveLayer):
    """The indices of the tokens of each text, or a vector (``keras.layers.TextVectorization``).

    Takes texts ``(rows,)`` or ``(rows, 1)``, packed ones, or :func:`pack_strings` of them. Gives
    int64 ``(rows, tokens)`` with ``output_mode="int"``: 0 behind the end of a text, 1 for a token
    that is not in the vocabulary, then the tokens. ``"multi_hot"`` and ``"count"`` give int64
    vectors ``(rows, vocabulary_size)``, ``"tf_idf"`` float32 ones; a row is a document. One text by
    itself gives one row without the first dimension. With ``split=None`` a text is one token, and
    ``"int"`` without an ``output_sequence_length`` gives the shape of the texts.

    Upper-case, punctuation and whitespace are those of ASCII, as in Keras. A byte that is no UTF-8
    is a character. A model that is exported needs an ``output_sequence_length`` for ``"int"``, and
    none of the user's functions.

    Args:
        max_tokens: the most indices, special ones included; None for any number.
        standardize: ``"lower_and_strip_punctuation"``, ``"lower"``, ``"strip_punctuation"``, None,
            or a function from ``str`` to ``str``. A layer with a function cannot be saved.
        split: ``"whitespace"``, ``"character"``, None, or a function from ``str`` to a list of
            ``str``.
        ngrams: also all n-grams up to this width; a tuple means those of its widths, and only
            them. Tokens are joined by a space; all of a width come before the next.
        output_mode: see above.
        output_sequence_length: how many tokens ``"int"`` gives of each text, cut or filled up with
            0; None for as many as the longest text of the batch has.
        pad_to_max_tokens: make vectors ``max_tokens`` long.
        vocabulary: the tokens, or the path or URL of a file with one in each line.
        idf_weights: the weight of each token, for a given vocabulary with ``"tf_idf"``.
        missing: None is refused (``"error"``), or taken as the empty text (``"mask"``).
        storage_options: of fsspec, for a vocabulary in a file.
    """

    takes: Takes = "strings"
    state_called = "vocabulary"

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: Standardize = "lower_and_strip_punctuation",
        split: Split = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        *,
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Sequence[str | bytes] | str | os.PathLike[str] | None = None,
        idf_weights: Sequence[float] | None = None,
        missing: str = "error",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """See the class."""
        self.rules = TextRules(standardize=standardize, split=split, widths=parse_ngrams(ngrams))
        self.output_mode = check_choice("output_mode", output_mode, _MODES)
        self.output_sequence_length = _check_length(output_sequence_length, output_mode)
        self.missing = check_choice("missing", missing, ("error", "mask"))
        lookup = StringLookup(
            max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            storage_options=storage_options,
        )
        super().__init__(
            lookup.analyzer,
            max_tokens=max_tokens,
            standardize=standardize,
            split=split,
            ngrams=list(ngrams) if isinstance(ngrams, Sequence) else ngrams,
            output_mode=output_mode,
            output_sequence_length=output_sequence_length,
            pad_to_max_tokens=pad_to_max_tokens,
            missing=missing,
        )
        self.lookup = lookup
        self.is_given = lookup.is_given

    def forward(self, inputs: Any) -> torch.Tensor:
        """Find the indices, or the vectors, of texts."""
        if self.lookup.ends is None:
            msg = (
                f"{self.describe()} has no vocabulary yet. Call adapt(dataset), load a saved "
                "state, or pass vocabulary=, before the layer is used."
            )
            raise UsageError(msg)
        if isinstance(inputs, PaddedStrings):
            shape = self._check_shape(tuple(inputs.lengths.shape))
            indices = self._index_padded(inputs)
        else:
            texts, shape = self._flatten_texts(inputs)
            indices = self._index_host(texts)
        if self.output_sequence_length is None and self._is_one_each:
            return indices.reshape(shape)
        out = self.lookup.encode(indices)
        return out if shape else out.squeeze(0)

    @property
    def _is_one_each(self) -> bool:
        return self.rules.split is None and self.output_mode == "int"

    def _check_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
            msg = (
                f"{self.describe()} takes texts of shape (rows,) or (rows, 1), got {shape}. Use a "
                "layer for each column, or StringLookup for what is tokens already."
            )
            raise ValueError(msg)
        return shape

    def _flatten_texts(self, inputs: Any) -> tuple[list[Any], tuple[int, ...]]:
        """Texts, packed ones as ``bytes``: the rules are about those."""
        values: Sequence[Any]
        if (column := find_packed(inputs)) is not None:
            values, shape = column.strings.to_bytes(), column.shape
            is_complete = None not in values
        else:
            values, shape, is_complete = flatten_strings(inputs)
        self._check_shape(shape)
        if self.missing == "error" and not is_complete:
            raise ValueError(self._explain())
        return [value or b"" for value in values], shape

    def _explain(self) -> str:
        return (
            f"{self.describe()} expected texts, got None. Fill it in, or pass missing='mask' to "
            "take it as the empty text."
        )

    def _index_host(self, texts: Sequence[str | bytes]) -> torch.Tensor:
        """The indices of tokens in rows of one length; those of all texts are looked up at once."""
        rows = tokenize(texts, self.rules)
        if self.output_sequence_length is not None:
            rows = [row[: self.output_sequence_length] for row in rows]
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        width = self.output_sequence_length
        if width is None:
            width = int(counts.max(initial=0))
        nothing = 0 if self.output_mode == "int" else NOWHERE
        out = np.full((len(rows), width), nothing)
        found = self.lookup.look_up([token for row in rows for token in row])
        out[np.arange(width) < counts[:, None]] = found.numpy()
        return torch.from_numpy(out)

    def _index_padded(self, inputs: PaddedStrings) -> torch.Tensor:
        """The same of padded texts."""
        self._check_graph()
        data, lengths = inputs.rows()
        if self.missing == "error":
            require(lengths != MISSING, self._explain)
        data, lengths = standardize(data, lengths.clamp_min(0), self.rules)
        if self.rules.split is None:
            found = self.lookup.look_up(PaddedStrings(data, lengths)).unsqueeze(1)
            return pad(found, (0, (self.output_sequence_length or 1) - 1))
        rows = split(data, lengths, self.rules)
        parts = find_spans(rows, self.rules, self._bound_tokens(rows.count_tokens(), data.shape[1]))
        found = self.lookup.look_up(parts)
        if self.output_mode != "int":
            return torch.where(parts.places >= 0, found, NOWHERE)
        width = self.output_sequence_length
        if width is None:
            width = int(parts.places.max()) + 1 if parts.places.numel() else 0
        return place(found, parts.places, width)

    def _bound_tokens(self, counts: torch.Tensor, num_bytes: int) -> int:
        """How many tokens of a row decide the result, at most; in a graph it is no value's."""
        most = bound_tokens(num_bytes, self.rules)
        if not torch.compiler.is_compiling():
            most = int(counts.max()) if counts.shape[0] else 0
        if self.output_sequence_length is None:
            return most
        return min(most, self.output_sequence_length + max(self.rules.widths) - 1)

    def _check_graph(self) -> None:
        rules = self.rules
        for name, rule in (("standardize", rules.standardize), ("split", rules.split)):
            if callable(rule):
                msg = (
                    f"{self.describe()} has {name}={describe_value(rule)}, a function of strings, "
                    "which cannot be applied to packed strings. Apply the layer in the pipeline, "
                    f"or use a {name} that has a name."
                )
                raise UsageError(msg)
        is_open = self.output_mode == "int" and self.output_sequence_length is None
        if torch.compiler.is_compiling() and is_open and rules.split is not None:
            msg = (
                f"{self.describe()} needs output_sequence_length to be part of a graph with "
                "output_mode='int': how long its rows are must not follow from the texts. Pass it "
                "to the constructor."
            )
            raise UsageError(msg)

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """The tokens by index; before :meth:`adapt` the special ones alone."""
        return self.lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """The number of indices, those of the special tokens included."""
        return self.lookup.vocabulary_size()

    def count(self, state: TokenCounts, column: Any) -> None:
        """Add texts ``(rows,)`` or ``(rows, 1)``; each is a document."""
        texts, _ = self._flatten_texts(column)
        state.update_rows(tokenize(texts, self.rules))

    def _set_state(self, found: Learned) -> None:
        self.lookup.adopt(found)


def _check_length(length: int | None, output_mode: str) -> int | None:
    if length is None:
        return None
    if output_mode != "int":
        msg = (
            f"output_sequence_length needs output_mode='int', got {output_mode!r}, whose vectors "
            "have one place for each token. Leave it out."
        )
        raise ValueError(msg)
    return check_count("output_sequence_length", length, minimum=1)
