"""Places that states of version 1 hold: flat rows of numbers and texts, taken apart for good."""

from __future__ import annotations

import pytest

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers
from torch_distinput.data.files.state_version_1 import read_flat_place_of_files as read_in_files
from torch_distinput.data.user_sources.state_version_1 import (
    BATCHES,
    EXAMPLES,
    read_flat,
    read_streams,
)
from torch_distinput.plan.progress.place import list_place

FILES = tdi.FileDataset("*.txt", reader="text")
DECODED = tdi.FileDataset("*.bin", reader=Numbers(late=True))


def behind(inner, kind, skip, *pairs):
    """A listed place behind an operation."""
    return [kind, *map(list, pairs), ["skip", skip], ["from", inner]]


PARTITION = ["partition", ["number", 4]]
TURN = ["turn", ["next", 6], ["visited", [[4, 2], None]]]
CASES = [
    (FILES, (4,), PARTITION),
    (FILES.map(int), (4,), PARTITION),
    (FILES.interleave(2, 3), (6, 4, 2, -1, 0), TURN),
    (FILES.filter(bool), (4, 1), behind(PARTITION, "filter", 1)),
    (FILES.shuffle(5), (4, 1, 3), behind(PARTITION, "shuffle", 1, ("window", 3))),
    (FILES.take(5), (4, 1, 3), behind(PARTITION, "take", 1, ("taken", 3))),
    (FILES.repeat(5), (4, 1, 3), behind(PARTITION, "repeat", 1, ("repetition", 3))),
    (DECODED, (4, 1), behind(PARTITION, "decode", 1)),
    (DECODED.shuffle(5).map(int).filter(bool), (4, 1, 3, 2, 0),
     behind(behind(behind(PARTITION, "shuffle", 1, ("window", 3)), "decode", 2), "filter", 0)),
    (DECODED.filter(bool).shuffle(5), (4, 1, 2, 0, 3),
     behind(behind(behind(PARTITION, "decode", 1), "filter", 2), "shuffle", 0, ("window", 3))),
    (FILES.interleave(2, 3).take(9), (6, 4, 2, -1, 0, 1, 3),
     behind(TURN, "take", 1, ("taken", 3))),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "flat", "expected"), CASES)
def test_in_files(dataset, flat, expected):
    assert expected == list_place(read_in_files(dataset, flat))


@pytest.mark.parametrize(("dataset", "flat", "expected"), CASES)
def test_in_files_one_number_too_many_or_too_few(dataset, flat, expected):
    del expected
    for other in ((0, *flat), flat[1:]):
        with pytest.raises(tdi.ConfigurationError, match="Expected the numbers of a place"):
            read_in_files(dataset, other)


@pytest.mark.parametrize(
    ("names", "flat", "expected"),
    [
        (EXAMPLES, (7, "here"), ["source", ["example", 7], ["state", "here"], ["beginning", None]]),
        (EXAMPLES, (7, "here", "first"),
         ["source", ["example", 7], ["state", "here"], ["beginning", "first"]]),
        (BATCHES, (3, 7, "here", "first"),
         ["source", ["batch", 3], ["row", 7], ["state", "here"], ["beginning", "first"]]),
        (BATCHES, (0, 0, "first"),
         ["source", ["batch", 0], ["row", 0], ["state", "first"], ["beginning", None]]),
    ],
)  # fmt: skip
def test_in_a_source(names, flat, expected):
    assert expected == list_place(read_flat(names, flat))


@pytest.mark.parametrize(
    ("names", "flat"),
    [
        (EXAMPLES, (7,)),
        (EXAMPLES, (3, 7, "here")),
        (EXAMPLES, ("here",)),
        (EXAMPLES, (-1, "here")),
        (EXAMPLES, (7, "here", "first", "more")),
        (BATCHES, (7, "here")),
        (BATCHES, (3, 7)),
    ],
)
def test_what_is_no_place_in_a_source(names, flat):
    with pytest.raises(tdi.ConfigurationError, match="Expected the place of a source in"):
        read_flat(names, flat)


def test_in_several_streams():
    """One of them may not have told where it is."""
    told = ["source", ["batch", 3], ["row", 7], ["state", "here"], ["beginning", None]]
    expected = ["streams", ["skip", 0], ["from", told, None]]

    assert expected == list_place(read_streams(((3, 7, "here"), ())))


def test_in_one_stream_of_several():
    with pytest.raises(tdi.ConfigurationError, match="in each of the streams of a dataset_fn"):
        read_streams((3, 7, "here"))
