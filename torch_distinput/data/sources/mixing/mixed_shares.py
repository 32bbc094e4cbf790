"""The share of the examples that each source of a mixture has, by what its weight counts."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from fractions import Fraction

from torch_distinput.data.sources.source import IndexedSource, Request, Source
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.sequences.mixture import STEPS, Mixture
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.assignment.shares import LARGEST_PERIOD, Shares, make_shares

_log = logging.getLogger(__name__)


def find_shares(mixture: Mixture, opened: Mapping[str, Source], request: Request) -> Shares:
    """Return the shares of examples, and say where they are rounded.

    Of tokens, where not all sources have an index: by those each turn is decided when it comes.

    Raises:
        ConfigurationError: a ValueError; weights are shares of tokens, and a source has no tokens,
            or its lengths are none; or a schedule in steps has no size of them.
        SourceError: the length function, or a source, raised.
    """
    size = request.size if mixture.unit == STEPS else 1
    if isinstance(size, BatchBudget):
        msg = (
            "A schedule beside a token budget must count examples, because its steps hold varying "
            f'numbers of them; got one in steps for {mixture!r}. Use unit="examples".'
        )
        raise ConfigurationError(msg)
    assert size is not None, "a mixture needs a batch size"
    means = _find_mean_lengths(mixture, opened)
    shares = Shares(
        tuple(
            (at * size, make_shares(tuple(map(operator.truediv, weights, means))))
            for at, weights in mixture.points
        )
    )
    if shares.is_rounded:
        _log.info(
            "The weights of %r are rounded to shares of 1/%d: exact ones would need a longer "
            "period. Weights such as 0.7 or 1/3 are exact.",
            mixture,
            LARGEST_PERIOD,
        )
    return shares


def is_by_turns(mixture: Mixture, opened: Mapping[str, Source]) -> bool:
    """Whether shares are of tokens that are counted only when examples are read."""
    are_known = all(isinstance(source, IndexedSource) for source in opened.values())
    return mixture.length is not None and not are_known


def _find_mean_lengths(mixture: Mixture, opened: Mapping[str, Source]) -> list[Fraction]:
    """Tokens of an example of each source; 1 where they decide nothing.

    A source with examples that are twice as long gets half as many turns for the same share.
    """
    means = [Fraction(1)] * len(opened)
    if mixture.length is None or is_by_turns(mixture, opened):
        return means
    return [
        _find_mean_length(name, mixture.length, source)
        for name, source in opened.items()
        if isinstance(source, IndexedSource)
    ]


def _find_mean_length(name: str, length: Length, source: IndexedSource) -> Fraction:
    lengths = source.find_lengths(length, name=f"length of {name!r}").read()
    if not len(lengths):
        return Fraction(1)  # it is refused for that
    total = int(lengths.sum())
    if not total:
        msg = (
            f"Expected tokens in each source whose weight is a share of tokens, got none in the "
            f"{len(lengths)} examples of {name!r}. Look at length=, or leave the source out."
        )
        raise ConfigurationError(msg)
    return Fraction(total, len(lengths))
