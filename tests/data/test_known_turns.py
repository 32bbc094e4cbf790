"""The turns behind a place are those that were played, as far as any were."""

from __future__ import annotations

import numpy as np
import pytest

from torch_distinput.data.sources.mixing.known_turns import KnownTurns, describe_turns
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.place import Place

SOURCES, LENGTHS = np.array([0, 1, 0]), np.array([3, 5, 7])


@pytest.fixture
def known():
    return KnownTurns(Place("mixture", describe_turns(SOURCES, LENGTHS)))


@pytest.mark.parametrize("may_differ", [False, True])
def test_the_same_turns_pass(known, may_differ):
    known.add(SOURCES[:2], LENGTHS[:2], may_differ=False)
    known.add(SOURCES[2:], LENGTHS[2:], may_differ=may_differ)
    known.add(SOURCES, LENGTHS + 1, may_differ=False)  # behind what the place tells of


@pytest.mark.parametrize("may_differ", [False, True])
def test_others_are_refused_once_one_was_passed_over(known, may_differ):
    """It was played, so those of its chunk were of these files."""
    known.add(SOURCES[:1], LENGTHS[:1], may_differ=False)
    with pytest.raises(SourceError, match="to have the lengths that they had"):
        known.add(SOURCES[1:], LENGTHS[1:] + 1, may_differ=may_differ)


def test_others_may_come_where_none_was_played(known):
    """What had been read ahead was of files that another worker has now."""
    known.add(SOURCES, LENGTHS + 1, may_differ=True)
    known.end_source(is_whole=True)


def test_others_are_refused_where_all_files_are_here(known):
    with pytest.raises(SourceError, match="to have the lengths that they had"):
        known.add(SOURCES, LENGTHS + 1, may_differ=False)
