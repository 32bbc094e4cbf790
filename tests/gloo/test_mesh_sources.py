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


def write_files(folder):
    for number, end in enumerate(np.cumsum(LENGTHS).tolist()):
        numbers = np.arange(end - LENGTHS[number], end)
        np.save(folder / f"{number}.npy", numbers)
        (folder / f"{number}.txt").write_text("".join(f"{n}\n" for n in numbers))


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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [TWO_BY_TWO, ((1, 4), ("dp", "tp"))], ids=["2 x 2", "1 x 4"])
@pytest.mark.parametrize(
    "kind", ["lines", "packed lines", "counted files", "stream with a state", "ready batches"]
)
def test_every_example_once_and_the_same_states(tmp_path, kind, shape):
    """Audited; on two workers with two ranks each, and on one worker with four."""
    write_files(tmp_path)
    ranks = run_ranks(partial(once_and_resumed, str(tmp_path), kind, shape), 4)
    workers = {rank[0]: rank for rank in ranks}
    assert all(rank == workers[rank[0]] for rank in ranks)
    got = [x for _, steps, *_ in workers.values() for x in examples(steps)]
    assert list(range(COUNT)) == sorted(map(int, got))
    _, steps, _, length = workers[0]
    assert length in (None, len(steps))


def resumed_from_own_places(folder, _):
    """Half of an epoch, and the rest; the second partners have heard of no place to go on from."""
    strategy = strategy_on(*TWO_BY_TWO)
    dataset = strategy.distribute_dataset(open_source(folder, "lines"), global_batch_size=4)
    at_first = dataset.state_dict()["streams"]
    head = played(strategy, dataset, 4)
    state = dataset.state_dict()
    if torch.distributed.get_rank() % 2:
        state["streams"] = at_first
    dataset.load_state_dict(state)
    return state["streams"], strategy.worker_index, examples(head + played(strategy, dataset))


def test_partners_go_on_each_from_its_own_place(tmp_path):
    """When they hear of a place depends on the time, and what they read from there does not."""
    write_files(tmp_path)
    ranks = run_ranks(partial(resumed_from_own_places, str(tmp_path)), 4)
    assert ranks[0][0] != ranks[1][0]
    assert [ranks[0][1:], ranks[2][1:]] == [ranks[1][1:], ranks[3][1:]]
    assert list(range(COUNT)) == sorted(map(int, ranks[0][2] + ranks[2][2]))


class Augmented(torch.utils.data.Dataset):
    """Its examples are changed by random numbers, which the ranks have not seeded alike."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index + torch.rand(())


class Shuffled(torch.utils.data.IterableDataset):
    """So is its order."""

    def __iter__(self):
        yield from torch.randperm(COUNT)


def played_by_partners(source, how, _):
    strategy = strategy_on((1, 2), ("dp", "tp"), replicate_input=how)
    return examples(played(strategy, strategy.distribute_dataset(source(), global_batch_size=4)))


@pytest.mark.slow
@pytest.mark.parametrize("source", [Augmented, Shuffled])
def test_partners_that_would_get_other_data_are_told(source):
    """The one that comes second; the other may be through with its data by then."""
    outcomes = run_ranks_outcomes(partial(played_by_partners, source, "read"), 2)
    words = [described(outcome) for outcome in outcomes]
    assert any("Expected the same batches on rank" in said for said in words)
    ranks = run_ranks(partial(played_by_partners, source, "broadcast"), 2)
    assert ranks[0] == ranks[1]


class OfFolders(torch.utils.data.Dataset):
    """The same files, which lie in another folder on each machine."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return f"/data/of-{torch.distributed.get_rank()}/{index}.png"


def played_files(_):
    strategy = strategy_on((1, 2), ("dp", "tp"), replicate_input="read")
    dataset = strategy.distribute_dataset(OfFolders(), global_batch_size=4)
    return sum(len(batch) for batch in dataset)


def test_partners_may_have_their_files_in_folders_of_their_own():
    assert [COUNT] * 2 == run_ranks(played_files, 2)


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


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_a_partner_that_leaves_early(first):
    """The other one does not wait for it for ever."""
    outcomes = run_ranks_outcomes(partial(left_alone, first), 2)
    assert 2 == outcomes[first].result
    words = described(outcomes[1 - first])
    assert words.startswith(("PeerFailedError", "PeerTimeoutError"))
    assert "loop" in words or "left after" in words
