"""Text in host memory: standardised, split into tokens, and those joined to n-grams; as in Keras.

All rules but the user's own are about bytes of UTF-8, so that a graph can follow them
(:mod:`.text_graph`): only ASCII letters become lower-case, only ASCII
whitespace separates, and only ASCII punctuation is taken out.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch_distinput.options import check_count
from torch_distinput.preprocessing.strings.byte_rows import to_bytes, to_str

Standardize = str | Callable[[str], str] | None
Split = str | Callable[[str], Sequence[str]] | None

_STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_SPLIT = ("whitespace", "character")
_PUNCTUATION = string.punctuation.encode()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """What becomes of a text.

    Attributes:
        standardize: ``"lower"``, ``"strip_punctuation"``, ``"lower_and_strip_punctuation"``, a
            function of the user's, or None.
        split: ``"whitespace"``, ``"character"``, a function of the user's, or None: a text is one
            token.
        widths: the widths of n-grams, in the order in which they come; ``(1,)`` for the tokens.
    """

    standardize: Standardize
    split: Split
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what is neither known nor a function."""
        _check_rule("standardize", self.standardize, _STANDARDIZE)
        _check_rule("split", self.split, _SPLIT)
        if self.split is None and self.widths != (1,):
            msg = "ngrams joins tokens, but with split=None a text is one token. Leave ngrams out."
            raise ValueError(msg)

    @property
    def lowers(self) -> bool:
        """Whether ASCII letters become lower-case."""
        return self.standardize in ("lower", "lower_and_strip_punctuation")

    @property
    def strips(self) -> bool:
        """Whether punctuation is taken out."""
        return self.standardize in ("strip_punctuation", "lower_and_strip_punctuation")


def _check_rule(name: str, rule: Any, known: tuple[str, ...]) -> None:
    if rule is not None and rule not in known and not callable(rule):
        msg = (
            f"Expected {name} to be one of {', '.join(map(repr, known))}, a function or None; got "
            f"{rule!r}. Pass a function of a str for a rule of your own."
        )
        raise ValueError(msg)


def parse_ngrams(ngrams: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the widths that ``ngrams`` means: an integer all up to it, a tuple just those.

    Raises:
        ValueError: for what is no positive integer.
    """
    if ngrams is None:
        return (1,)
    if isinstance(ngrams, (tuple, list)):
        if not ngrams:
            msg = (
                "Expected ngrams to be an integer, or a tuple of one at least; got none. Leave "
                "ngrams out for single tokens."
            )
            raise ValueError(msg)
        return tuple(check_count("ngrams", width, minimum=1) for width in ngrams)
    return tuple(range(1, check_count("ngrams", ngrams, minimum=1) + 1))


def tokenize(texts: Sequence[str | bytes], rules: TextRules) -> list[list[str]]:
    """Return the tokens of each text, or its n-grams: all of the first width, then of the next.

    Raises:
        TypeError: for a function of the user's that returns something else than text.
    """
    rows = _split([_standardize(text, rules) for text in texts], rules.split)
    if rules.widths == (1,):
        return rows
    return [[ngram for width in rules.widths for ngram in _join_ngrams(row, width)] for row in rows]


def _standardize(text: str | bytes, rules: TextRules) -> bytes:
    if callable(rules.standardize):
        given = to_str(text) if isinstance(text, bytes) else text
        text = _apply("standardize", rules.standardize, given)
        if not isinstance(text, str):
            msg = (
                f"Expected standardize to return a str, got {text!r:.60}. Let it return the "
                "changed text."
            )
            raise TypeError(msg)
    content = text if isinstance(text, bytes) else to_bytes(text)
    if rules.lowers:
        content = content.lower()  # of bytes: ASCII alone
    return content.translate(None, _PUNCTUATION) if rules.strips else content


def _split(texts: Sequence[bytes], split: Split) -> list[list[str]]:
    if split is None:
        return [[to_str(text)] for text in texts]
    if split == "character":
        return [list(to_str(text)) for text in texts]
    if split == "whitespace":
        # Of bytes, as a str is split at other whitespace too; then decoded all at once.
        joined = [to_str(b" ".join(text.split())) for text in texts]
        return [text.split(" ") if text else [] for text in joined]
    assert callable(split)
    return [_check_tokens(_apply("split", split, to_str(text))) for text in texts]


def _apply(name: str, rule: Callable[[str], Any], text: str) -> Any:
    """Call a function of the user's; whoever iterates takes its StopIteration for the end."""
    try:
        return rule(text)
    except StopIteration as error:
        msg = f"Expected {name} to return, got StopIteration for {text!r:.60}. Fix the function."
        raise RuntimeError(msg) from error


def _check_tokens(tokens: Any) -> list[str]:
    if not isinstance(tokens, (list, tuple)) or not all(isinstance(part, str) for part in tokens):
        msg = (
            f"Expected split to return a list of str, got {tokens!r:.60}. Let it return tokens as "
            "text.split() does."
        )
        raise TypeError(msg)
    return [part if type(part) is str else str.__str__(part) for part in tokens]  # as of NumPy


def _join_ngrams(tokens: Sequence[str], width: int) -> list[str]:
    return [" ".join(tokens[at : at + width]) for at in range(len(tokens) - width + 1)]
