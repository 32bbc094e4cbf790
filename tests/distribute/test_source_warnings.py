"""What is allowed of a source, and seldom meant, is told once."""

from __future__ import annotations

import logging

import pytest

import torch_distinput as tdi
from torch_distinput.testing import simulate

FILES_ALONE = "shuffle=True permutes the files"


@pytest.fixture
def files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("0\n1\n2\n3\n")
    return tdi.FileDataset(str(tmp_path / "*.txt")).map(int)


def said(caplog, source, **keywords):
    """The warnings of two workers that play an epoch."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        simulate(
            lambda strategy: list(
                strategy.distribute_dataset(source, global_batch_size=4, **keywords)
            ),
            num_workers=2,
        )
    return [r.getMessage() for r in caplog.records if FILES_ALONE in r.getMessage()]


def test_shuffle_of_files_leaves_records_in_order(files, caplog):
    """A DataLoader would shuffle them."""
    (words,) = said(caplog, files, shuffle=True)
    assert ".shuffle(buffer_size)" in words


def test_shuffle_of_packed_files(files, caplog):
    packed = tdi.pack(files.map(lambda number: [number]), length=4, tokens=None)
    assert len(said(caplog, packed, shuffle=True)) == 1


@pytest.mark.parametrize(
    ("change", "keywords"),
    [
        (lambda files: files, {}),
        (lambda files: files.shuffle(8), {"shuffle": True}),
        (lambda files: tdi.FileDataset(*files.patterns, shuffle_files=True), {"shuffle": True}),
        (lambda files: tdi.FileDataset(*files.patterns).interleave(2), {"shuffle": True}),
        (lambda _: [*range(8)], {"shuffle": True}),
    ],
)
def test_nothing_is_said_where_records_are_mixed_or_the_files_named(
    files, caplog, change, keywords
):
    assert not said(caplog, change(files), **keywords)
