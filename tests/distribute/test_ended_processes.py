"""Loaders some of whose processes have ended: a state from there plays nothing again."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import get_worker_info
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.conftest import LONG
from tests.distribute.stateful_sources import COUNT, Counting
from tests.distribute.test_source_states import check_every_stop, played


class Uneven(Counting):
    """The first process has few numbers."""

    def __iter__(self):
        process = get_worker_info()
        if process is not None and process.id == 0:
            self.count = 2
        return super().__iter__()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        partial(StatefulDataLoader, Counting(COUNT), batch_size=7),  # the end comes within a batch,
        partial(StatefulDataLoader, Counting(4), batch_size=4),  # or after it
        partial(StatefulDataLoader, Uneven(5), batch_size=None, collate_fn=torch.ones),
        lambda **_: nodes.IterableWrapper(
            StatefulDataLoader(Counting(COUNT), batch_size=7, num_workers=2)
        ),
    ],
    ids=["within", "after", "one by one", "in a node"],
)
def test_a_loader_whose_processes_begin_anew_after_their_end(make):
    """Torchdata asks each of them for one batch more."""
    play = partial(played, partial(make, num_workers=2), 1, batch_size=None)
    check_every_stop(play, every=1 if LONG else 2)  # they wait for their processes at each end
