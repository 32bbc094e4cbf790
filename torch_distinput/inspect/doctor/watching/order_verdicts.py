"""In which order examples come: the same on ranks that divide it, another one in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from torch_distinput.inspect.doctor import changed_lines
from torch_distinput.inspect.doctor.explanation import Finding
from torch_distinput.inspect.doctor.loader_facts import LoaderFacts
from torch_distinput.inspect.doctor.verdicts import count_shares
from torch_distinput.inspect.doctor.watching.records import LoaderRecord, Seen

FEWEST = 8
"""Indices that two epochs, or two ranks, must share before that is no chance."""


def find_unlike_orders(seen: Seen) -> Iterator[Finding]:
    """Of samplers that are known: parts of one order have nothing in common but what fills up."""
    shares = count_shares(seen.facts, seen.num_ranks)
    if shares is None or seen.facts.order not in {"in order", "shuffled"}:
        return  # a sampler of the user's may repeat on purpose
    loaders = list(one_of_each_part(seen).values())
    for epoch in Seen(ranks=seen.ranks, loaders=tuple(loaders)).epochs():
        begun = min(len(one.indices) for one in epoch)
        if not all(one.has_ended for one in epoch):  # as many of each, then
            epoch = tuple(replace(one, indices=one.indices[:begun]) for one in epoch)  # noqa: PLW2901
        total = Counter(chain.from_iterable(one.indices for one in epoch))
        repeated = total.total() - len(total)
        if repeated > shares.repeated:
            text = (
                f"{repeated:,} of {total.total():,} examples that {len(loaders)} ranks were given "
                "in an epoch were given twice, and so others never: the ranks have not divided one "
                "order. Give all of them the same seed, and call sampler.set_epoch(epoch) on all."
            )
            code = changed_lines.write_distribution(seen.facts, seen.num_ranks)
            yield Finding(kind="repeated", number=repeated, text=text, code=code)
            return


def one_of_each_part(seen: Seen) -> dict[int | None, LoaderRecord]:
    """Ranks may share a part on purpose."""
    return {
        loader.facts.division.rank: loader
        for loader in seen.loaders
        if loader.facts.division is not None
    }


def find_same_draws(seen: Seen) -> Iterator[Finding]:
    """Of what each rank draws with replacement, by itself: others, unless seeded alike."""
    if seen.facts.order != "drawn with replacement" or seen.facts.division is not None:
        return
    for epoch in seen.epochs():
        common = min(len(one.indices) for one in epoch)
        begun = Counter(one.indices[:common] for one in epoch)
        times = max(begun.values())
        if common >= FEWEST and times > 1:
            text = (
                f"{times} ranks have drawn the same {common:,} examples in the same order. Their "
                "random generators are seeded alike: seed them by rank as well."
            )
            code = changed_lines.write_distribution(seen.facts, len(seen.ranks))
            yield Finding(kind="not divided", number=times, text=text, code=code)
            return


def find_same_order(seen: Seen) -> Iterator[Finding]:
    """Of samplers that are known to shuffle."""
    if seen.facts.order != "shuffled" or seen.facts.is_stream:
        return
    for orders in _orders_of_loaders(seen):
        alike = _find_alike(orders)
        if common := _count_alike(alike):
            of_all = "" if len(alike) == len(orders) else f" of {len(orders)}"
            text = (
                f"{len(alike)}{of_all} epochs have begun with the same {common:,} examples in the "
                f"same order. {_why_same_order(seen.facts)}"
            )
            code = changed_lines.write_distribution(seen.facts, seen.num_ranks)
            yield Finding(kind="same order in each epoch", number=common, text=text, code=code)
            return


def _find_alike(orders: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """All epochs, if they begin alike; else the most, one after the other, that do.

    Not others: a second training with the same loader may well begin with epoch 0 again. Nor the
    first two: the first may be a pass for statistics. These are named as unseen.
    """
    if _count_alike(orders):
        return orders
    runs: list[list[tuple[int, ...]]] = [[]]
    for order in orders[1:]:
        if not _count_alike([*runs[-1], order]):
            runs.append([])
        runs[-1].append(order)
    return max(runs, key=len)


def list_alike_beginnings(seen: Seen) -> Iterator[str]:
    """The first two passes: epochs, or a pass for statistics and the first epoch."""
    if seen.facts.order != "shuffled" or any(find_same_order(seen)):
        return
    for orders in _orders_of_loaders(seen):
        if common := _count_alike(orders[:2]):
            yield (
                f"Whether the first two epochs differ: they have begun with the same {common:,} "
                "examples in the same order. If the first was not a pass of its own, as for "
                "statistics, call sampler.set_epoch(epoch) before the loop over the batches."
            )
            return


def _why_same_order(facts: LoaderFacts) -> str:
    if facts.division is not None and facts.division.divider != "BatchSamplerShard":
        return "Nobody calls sampler.set_epoch(epoch) before an epoch."
    return "Its random generator is seeded anew, and alike, before each epoch."


def list_alike_loaders(seen: Seen) -> Iterator[str]:
    """A loader for each epoch, or for each training: only its user knows."""
    orders = _orders_of_loaders(seen) if seen.facts.order == "shuffled" else []
    if all(len(of_one) == 1 for of_one in orders) and (
        common := _count_alike([order for (order,) in orders])
    ):
        yield (
            f"Whether epochs differ: {len(orders)} loaders were made here, each was iterated once, "
            f"and all began with the same {common:,} examples. If these are epochs of one "
            "training, make the loader once, before the loop, and call sampler.set_epoch(epoch) "
            "where there is a DistributedSampler."
        )


def _orders_of_loaders(seen: Seen) -> list[list[tuple[int, ...]]]:
    """What each epoch of a loader began with; of a rank that has begun most.

    Not a pass without gradients beside the training, as for statistics.
    """
    begun: dict[int, list[tuple[int, ...]]] = {}
    for epoch in max(seen.loaders, key=count_begun).epochs:
        is_pass = seen.trains and not epoch.trains
        if len(epoch.indices) >= FEWEST and not (epoch.is_aside or is_pass):
            begun.setdefault(epoch.loader, []).append(epoch.indices)
    return list(begun.values())


def _count_alike(orders: Sequence[tuple[int, ...]]) -> int:
    """How many indices all of several orders begin with alike; 0 if they differ in these."""
    common = min(map(len, orders), default=0)
    is_alike = len(orders) > 1 and len({order[:common] for order in orders}) == 1
    return common if is_alike else 0


def count_begun(loader: LoaderRecord) -> int:
    """How many epochs of a loader have drawn an index."""
    return sum(bool(epoch.indices) for epoch in loader.epochs if not epoch.is_aside)
