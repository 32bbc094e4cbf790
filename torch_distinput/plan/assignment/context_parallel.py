"""Which part of a sequence a context parallel rank holds: a chunk of its head, one of its tail.

Under a causal mask a token attends to those before it and to itself, so a chunk costs the more the
later it comes. The first with the last, the second with the last but one, and so on: all ranks have
as much to do. That is the order of torch's ring attention.

    chunk     0   1   2   3   4   5   6   7     of one sequence
    costs     1   3   5   7   9  11  13  15
    rank      0   1   2   3   3   2   1   0     16 for each
"""

from __future__ import annotations


def cut_head_and_tail(
    length: int, *, index: int, num_slices: int
) -> tuple[tuple[int, int], ...]:
    """Where the chunks of slice ``index`` of ``num_slices`` begin and end in a sequence, in order.

    ``length`` is a multiple of :func:`smallest_length`. A single slice is the whole sequence.
    """
    assert 0 <= index < num_slices, "a rank of the dimension"
    assert length % smallest_length(num_slices) == 0, "refused before"
    if num_slices == 1:
        return ((0, length),)
    size = length // (2 * num_slices)
    tail = 2 * num_slices - 1 - index
    return (index * size, (index + 1) * size), (tail * size, (tail + 1) * size)


def smallest_length(num_slices: int) -> int:
    """Of which the length of a sequence must be a multiple: two chunks for each slice."""
    return 1 if num_slices == 1 else 2 * num_slices
