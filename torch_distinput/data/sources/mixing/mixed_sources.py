"""From a mixture to a source that can be read: by index where all of its sources can be.

web: IndexedSource, code: IndexedSource    ->  IndexedSource over the indices of both
web: IndexedSource, code: StreamSource     ->  StreamSource in which all are read in order
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.sources.classify import SourceKind, classify
from torch_distinput.data.sources.indexed import EpochTeller, IndexedStream
from torch_distinput.data.sources.mixing.mixed_rows import MixedFetch
from torch_distinput.data.sources.mixing.mixed_shares import find_shares, is_by_turns
from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.sources.source import (
    IndexedSource,
    Prepared,
    ReadySource,
    Request,
    Source,
    StreamSource,
)
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.mixture import STEPS, Mixture
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.data.user_sources.states import holds_state
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.mixed_order import Member, MixedIndices
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.assignment.shares import Shares
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.state_version_1 import Flat

_log = logging.getLogger(__name__)
Open = Callable[[Any, Request], Source]


def open_mixture(mixture: Mixture, request: Request, open_source: Open) -> Source:
    """Open each source of a mixture, and mix them.

    ``open_source``: opens one of them.

    Raises:
        TypeError: one of them is no source.
        ConfigurationError: one of them is empty, cannot be mixed, or does not fit the request.
    """
    _refuse_same_stream(mixture)
    _refuse_inner_steps(mixture)
    own = replace(request, drop_last=False)
    opened = {
        name: _open_member(name, source, own, open_source)
        for name, source in mixture.sources.items()
    }
    shares = find_shares(mixture, opened, request)
    indexed = {name: src for name, src in opened.items() if isinstance(src, IndexedSource)}
    if len(indexed) == len(opened):
        return _mix_indexed(mixture, indexed, shares, request)
    return _mix_streams(mixture, opened, shares, request)


def _open_member(name: str, source: Any, request: Request, open_source: Open) -> Source:
    try:
        opened = open_source(source, request)
    except (TypeError, ConfigurationError) as error:
        msg = f"Source {name!r} of a mixture: {error}"
        raise type(error)(msg) from error
    assert not isinstance(opened, ReadySource), "there is a batch size, and no DataLoader"
    if isinstance(opened, StreamSource) and opened.made_of is not None:
        _refuse_own_state(name, opened.made_of)
    return opened


def _refuse_same_stream(mixture: Mixture) -> None:
    """One object under two names would be started twice, and perhaps yield to each what is left."""
    names: dict[int, str] = {}
    for name, source in _find_members(mixture):
        other = names.setdefault(id(source), name)
        is_object = has_method(source, "__iter__") and classify(source) is SourceKind.STREAM
        if other != name and is_object:
            msg = (
                f"Expected streams of their own in a mixture, got one {type(source).__name__} as "
                f"{other!r} and {name!r}. Make a second one, or give it the sum of their weights."
            )
            raise ConfigurationError(msg)


def _find_members(mixture: Mixture) -> Iterator[tuple[str, Any]]:
    """Its sources, and those of the mixtures in it."""
    for name, source in mixture.sources.items():
        yield name, source
        own = source.source if isinstance(source, DocumentPacking) else source
        if own is not source:
            yield name, own
        if isinstance(own, Mixture):
            for inner, member in _find_members(own):
                yield f"{name}: {inner}", member


def _refuse_inner_steps(mixture: Mixture) -> None:
    """A step takes only some examples of a mixture in it: none knows which are its steps."""
    for name, source in mixture.sources.items():
        if isinstance(source, Mixture) and source.unit == STEPS and len(source.points) > 1:
            msg = (
                f"Expected a schedule in examples in a mixture of a mixture, got steps in {name!r}."
                ' Use unit="examples": those of its own order, of which a step takes its share.'
            )
            raise ConfigurationError(msg)


def _refuse_own_state(name: str, source: Any) -> None:
    """A state that says what follows an epoch would be lost between two of them."""
    if not holds_state(source):
        return
    msg = (
        f"Expected sources whose position we keep, got {name!r}, a {type(source).__name__} with a "
        "state_dict() of its own, which a mixture cannot carry from epoch to epoch. Pass what it "
        "reads (files, a dataset with an index, a generator function), or distribute it by itself."
    )
    raise ConfigurationError(msg)


def check_policy(source: Any, policy: AutoShardPolicy) -> None:
    """Refuse to deal out a mixture of which not all can be dealt out.

    Raises:
        ConfigurationError: a ValueError; it says why.
    """
    if isinstance(source, (Buckets, DocumentPacking)):
        check_policy(source.source, policy)
    if not isinstance(source, Mixture) or policy is not AutoShardPolicy.FILE:
        return
    cure = 'Use auto_shard_policy="data": one mixture for all workers.'
    if len(source.points) > 1:
        msg = (
            "AutoShardPolicy.FILE needs constant weights, since each worker mixes its own files "
            f"and none knows how far the others are, got a schedule for {source!r}. {cure}"
        )
        raise ConfigurationError(msg)
    for name, member in source.sources.items():
        check_policy(member, policy)
        inner = member.source if isinstance(member, DocumentPacking) else member
        if classify(inner) not in (SourceKind.FILES, SourceKind.SHARDS, SourceKind.MIXTURE):
            msg = (
                "AutoShardPolicy.FILE needs files or shards to deal out in each source of a "
                f"mixture, got {name!r}, a {type(member).__name__}. {cure}"
            )
            raise ConfigurationError(msg)


def _describe_mixture(
    mixture: Mixture,
    shares: Shares,
    members: dict[str, dict[str, Any]],
    *,
    counts_tokens: bool = False,
) -> dict[str, Any]:
    """What decides the order: of a state, and compared between workers; lists and plain values.

    Args:
        mixture: what is mixed.
        shares: of each source.
        members: the same of each source, as far as it is known here.
        counts_tokens: shares are of tokens, which are counted when they are read.
    """
    weights: list[Any] = [[at, list(map(str, each))] for at, each in shares.points]
    if counts_tokens:
        weights = ["of tokens", *weights]
    facts = {"sources": _list_names(mixture), "weights": weights, "stop": mixture.stop}
    for name, own in members.items():
        facts.update({f"{name}: {fact}": value for fact, value in own.items()})
    return facts


def _list_names(mixture: Mixture) -> list[Any]:
    """The names of its sources; of mixtures with the names of theirs, of packings that they are."""
    names: list[Any] = []
    for name, source in mixture.sources.items():
        if isinstance(source, Mixture):
            names.append([name, _list_names(source)])
        else:  # a place among rows is none among as many documents
            names.append([name, "packed"] if isinstance(source, DocumentPacking) else name)
    return names


def _mix_indexed(
    mixture: Mixture, opened: dict[str, IndexedSource], shares: Shares, request: Request
) -> IndexedSource:
    members = []
    for name, source in opened.items():
        if not source.num_examples:
            raise _make_empty_error(name)
        assert source.num_indices is not None, "it has examples"
        members.append(
            Member(
                name=name,
                num_examples=source.num_examples,
                num_indices=source.num_indices,
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
        loader=request.loader_for(mixture),
        inner_sources=tuple(opened.values()),
        mixture=mixed,
        facts=_describe_mixture(mixture, shares, described),
        packed_contents=_join_contents(list(opened.values())),
    )


def _join_contents(sources: Sequence[IndexedSource]) -> Indices | None:
    """What is in the rows of all sources, if all are packed."""
    contents = [source.packed_contents for source in sources]
    known = [each for each in contents if each is not None]
    return np.concatenate(known) if len(known) == len(contents) else None


def _mix_streams(
    mixture: Mixture, opened: dict[str, Source], shares: Shares, request: Request
) -> StreamSource:
    """All sources are read in order; each that has files or shards may be dealt out."""
    by_turns = is_by_turns(mixture, opened)
    described = {
        name: {"number of examples": source.num_examples, **source.facts}
        for name, source in opened.items()
        if isinstance(source, IndexedSource)
    }
    facts = _describe_mixture(mixture, shares, described, counts_tokens=by_turns)
    # Dealt out, each worker would be elsewhere in a schedule that is written for one order.
    is_dealt = all(source.has_shards for source in opened.values()) and len(shares.points) == 1

    def prepare(*, by_shard: bool = False) -> Prepared:
        found = [_prepare(name, source, by_shard=by_shard) for name, source in opened.items()]
        stream = MixedStream(
            names=tuple(opened),
            streams=tuple(each.stream for each in found),
            shares=shares,
            stop=mixture.stop,
            facts=facts,
            collate=request.collate_fn,
            length=mixture.length if by_turns else None,
        )
        return Prepared(
            stream=stream,
            num_shards=_count_shards(found) if is_dealt else 0,
            digest=_join_digests(found),
        )

    streams = [source for source in opened.values() if isinstance(source, StreamSource)]
    by_shard = any(source.by_shard is not None for source in streams)
    return StreamSource(
        name=repr(mixture),
        prepare=prepare,
        has_shards=is_dealt,
        request=request,
        read_version_1=_refuse_version_1,
        made_of=mixture,
        by_shard=partial(prepare, by_shard=True) if by_shard else None,
        more_shards="give each source {} files or shards, or more",
        loader=request.loader_for(mixture),
    )


def _prepare(name: str, source: Source, *, by_shard: bool) -> Prepared:
    if isinstance(source, IndexedSource):
        if not source.num_examples:
            raise _make_empty_error(name)
        return Prepared(
            stream=IndexedStream(
                fetch=source.fetch,
                make_order=source.make_order,
                told=EpochTeller(source.dataset),
                check_length=source.check_length,
                packed_contents=source.packed_contents,
            ),
            num_shards=0,
            digest="",
        )
    assert isinstance(source, StreamSource), "no other kind is mixed"
    return source.by_shard() if by_shard and source.by_shard is not None else source.prepare()


def _count_shards(found: list[Prepared]) -> int | None:
    """Of the source that has fewest; None where all are split."""
    counts = [each.num_shards for each in found if each.num_shards is not None]
    return min(counts, default=None)


def _join_digests(found: list[Prepared]) -> str:
    digests = "/".join(each.digest for each in found)
    return blake2b(digests.encode(), digest_size=8).hexdigest()


def _refuse_version_1(flat: Flat) -> Start:
    """There were no mixtures then."""
    msg = f"{list(flat)} is a place in a stream, of a mixture"
    raise ValueError(msg)


def _make_empty_error(name: str) -> ConfigurationError:
    """The error for a source without examples, whose turns could not be taken."""
    msg = (
        f"Expected examples in each source of a mixture, got none in {name!r}. Leave it out, or "
        "look for what has emptied it."
    )
    return ConfigurationError(msg)
