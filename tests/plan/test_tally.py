"""Numbers of steps that travel with the votes: sums and peaks, of workers with fewer steps too."""

from __future__ import annotations

import numpy as np

from torch_distinput.plan.progress.tally import NO_TALLY, Tally, TallySize


def test_sums_are_added_up_and_of_peaks_the_largest_counts():
    """A worker without a step, or with nothing in it, has zeros there."""
    size = TallySize(num_sums=2, num_peaks=1)
    workers = [
        [Tally((1, 2), (7,)), Tally((3, 4), (1,))],
        [Tally((10, 20), (5,)), NO_TALLY],
        [Tally((100,))],
    ]
    vectors = np.stack([size.encode(own, 2) for own in workers])
    assert [Tally((111, 22), (7,)), Tally((3, 4), (1,))] == size.join(vectors)


def test_numbers_of_steps_that_were_not_agreed_on_stay():
    size = TallySize(num_sums=1)
    vector = size.encode([Tally((1,)), Tally((2,))], 1)
    assert [Tally((1,))] == size.join(vector[None])
