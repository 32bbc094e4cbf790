"""Which index means what: mask, out-of-vocabulary slots, tokens. Keras's layout.

For ``mask_token=""``, ``num_oov_indices=2`` and the vocabulary ``a b``::

    output_mode="int"    0: mask   1, 2: slots   3: a   4: b
    the other modes                0, 1: slots   2: a   3: b      and the mask counts nowhere
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.nn.functional import pad

from torch_distinput.options import check_count
from torch_distinput.preprocessing.columns.tensors import require
from torch_distinput.preprocessing.layers.encoding import NOWHERE, encode
from torch_distinput.preprocessing.layers.layer import check_choice
from torch_distinput.preprocessing.vocabulary.sorted_table import ABSENT, MASKED, NOT_FOUND

_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
_MISSING = ("error", "mask", "oov")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class IndexLayout:
    """The indices of a lookup, and what becomes of them.

    Attributes:
        kind: the type of tokens, ``str`` or ``int``.
        max_tokens: the most indices, slots included; None for any number.
        num_oov_indices: slots for such tokens; 0 refuses them.
        mask_token: the token for "nothing"; None for none.
        oov_token: what stands for a token that is not in the vocabulary.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"``, ``"count"`` or ``"tf_idf"``.
        invert: whether indices are turned into tokens, of which no two may then be one.
        pad_to_max_tokens: whether vectors are ``max_tokens`` long.
        missing: what None is: an ``"error"``, the ``"mask"``, or in the first slot (``"oov"``).
        first_oov: the index of the first slot.
        first_token: the index of the first token.
    """

    kind: type
    max_tokens: int | None
    num_oov_indices: int
    mask_token: Any
    oov_token: Any
    output_mode: str
    invert: bool
    pad_to_max_tokens: bool
    missing: str
    first_oov: int = field(init=False)
    first_token: int = field(init=False)

    def __post_init__(self) -> None:
        """Refuse tokens of another kind, numbers that leave no room, and what does not fit."""
        for name in ("mask_token", "oov_token"):
            token = getattr(self, name)
            if type(token) is not self.kind and not (name == "mask_token" and token is None):
                msg = f"{name} must be of type {self.kind.__name__}, got {token!r:.60}."
                raise TypeError(msg)
        # As Python's integers, which JSON can write: NumPy's come in too.
        num_slots = check_count("num_oov_indices", self.num_oov_indices, minimum=0)
        first_oov = int(self.mask_token is not None and self.output_mode == "int")
        most = self.max_tokens
        if most is not None:
            most = check_count("max_tokens", most, minimum=first_oov + num_slots + 1)
        object.__setattr__(self, "num_oov_indices", num_slots)
        object.__setattr__(self, "max_tokens", most)
        object.__setattr__(self, "first_oov", first_oov)
        object.__setattr__(self, "first_token", first_oov + num_slots)
        check_choice("output_mode", self.output_mode, _MODES)
        check_choice("missing", self.missing, _MISSING)
        self._check_together()

    def _check_together(self) -> None:
        if self.invert and self.output_mode != "int":
            msg = (
                f"invert=True needs output_mode='int', got {self.output_mode!r}. Leave one of them "
                "out."
            )
            raise ValueError(msg)
        if self.pad_to_max_tokens and self.max_tokens is None:
            msg = (
                "pad_to_max_tokens=True needs max_tokens, got None. Pass max_tokens=, or leave "
                "pad_to_max_tokens out."
            )
            raise ValueError(msg)
        if self.missing == "mask" and self.mask_token is None:
            msg = (
                "missing='mask' needs a mask_token, got None. Pass mask_token=, or leave missing= "
                "out."
            )
            raise ValueError(msg)
        if self.missing == "oov" and not self.num_oov_indices:
            msg = (
                "missing='oov' needs an out-of-vocabulary slot, got num_oov_indices=0. Raise "
                "num_oov_indices, or leave missing= out."
            )
            raise ValueError(msg)

    def to_config(self) -> dict[str, Any]:
        """Return what the constructor of a layer takes."""
        skipped = ("kind", "first_oov", "first_token")
        return {name: getattr(self, name) for name in self.__slots__ if name not in skipped}

    @property
    def capacity(self) -> int | None:
        """The most tokens there may be."""
        return None if self.max_tokens is None else self.max_tokens - self.first_token

    @property
    def specials(self) -> list[Any]:
        """What stands before the tokens."""
        return [self.mask_token] * self.first_oov + [self.oov_token] * self.num_oov_indices

    @property
    def reserved(self) -> set[Any]:
        """What is no token: it is left out when tokens are counted."""
        return {self.oov_token} | ({self.mask_token} - {None})

    @property
    def forbidden(self) -> set[Any]:
        """What may not be among given tokens."""
        return self.reserved if self.invert else {self.mask_token} - {None}

    def parse_tokens(self, vocabulary: Sequence[Hashable]) -> list[Any]:
        """Return the tokens of a given vocabulary, which may begin with the specials.

        Raises:
            ValueError: for no token, repeated ones, special ones, or too many.
        """
        tokens = list(vocabulary)
        if self.specials and tokens[: self.first_token] == self.specials:
            tokens = tokens[self.first_token :]
        if not tokens:
            msg = (
                "Expected a vocabulary of at least one token, got none. Leave vocabulary= out, and "
                "find the tokens by adapt()."
            )
            raise ValueError(msg)
        for token in self.forbidden & set(tokens):
            self.refuse(token)
        self.check_room(len(tokens))
        if len(set(tokens)) < len(tokens):
            seen: set[Hashable] = set()
            repeated = [token for token in tokens if token in seen or seen.add(token)]  # type: ignore[func-returns-value]
            msg = (
                f"Expected each token once in a vocabulary, got {len(repeated)} repeated, such as "
                f"{repeated[0]!r}. Remove the repeated ones."
            )
            raise ValueError(msg)
        return tokens

    def parse_weights(
        self, idf_weights: Sequence[float] | None, num_tokens: int
    ) -> torch.Tensor | None:
        """Return the weights of a given vocabulary, which it has with ``"tf_idf"`` alone."""
        if (idf_weights is not None) != (self.output_mode == "tf_idf"):
            msg = (
                "A given vocabulary needs idf_weights with output_mode='tf_idf' and only then, got "
                f"{'some' if idf_weights is not None else 'none'} with {self.output_mode!r}. Pass "
                "both, or neither."
            )
            raise ValueError(msg)
        if idf_weights is None:
            return None
        weights = torch.as_tensor(idf_weights, dtype=torch.float32).clone()  # the caller's memory
        if weights.shape != (num_tokens,):
            msg = (
                f"Expected a weight for each of {num_tokens} tokens, got idf_weights of shape "
                f"{tuple(weights.shape)}. Pass one number per token, without those for the "
                "mask_token and the oov_token."
            )
            raise ValueError(msg)
        if not weights.isfinite().all():
            place = int(weights.isfinite().int().argmin())
            msg = (
                f"Expected finite idf_weights, got {weights[place].item()} at {place}. Replace it "
                "by a number."
            )
            raise ValueError(msg)
        return weights

    def refuse(self, token: Any) -> None:
        """Refuse a special token among the tokens."""
        msg = (
            "Expected the mask_token and the oov_token only at the front of a vocabulary, in the "
            f"order {self.specials}; got {token!r} among its tokens. Remove it there, or choose "
            "another mask_token or oov_token."
        )
        raise ValueError(msg)

    def check_first(self, token: Any) -> None:
        """Refuse a file that begins as ``get_vocabulary()`` does: all indices would be shifted."""
        if token in self.specials:
            msg = (
                f"Expected a file of tokens alone, got the special token {token!r} in its first "
                "line. Write get_vocabulary(include_special_tokens=False)."
            )
            raise ValueError(msg)

    def check_room(self, num_tokens: int) -> None:
        """Refuse more tokens than there is room for."""
        if self.capacity is not None and num_tokens > self.capacity:
            msg = (
                f"Expected at most {self.capacity} tokens (max_tokens={self.max_tokens} with "
                f"{self.first_token} before them), got {num_tokens}. Raise max_tokens."
            )
            raise ValueError(msg)

    def index(
        self,
        places: torch.Tensor,
        choose_slots: Callable[[], torch.Tensor],
        explain: Callable[[], str],
    ) -> torch.Tensor:
        """Turn places into indices, int64 ``(...)``.

        Args:
            places: int64 ``(...)``, in the vocabulary, or one of NOT_FOUND, MASKED, ABSENT.
            choose_slots: says into which slot each goes that is not found.
            explain: says what to tell of refused values.

        Raises:
            ValueError: for a place that has no index; see :func:`require` for a graph.
        """
        if not self.num_oov_indices:
            require(places != NOT_FOUND, explain)
        if self.missing == "error":
            require(places != ABSENT, explain)
        slots = choose_slots() if self.num_oov_indices > 1 else 0
        lost = places == NOT_FOUND
        out = torch.where(lost, slots + self.first_oov, places + self.first_token)
        nothing = 0 if self.first_oov else NOWHERE
        out = torch.where(places == MASKED, nothing, out)
        instead = nothing if self.missing == "mask" else self.first_oov
        return torch.where(places == ABSENT, instead, out)

    def encode(
        self, indices: torch.Tensor, num_tokens: int, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Encode indices as vectors of the output mode (:func:`~.encoding.encode`).

        Args:
            indices: int64 ``(...)``.
            num_tokens: of the vocabulary.
            weights: float32 ``(first_token + num_tokens,)``, of each index, for ``"tf_idf"``.
        """
        depth = self.first_token + num_tokens
        if self.pad_to_max_tokens and self.max_tokens is not None:
            depth = self.max_tokens
        if weights is None:
            return encode(indices, self.output_mode, depth)
        weights = pad(weights, (0, depth - weights.shape[0]))  # padding weighs nothing
        return encode(indices, "count", depth) * weights
