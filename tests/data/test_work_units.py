"""Parts of files travel as few plain numbers, and come back as they were."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.files.work_units import parts_from_numbers, parts_to_numbers
from torch_distinput.data.formats.reader import Part

SMALL = st.integers(0, 3)  # so that some parts meet
PARTS = st.builds(
    Part, start=SMALL, stop=st.none() | SMALL, first_record=SMALL, num_records=st.none() | SMALL
)


@given(st.lists(PARTS, max_size=6))
def test_parts_come_back_as_they_were(parts):
    sent = json.loads(json.dumps(parts_to_numbers(tuple(parts))))
    assert tuple(parts) == parts_from_numbers(sent)


def test_of_parts_that_meet_only_their_ends_and_records_are_sent():
    lengths = [7, 8, 9]
    ends = [0, *accumulate(lengths)]
    parts = tuple(
        Part(start=10 * first, stop=10 * end, first_record=first, num_records=end - first)
        for first, end in pairwise(ends)
    )
    assert [[70, 7], [150, 8], [240, 9]] == parts_to_numbers(parts)
