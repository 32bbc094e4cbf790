"""What an epoch on all ranks comes to, by the rules of those who divide it. Integers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EpochShares:
    """One epoch, all ranks together.

    Attributes:
        delivered: examples that ranks get, counted as often as they come.
        repeated: those among them that another rank, or the same, has already got.
        dropped: examples that no rank gets.
        fewest_steps: batches of the rank that has fewest.
        most_steps: batches of the rank that has most.
    """

    delivered: int
    repeated: int
    dropped: int
    fewest_steps: int
    most_steps: int


def share_padded(
    num_examples: int, num_ranks: int, batch_size: int, *, sampler_drops: bool, loader_drops: bool
) -> EpochShares:
    """Count what torch's DistributedSampler gives, batched on each rank.

    Rank r has positions r, r + W, r + 2 W, ... of the order, and positions beyond the last example
    are the first ones again. Ten examples, four ranks, batches of two:

        rank 0   0 4 | 8          with the loader's drop_last the last column goes: two examples
        rank 1   1 5 | 9          and both repeats
        rank 2   2 6 | 0 again
        rank 3   3 7 | 1 again
    """
    if sampler_drops:
        per_rank = num_examples // num_ranks
    else:
        per_rank = -(-num_examples // num_ranks)
    steps = per_rank // batch_size if loader_drops else -(-per_rank // batch_size)
    kept = min(per_rank, steps * batch_size) * num_ranks
    return _of_rounds(num_examples, kept, steps, steps)


def share_batches(
    num_examples: int, num_ranks: int, batch_size: int, *, drop_last: bool, even_batches: bool
) -> EpochShares:
    """Count what Accelerate's BatchSamplerShard gives: whole batches, dealt out in turn.

    Ten examples, two ranks, batches of four; ``even_batches`` fills the last round from the first:

        rank 0   0 1 2 3 | 8 9 0 1       drop_last: the first round alone
        rank 1   4 5 6 7 | 2 3 4 5       not even_batches: rank 0 has 8 9, rank 1 has ended
    """
    if drop_last:
        rounds = num_examples // batch_size // num_ranks
        kept = rounds * num_ranks * batch_size
        return _of_rounds(num_examples, kept, rounds, rounds)
    num_batches = -(-num_examples // batch_size)
    most = -(-num_batches // num_ranks)
    if even_batches:
        return _of_rounds(num_examples, most * num_ranks * batch_size, most, most)
    return _of_rounds(num_examples, num_examples, num_batches // num_ranks, most)


def share_split(
    num_examples: int, num_ranks: int, batch_size: int, *, drop_last: bool, even_batches: bool
) -> EpochShares:
    """Count what ``split_batches=True`` gives: each batch is cut into equal pieces for the ranks.

    Ten examples, two ranks, batches of four: the last one has two, which ``even_batches`` fills.

        rank 0   0 1 | 4 5 | 8 9         not even_batches: rank 0 has 8 9, rank 1 has ended
        rank 1   2 3 | 6 7 | 0 1
    """
    full, rest = divmod(num_examples, batch_size)
    if drop_last or not rest:
        return _of_rounds(num_examples, full * batch_size, full, full)
    if even_batches:
        return _of_rounds(num_examples, (full + 1) * batch_size, full + 1, full + 1)
    has_last_rank = rest > batch_size // num_ranks * (num_ranks - 1)
    return _of_rounds(num_examples, num_examples, full + has_last_rank, full + 1)


def share_whole(
    num_examples: int, num_ranks: int, batch_size: int, *, drop_last: bool
) -> EpochShares:
    """Count what ranks get of which each reads everything."""
    steps = num_examples // batch_size if drop_last else -(-num_examples // batch_size)
    kept = min(num_examples, steps * batch_size)
    return EpochShares(
        delivered=kept * num_ranks,
        repeated=kept * (num_ranks - 1),
        dropped=num_examples - kept,
        fewest_steps=steps,
        most_steps=steps,
    )


def _of_rounds(num_examples: int, kept: int, fewest: int, most: int) -> EpochShares:
    return EpochShares(
        delivered=kept,
        repeated=max(0, kept - num_examples),
        dropped=max(0, num_examples - kept),
        fewest_steps=fewest,
        most_steps=most,
    )
