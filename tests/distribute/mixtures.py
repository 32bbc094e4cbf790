"""Mixtures of sources of every kind, and what they should play."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch.utils.data import Dataset

import torch_distinput as tdi
from tests.distribute.street import stream_of, write_files
from torch_distinput.plan.assignment.mixing import mix_known
from torch_distinput.plan.assignment.shares import Shares, make_shares


class Rows(Dataset):
    """Numbers by index, one by one."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.numbers[index]


def cut_into_files(folder, numbers):
    """A FileDataset of files of three numbers."""
    folder.mkdir()
    parts = [numbers[start : start + 3] for start in range(0, len(numbers), 3)]
    return tdi.FileDataset(write_files(folder, parts)).map(int)


MAKERS = {
    "tensor": lambda folder, numbers: torch.tensor(numbers),
    "list": lambda folder, numbers: numbers,
    "dataset": lambda folder, numbers: Rows(numbers),
    "stream": lambda folder, numbers: stream_of(numbers),
    "files": cut_into_files,
    "mixture": lambda folder, numbers: tdi.mix(
        {"odd": torch.tensor(numbers[1::2]), "even": torch.tensor(numbers[::2])},
        weights=(1, 2),
        stop="all",
    ),
    "mixed stream": lambda folder, numbers: tdi.mix(
        {"odd": stream_of(numbers[1::2]), "even": torch.tensor(numbers[::2])},
        weights=(1, 2),
        stop="all",
    ),
}
INDEXED = ("tensor", "list", "dataset", "mixture")


def play_by_hand(values, weights, stop):
    """The examples of an epoch in order, and the source of each, by arithmetic alone."""
    shares = Shares(((0, make_shares([Fraction(weight) for weight in weights])),))
    order, length = mix_known(shares, list(map(len, values)), stop)
    sources, numbers = order.take_range(0, length)
    turns = zip(sources.tolist(), numbers.tolist(), strict=True)
    return [values[source][number % len(values[source])] for source, number in turns], sources


def make_values(kinds, lengths):
    """Numbers that tell their source by the hundred; of a mixture in its order."""
    values = []
    for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
        own = [100 * number + row for row in range(length)]
        if "mix" in kind:
            own, _ = play_by_hand([own[1::2], own[::2]], (1, 2), "all")
        values.append(own)
    return values


def make_sources(folder, kinds, lengths):
    """The sources by name."""
    return {
        f"source{number}": MAKERS[kind](
            folder / f"source{number}", [100 * number + row for row in range(length)]
        )
        for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True))
    }


@st.composite
def mixtures(draw, kinds=tuple(MAKERS)):
    """Kinds, lengths and weights of some sources, and when an epoch ends."""
    count = draw(st.integers(1, 4))
    found = [draw(st.sampled_from(kinds)) for _ in range(count)]
    lengths = [draw(st.integers(2 if "mix" in kind else 1, 9)) for kind in found]
    weights = [draw(st.integers(1, 5)) for _ in range(count)]
    return found, lengths, weights, draw(st.sampled_from(["first", "all", "repeat"]))
