"""Which index means what: mask, out-of-vocabulary slots, tokens. Keras's layout.

``"int"``: the mask has index 0 if there is one; then the slots; then the tokens. The other modes
have no place for the mask, whose items count nowhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_distinput.options import check_count


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexLayout:
    """The indices of a lookup.

    Attributes:
        mask_token: the token for "nothing"; None for none.
        oov_token: what stands for a token that is not in the vocabulary.
        num_oov_indices: slots for such tokens; 0 refuses them.
        max_tokens: the most indices, slots included; None for any number.
        masks: whether the mask has an index.
        inverts: whether indices are turned into tokens, of which no two may then be one.
    """

    mask_token: Any
    oov_token: Any
    num_oov_indices: int
    max_tokens: int | None
    masks: bool
    inverts: bool

    def __post_init__(self) -> None:
        """Refuse numbers that leave no room."""
        # As Python's integers, which JSON can write: NumPy's come in too.
        num_slots = check_count("num_oov_indices", self.num_oov_indices, minimum=0)
        object.__setattr__(self, "num_oov_indices", num_slots)
        if self.max_tokens is not None:
            most = check_count("max_tokens", self.max_tokens, minimum=self.first_token + 1)
            object.__setattr__(self, "max_tokens", most)

    @property
    def first_oov(self) -> int:
        """The index of the first slot."""
        return int(self.masks)

    @property
    def first_token(self) -> int:
        """The index of the first token."""
        return self.first_oov + self.num_oov_indices

    @property
    def capacity(self) -> int | None:
        """The most tokens there may be."""
        return None if self.max_tokens is None else self.max_tokens - self.first_token

    @property
    def specials(self) -> list[Any]:
        """What stands before the tokens."""
        return [self.mask_token] * self.first_oov + [self.oov_token] * self.num_oov_indices

    @property
    def forbidden(self) -> set[Any]:
        """What may not be among given tokens."""
        return self.reserved if self.inverts else {self.mask_token} - {None}

    @property
    def reserved(self) -> set[Any]:
        """What is no token: it is left out when tokens are counted."""
        return {self.oov_token} | ({self.mask_token} - {None})

    def tokens_of(self, vocabulary: Sequence[Hashable]) -> list[Any]:
        """Return the tokens of a given vocabulary, which may begin with the specials.

        Raises:
            ValueError: for no token, repeated ones, special ones, or too many.
        """
        tokens = list(vocabulary)
        if self.specials and tokens[: self.first_token] == self.specials:
            tokens = tokens[self.first_token :]
        if not tokens:
            msg = "Expected a vocabulary of at least one token, got none."
            raise ValueError(msg)
        for token in self.forbidden & set(tokens):
            self.refuse(token)
        self.check_room(len(tokens))
        if len(set(tokens)) < len(tokens):
            seen: set[Hashable] = set()
            repeated = [token for token in tokens if token in seen or seen.add(token)]  # type: ignore[func-returns-value]
            msg = (
                f"Expected each token once in a vocabulary, got {len(repeated)} repeated, such as "
                f"{repeated[0]!r}."
            )
            raise ValueError(msg)
        return tokens

    def refuse(self, token: Any) -> None:
        """Refuse a special token among the tokens."""
        msg = (
            "Expected the mask_token and the oov_token only at the front of a vocabulary, in the "
            f"order {self.specials}; got {token!r} among its tokens."
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
