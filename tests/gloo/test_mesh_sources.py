"""Every kind of source is broadcast: what the partners get and save is the reader's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.gloo.jobs import LONG_TIMEOUT, described
from tests.gloo.meshes import TWO_BY_TWO, examples, played, strategy_on
from torch_distinput.testing import run_ranks
from torch_distinput.testing.ranks import run_ranks_outcomes

LENGTHS = (0, 7, 3, 13)  # of files: the first worker of two has fewer, and begins with none
COUNT = sum(LENGTHS)


class WithState(torch.utils.data.IterableDataset):
    """A stream that tells where it is, and goes on there."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < COUNT:
            self.at += 1
            yield torch.tensor(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def ready_batches():
    yield from torch.arange(COUNT).split(4)


def to_tensor(line):
    return torch.tensor(int(line))


def open_source(folder, kind):
    if kind == "lines":  # lengths are not known: workers vote
        return tdi.FileDataset(sorted(Path(folder).glob("*.txt"))).map(to_tensor)
    if kind == "packed lines":
        return tdi.FileDataset(sorted(Path(folder).glob("*.txt")), strings="packed").shuffle(3)
    if kind == "counted files":  # each worker counts its own, and tells the others
        return tdi.FileDataset(sorted(Path(folder).glob("*.npy")), reader="npy")
    return WithState() if kind == "stream with a state" else ready_batches


def once_and_resumed(folder, kind, shape, _):
    """A whole epoch, and one that is resumed in the middle by another dataset."""
    strategy = strategy_on(*shape, replicate_input="broadcast")

    def distributed():
        return strategy.distribute_dataset(
            open_source(folder, kind),
            global_batch_size=None if kind == "ready batches" else 4,
            options=tdi.InputOptions(audit=True),
        )

    whole, begun, resumed = (distributed() for _ in range(3))
    steps, head = played(strategy, whole), played(strategy, begun, 2)
    resumed.load_state_dict(begun.state_dict())
    again = head + played(strategy, resumed)
    assert [step[:5] for step in steps] == [step[:5] for step in again]
    return strategy.worker_index, steps, again, len(whole) if kind == "counted files" else None


@pytest.mark.parametrize("shape", [TWO_BY_TWO, ((1, 4), ("dp", "tp"))], ids=["2 x 2", "1 x 4"])
@pytest.mark.parametrize(
    "kind", ["lines", "packed lines", "counted files", "stream with a state", "ready batches"]
)
def test_every_example_once_and_the_same_states(tmp_path, kind, shape):
    """Audited; on two workers with two ranks each, and on one worker with four."""
    for number, end in enumerate(np.cumsum(LENGTHS).tolist()):
        numbers = np.arange(end - LENGTHS[number], end)
        np.save(tmp_path / f"{number}.npy", numbers)
        (tmp_path / f"{number}.txt").write_text("".join(f"{n}\n" for n in numbers))
    ranks = run_ranks(partial(once_and_resumed, str(tmp_path), kind, shape), 4)
    workers = {rank[0]: rank for rank in ranks}
    assert all(rank == workers[rank[0]] for rank in ranks)
    got = [x for _, steps, *_ in workers.values() for x in examples(steps)]
    assert list(range(COUNT)) == sorted(map(int, got))
    _, steps, _, length = workers[0]
    assert length in (None, len(steps))


def left_alone(rank_that_leaves, _):
    """One of two partners ends its loop, and its script, before the other."""
    strategy = strategy_on((1, 2), ("dp", "tp"), replicate_input="broadcast")
    dataset = strategy.distribute_dataset(
        torch.arange(400_000), global_batch_size=4, options=tdi.InputOptions(timeout=LONG_TIMEOUT)
    )
    for step, _ in enumerate(dataset):
        if step == 2 and torch.distributed.get_rank() == rank_that_leaves:
            return step
    return None


@pytest.mark.parametrize("first", [0, 1])
def test_a_partner_that_leaves_early(first):
    """The other one does not wait for it for ever."""
    outcomes = run_ranks_outcomes(partial(left_alone, first), 2)
    assert 2 == outcomes[first].result
    words = described(outcomes[1 - first])
    assert words.startswith(("PeerFailedError", "PeerTimeoutError"))
    assert "loop" in words or "left after" in words
