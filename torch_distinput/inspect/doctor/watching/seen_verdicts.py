"""The verdicts that need a run: what the loaders of all ranks have really delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from torch_distinput.inspect.doctor import changed_lines
from torch_distinput.inspect.doctor.explanation import Explanation, Finding
from torch_distinput.inspect.doctor.stream_parts import (
    are_the_same,
    read_several_times,
)
from torch_distinput.inspect.doctor.verdicts import (
    count_shares,
    find_by_arithmetic,
    list_loader_facts,
    not_divided,
)
from torch_distinput.inspect.doctor.watching.coverage import (
    examples_of,
    row_digests,
    tell_seen,
    tell_unseen,
)
from torch_distinput.inspect.doctor.watching.order_verdicts import (
    FEWEST,
    find_same_draws,
    find_same_order,
    find_unlike_orders,
    one_of_each_part,
)
from torch_distinput.inspect.doctor.watching.records import (
    LoaderRecord,
    RankRecord,
    Seen,
    SeenEpoch,
    note_elsewhere,
)
from torch_distinput.inspect.doctor.watching.timing import list_times
from torch_distinput.rendering.units import show_count


def explain_records(records: Sequence[RankRecord]) -> list[Explanation]:
    """Say of each loader what all ranks together have seen of it."""
    return [_explain(seen) for seen in note_elsewhere(_join(records))]


def _join(records: Sequence[RankRecord]) -> list[Seen]:
    """Bring together what ranks say of one line.

    Loaders of one size that all of its ranks have are those; of others, its n-th is the n-th.
    """
    sizes: dict[tuple[str, str], list[set[object]]] = {}  # of each rank that has the name
    for record in records:
        own: dict[tuple[str, str], set[object]] = {}
        for loader in record.loaders:
            own.setdefault(_name(loader), set()).add(_size(loader))
        for name, found_sizes in own.items():
            sizes.setdefault(name, []).append(found_sizes)
    found: dict[tuple[object, ...], list[tuple[int, LoaderRecord]]] = {}
    for record in sorted(records, key=lambda record: record.rank):
        begun: Counter[tuple[object, ...]] = Counter()
        for loader in record.loaders:
            name, size = _name(loader), _size(loader)
            is_common = size in set.intersection(*sizes[name])
            key = (*name, size if is_common else None)
            found.setdefault((*key, begun[key]), []).append((record.rank, loader))
            begun[key] += 1
    return [
        Seen(ranks=tuple(rank for rank, _ in pairs), loaders=tuple(loader for _, loader in pairs))
        for pairs in found.values()
    ]


def _name(loader: LoaderRecord) -> tuple[str, str]:
    return loader.place, loader.facts.dataset


def _size(loader: LoaderRecord) -> object:
    return loader.facts.num_examples, loader.facts.batch_size


def _explain(seen: Seen) -> Explanation:
    facts, num = seen.facts, seen.num_ranks
    findings = list(_find_certain(seen))
    known = {(finding.kind, finding.number) for finding in findings}
    findings += [one for one in _find_seen(seen) if (one.kind, one.number) not in known]
    return Explanation(
        title=f"{seen.loaders[0].place}: {facts}, on {len(seen.ranks)} rank"
        + "s" * (len(seen.ranks) > 1),
        findings=tuple(findings),
        facts=(
            *tell_seen(seen),
            *list_loader_facts(facts, num),
            *list_times(seen.ranks, seen.loaders),
        ),
        unseen=tuple(tell_unseen(seen)),
    )


def _find_certain(seen: Seen) -> Iterator[Finding]:
    """What arithmetic finds; but whether ranks read the same is seen, not concluded."""
    for finding in find_by_arithmetic(seen.facts, seen.num_ranks):
        if finding.kind != "not divided":
            yield finding


def _find_seen(seen: Seen) -> Iterator[Finding]:
    if len(seen.ranks) > 1 and seen.trains:
        if seen.facts.is_stream:
            yield from _find_streams_read_alike(seen)
        elif seen.facts.division is None:
            yield from _find_examples_read_alike(seen)
            yield from find_same_draws(seen)
        elif seen.facts.division.divider == "unknown":
            yield from _find_repeated_indices(seen)
        else:
            yield from find_unlike_orders(seen)
        yield from _find_uneven_ends(seen)
    if len(seen.ranks) == 1 or not seen.trains:
        yield from _find_processes_alike(seen)
    if seen.trains:
        yield from find_same_order(seen)
    yield from _find_shared_numbers(seen)


def _find_streams_read_alike(seen: Seen) -> Iterator[Finding]:
    first = next(seen.epochs(), ())
    rows = [_rows_of_processes(epoch, seen.facts.loader_processes)[0] for epoch in first]
    times = _largest_group(rows) * _times_in_processes(seen, first)
    if times > 1:
        yield read_several_times(seen.facts, len(seen.ranks), times, min(map(len, rows)))


def _find_processes_alike(seen: Seen) -> Iterator[Finding]:
    first = next(seen.epochs(), ())
    times = _times_in_processes(seen, first) if seen.facts.is_stream else 1
    if times > 1:
        yield read_several_times(seen.facts, 1, times, len(row_digests(first[0])))


def _times_in_processes(seen: Seen, epoch: Sequence[SeenEpoch]) -> int:
    """How often a rank reads each example."""
    processes = seen.facts.loader_processes
    if processes < 2 or not epoch:
        return 1
    return _largest_group(_rows_of_processes(epoch[0], processes))


def _rows_of_processes(epoch: SeenEpoch, processes: int) -> list[list[str]]:
    """What each loader process has read: batch n comes from process n modulo their number."""
    step = max(1, processes)
    return [list(chain.from_iterable(epoch.digests[number::step])) for number in range(step)]


def _largest_group(rows: Sequence[list[str]]) -> int:
    """How many of them have the same rows as one of them has, with itself."""
    return max(
        1 + sum(are_the_same(one, other) for other in rows if other is not one) for one in rows
    )


def _find_examples_read_alike(seen: Seen) -> Iterator[Finding]:
    """Whether ranks whose loaders nobody divides have delivered the same examples."""
    epoch = next(seen.epochs(), ())
    examples = [examples_of(one) for one in epoch]
    times = max(
        (
            1 + sum(_are_one_dataset(one, other) for other in examples if other is not one)
            for one in examples
        ),
        default=1,
    )
    # What was seen settles it: if they are parts of something, then they are one part.
    own, facts = (replace(one, may_be_part=False) for one in (seen.loaders[0].facts, seen.facts))
    if times > 1 and count_shares(own, times) is not None:
        yield not_divided(facts, times, count_shares(facts, times))


def _are_one_dataset(one: dict[int, str], other: dict[int, str]) -> bool:
    """Whether an index means the same example on both: parts of their own have others at each.

    Of labels alone, say, there are few that differ, and parts may have the same in one order.
    """
    common = sorted(one.keys() & other.keys())
    mine, theirs = ([part[index] for index in common] for part in (one, other))
    return mine == theirs and are_the_same(mine, theirs)


def _find_repeated_indices(seen: Seen) -> Iterator[Finding]:
    """Of samplers that are not known: an index on two ranks, where none comes twice on one."""
    for epoch in seen.epochs():
        counts = [Counter(one.indices) for one in epoch]
        if any(max(count.values(), default=1) > 1 for count in counts):
            return  # with replacement, then
        total = sum(counts, Counter[int]())
        repeated = total.total() - len(total)
        if repeated and (_are_alike(epoch) or all(one.has_ended for one in epoch)):
            text = (
                f"{repeated:,} of {total.total():,} examples that {len(seen.ranks)} ranks were "
                "given in an epoch had gone to another rank already. Right only if ranks share "
                "their data on purpose (tensor, context or pipeline parallel)."
            )
            code = changed_lines.write_distribution(seen.facts, len(seen.ranks))
            yield Finding(kind="repeated", number=repeated, text=text, code=code)
            return


def _are_alike(epoch: Sequence[SeenEpoch]) -> bool:
    """Whether all ranks were given the same examples until now: dividing an order begins apart."""
    common = min(len(one.indices) for one in epoch)
    begun = {tuple(sorted(one.indices[:common])) for one in epoch}
    return common >= FEWEST and len(begun) == 1


def _find_uneven_ends(seen: Seen) -> Iterator[Finding]:
    for epoch in seen.epochs():
        steps = [one.batches for one in epoch]
        ended = [one.batches for one in epoch if one.has_ended]
        if ended and min(ended) < max(steps):
            fewest, most = steps.index(min(ended)), steps.index(max(steps))
            text = (
                f"rank {seen.ranks[fewest]} came to the end of its data after "
                f"{show_count(min(ended), 'step')}, rank {seen.ranks[most]} had {max(steps):,}: "
                "a collective of the steps between waits for ranks that have ended."
            )
            code = changed_lines.write_distribution(seen.facts, len(seen.ranks))
            number = max(steps) - min(ended)
            yield Finding(kind="ranks end at different steps", number=number, text=text, code=code)
            return


def _find_shared_numbers(seen: Seen) -> Iterator[Finding]:
    for rank, loader in zip(seen.ranks, seen.loaders, strict=True):
        if loader.alike:
            text = (
                f"loader processes of rank {rank} have drawn the same random numbers "
                f"({', '.join(loader.alike)}): something seeds them alike, such as a constant in "
                "worker_init_fn."
            )
            code = changed_lines.write_drawing()
            number = loader.facts.loader_processes
            yield Finding(kind="shared random numbers", number=number, text=text, code=code)
            return
    yield from _find_ranks_that_draw_alike(seen)


def _find_ranks_that_draw_alike(seen: Seen) -> Iterator[Finding]:
    """One seed on all ranks, which gives them equal models, gives their loaders equal numbers."""
    if not seen.facts.is_stream and seen.facts.division is None:
        return  # the examples are the same as well, which is said
    ranks: dict[tuple[str, int], list[int]] = {}
    apart = one_of_each_part(seen).values() if not seen.facts.is_stream else seen.loaders
    for rank, loader in zip(seen.ranks, seen.loaders, strict=True):
        if not any(loader is one for one in apart):
            continue  # it shares its part with another rank, on purpose
        for name, states in loader.drawn_states.items():
            for state in states:
                ranks.setdefault((name, state), []).append(rank)
    most = max(ranks.values(), key=len, default=[])
    if len(most) > 1:
        names = sorted({name for (name, _), own in ranks.items() if len(own) > 1})
        text = (
            f"loader processes of {len(most)} ranks, such as {most[0]} and {most[1]}, have drawn "
            f"the same random numbers ({', '.join(names)}): what is random about an example is "
            "the same for another one. One seed on all ranks does it: when the model is made, "
            "seed by rank as well, torch.manual_seed(seed + rank), and so a generator= of "
            "the loader, or what its worker_init_fn seeds by."
        )
        code = changed_lines.write_drawing()
        yield Finding(kind="shared random numbers", number=len(most), text=text, code=code)
