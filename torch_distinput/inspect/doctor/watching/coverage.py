"""What of a loader was seen, and what was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from torch_distinput.inspect.doctor.stream_parts import are_distinct
from torch_distinput.inspect.doctor.verdicts import count_shares
from torch_distinput.inspect.doctor.watching.order_verdicts import (
    count_begun,
    list_alike_beginnings,
    list_alike_loaders,
)
from torch_distinput.inspect.doctor.watching.records import Seen, SeenEpoch
from torch_distinput.rendering.units import show_count


def row_digests(epoch: SeenEpoch) -> list[str]:
    """The digests of the rows of the first batches."""
    return list(chain.from_iterable(epoch.digests))


def examples_of(epoch: SeenEpoch) -> dict[int, str]:
    """The digest of each example by its index, of the first batches."""
    if not all(epoch.digests):
        return {}  # rows could not be told apart
    return dict(zip(epoch.indices, row_digests(epoch), strict=False))


def tell_seen(seen: Seen) -> Iterator[str]:
    """How much of it was seen, and which ranks read the same part."""
    steps = [sum(epoch.batches for epoch in loader.epochs) for loader in seen.loaders]
    rows = sum(epoch.rows for loader in seen.loaders for epoch in loader.epochs)
    begun = max(len(loader.epochs) for loader in seen.loaders)
    span = show_count(max(steps), "step")
    if min(steps) < max(steps):
        span = f"{min(steps):,} to {span}"
    where = f" on each of {len(seen.ranks)} ranks" if len(seen.ranks) > 1 else ""
    yield from _list_shared_parts(seen)
    counts = f"in {show_count(begun, 'epoch')}, {show_count(rows, 'row')} in all"
    yield f"Seen: {span}{where} {counts}."


def _list_shared_parts(seen: Seen) -> Iterator[str]:
    """Ranks whose samplers were told the same rank: on purpose, or because nobody told them."""
    parts: dict[int, list[int]] = {}
    for rank, loader in zip(seen.ranks, seen.loaders, strict=True):
        division = loader.facts.division
        if division is not None and division.rank is not None:
            parts.setdefault(division.rank, []).append(rank)
    shared = {part: ranks for part, ranks in parts.items() if len(ranks) > 1}
    for part, ranks in list(shared.items())[:1]:
        yield (
            f"Ranks {', '.join(map(str, ranks))} read the same part: each has part {part} of "
            f"{seen.num_ranks}. Right only if they share their data on purpose (tensor, context or "
            "pipeline parallel)."
        )


def tell_unseen(seen: Seen) -> Iterator[str]:
    """What nobody can conclude from that, and what would show it."""
    facts, epochs = seen.facts, [epoch for loader in seen.loaders for epoch in loader.epochs]
    is_known = facts.division is not None and facts.division.divider == "DistributedSampler"
    begun = max(map(count_begun, seen.loaders))
    if seen.trains and facts.order == "shuffled" and is_known and begun < 2:
        shares = count_shares(facts, seen.num_ranks)
        steps = "" if shares is None else f" --steps {shares.most_steps + 1} comes to a second."
        yield f"Whether sampler.set_epoch is called: only one epoch was begun.{steps}"
    if seen.trains:
        yield from list_alike_loaders(seen)
        yield from list_alike_beginnings(seen)
    if seen.elsewhere:
        others = (f"rank {rank} at {place}" for rank, place in sorted(seen.elsewhere.items()))
        yield f"What others get: such a loader is first iterated elsewhere by {', '.join(others)}."
    elif len(seen.ranks) < seen.num_ranks:
        yield (
            f"What the other ranks get: the loader is divided among {seen.num_ranks}, and only "
            f"{len(seen.ranks)} iterated it under the doctor. Of ranks that the script starts by "
            "itself only the first is seen: start them with torchrun --nproc-per-node "
            f"{seen.num_ranks} -m torch_distinput doctor."
        )
    if facts.is_stream and len(seen.ranks) > 1 and not any(epoch.has_ended for epoch in epochs):
        yield "Whether ranks end at the same step: none has come to the end of its data."
    yield from _list_not_compared(seen, epochs)


def _list_not_compared(seen: Seen, epochs: Sequence[SeenEpoch]) -> Iterator[str]:
    """Whether ranks, or processes, get the same: of a loader that is divided its sampler tells."""
    facts, has_ranks = seen.facts, len(seen.ranks) > 1
    if facts.is_stream:
        is_compared = any(row_digests(epoch) for epoch in epochs)
        if (has_ranks or facts.loader_processes > 1) and not is_compared:
            yield (
                "Whether ranks or processes read the same examples: too few rows could be told "
                "apart."
            )
    elif has_ranks and facts.division is None and not _has_common_examples(seen):
        yield (
            "Whether ranks read the same examples: too few rows could be told apart, or came to "
            "more than one rank. Nothing divides the loader: if all ranks have one dataset, each "
            "of them reads all of it."
        )


def _has_common_examples(seen: Seen) -> bool:
    """Whether two ranks have seen enough at the same places to tell."""
    examples = [examples_of(epoch) for epoch in next(seen.epochs(), ())]
    return any(
        are_distinct([one[index] for index in one.keys() & other.keys()])
        for one, other in combinations(examples, 2)
    )
