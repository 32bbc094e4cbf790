"""Steps whose partial batches are padded, and which of their rows are examples."""

from __future__ import annotations

from tests.distribute.street import listed, options

PAD = options(partial_batch="pad")


def masked(workers, num_rows):
    """The steps of workers as without padding; each batch is checked for what it is filled with."""

    def real(batch, mask):
        rows, mask = listed(batch), listed(mask)
        count = sum(mask)
        assert num_rows == len(rows) == len(mask)
        assert [True] * count + [False] * (num_rows - count) == mask
        assert [rows[count - 1] if count else 0] * (num_rows - count) == rows[count:]
        return rows[:count]

    return [[[real(*pair) for pair in step] for step in worker] for worker in workers]
