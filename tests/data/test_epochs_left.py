"""A dataset of two parts, one of which fails to hear an epoch again: both are left."""

from __future__ import annotations

import pytest

from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.errors import SourceError


class Part:
    fails = False

    def set_epoch(self, epoch) -> None:
        del epoch
        if self.fails:
            raise OSError("the storage is away")

    def __iter__(self):
        return iter(())


class Both:
    def __init__(self) -> None:
        self.parts = [Part(), Part()]

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("failing", [0, 1])
def test_all_parts_are_left(failing):
    """Else every other thread would wait for them, in each epoch from then on."""
    both, words = Both(), "set_epoch.1. raised OSError: the storage is away"
    inside = AtEpoch(both, 0)
    with pytest.raises(SourceError, match=words), AtEpoch(both, 1), inside:
        both.parts[failing].fails = True
    assert [{}, {}] == [told.inside for told in inside._told]
