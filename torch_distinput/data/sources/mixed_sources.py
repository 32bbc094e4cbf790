"""From a mixture to a source that can be read: by index where all of its sources can be.

web: IndexedSource, code: IndexedSource    ->  IndexedSource over the indices of both
web: IndexedSource, code: StreamSource     ->  StreamSource in which all are read in order
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.sources.mixed_rows import MixedFetch
from torch_distinput.data.sources.source import (
    IndexedSource,
    ReadySource,
    Request,
    Source,
)
from torch_distinput.data.user_sources.mixture import STEPS, Mixture
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.mixed_order import Member, MixedIndices
from torch_distinput.plan.assignment.shares import LARGEST_PERIOD, Shares, make_shares

_log = logging.getLogger(__name__)
Open = Callable[[Any, Request], Source]


def open_mixture(mixture: Mixture, request: Request, open_source: Open) -> Source:
    """Open each source of a mixture, and mix them.

    ``open_source``: opens one of them.

    Raises:
        TypeError: one of them is no source.
        ConfigurationError: one of them is empty, cannot be mixed, or does not fit the request.
    """
    own = replace(request, drop_last=False)
    opened = {
        name: _open_member(name, source, own, open_source)
        for name, source in mixture.sources.items()
    }
    shares = _find_shares(mixture, request)
    indexed = {name: src for name, src in opened.items() if isinstance(src, IndexedSource)}
    if len(indexed) == len(opened):
        return _mix_indexed(mixture, indexed, shares, request)
    msg = "Streams are not mixed yet."
    raise ConfigurationError(msg)


def _open_member(name: str, source: Any, request: Request, open_source: Open) -> Source:
    try:
        opened = open_source(source, request)
    except (TypeError, ConfigurationError) as error:
        msg = f"Source {name!r} of a mixture: {error}"
        raise type(error)(msg) from error
    if isinstance(opened, ReadySource) or (
        isinstance(opened, IndexedSource) and opened.sampler is not None
    ):
        raise _no_member(name, opened.name)
    return opened


def _no_member(name: str, kind: str) -> ConfigurationError:
    msg = f"Expected source {name!r} of a mixture to have examples in our order, got {kind}."
    return ConfigurationError(msg)


def _find_shares(mixture: Mixture, request: Request) -> Shares:
    """The shares by examples, and a word where they are rounded."""
    size = request.global_batch_size if mixture.unit == STEPS else 1
    assert size is not None, "a mixture needs a batch size"
    shares = Shares(tuple((at * size, make_shares(weights)) for at, weights in mixture.points))
    if shares.is_rounded:
        _log.info(
            "The weights of %r are rounded to shares of 1/%d: exact ones would need a longer "
            "period. Weights such as 0.7 or 1/3 are exact.",
            mixture,
            LARGEST_PERIOD,
        )
    return shares


def describe_mixture(
    mixture: Mixture, shares: Shares, members: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What decides the order: of a state, and compared between workers; lists and plain values.

    ``members``: the same of each source, as far as it is known here.
    """
    weights = [[at, list(map(str, each))] for at, each in shares.points]
    facts = {"sources": list(mixture.sources), "weights": weights, "stop": mixture.stop}
    for name, own in members.items():
        facts.update({f"{name}: {fact}": value for fact, value in own.items()})
    return facts


def _mix_indexed(
    mixture: Mixture, opened: dict[str, IndexedSource], shares: Shares, request: Request
) -> IndexedSource:
    members = []
    for name, source in opened.items():
        if not source.num_examples:
            raise make_empty_error(name)
        inner = source.mixture
        members.append(
            Member(
                name=name,
                num_examples=source.num_examples,
                num_indices=source.num_examples if inner is None else inner.num_indices,
                make_order=source.make_order,
            )
        )
    mixed = MixedIndices.of(tuple(members), shares, mixture.stop)
    described = {
        name: {"number of examples": source.num_examples, **source.facts}
        for name, source in opened.items()
    }
    return IndexedSource(
        name=repr(mixture),
        fetch=MixedFetch(
            tuple(opened),
            tuple(source.fetch for source in opened.values()),
            np.array(mixed.first_indices),
            request.collate_fn,
        ),
        num_examples=mixed.num_examples,
        request=request,
        loader=LoaderOptions(num_workers=request.num_workers, dataset=mixture),
        mixture=mixed,
        facts=describe_mixture(mixture, shares, described),
    )


def make_empty_error(name: str) -> ConfigurationError:
    """The error for a source without examples, whose turns could not be taken."""
    msg = (
        f"Expected examples in each source of a mixture, got none in {name!r}. Leave it out, or "
        "look for what has emptied it."
    )
    return ConfigurationError(msg)
