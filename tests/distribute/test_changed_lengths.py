"""Lengths that are not the same each time: said wherever rows would be lost or come twice."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.packings import dicts, documents, write_documents
from tests.distribute.street import one, options, stream_of
from torch_distinput.data.sources.resolve import open_source
from torch_distinput.data.sources.source import Request
from torch_distinput.testing import simulate

SIZES = [3, 5, 2, 7, 4, 6, 1, 2]


def bucketed(source, boundaries=(3, 5), length="input_ids", window=4):
    return tdi.bucket(source, length=length, boundaries=boundaries, window=window)


def packed(source, length=8, window=4):
    return tdi.pack(source, length=length, window=window)


def distribute(strategy, source, policy="data"):
    """Two examples, or rows, a step."""
    return strategy.distribute_dataset(
        source,
        global_batch_size=2,
        collate_fn=tdi.pad_collate(),
        options=options(auto_shard_policy=policy),
    )


def after(steps, source):
    """The state after some steps."""
    dataset = distribute(one(), source)
    list(itertools.islice(iter(dataset), steps))
    return json.loads(json.dumps(dataset.state_dict()))


@pytest.mark.parametrize("make", [bucketed, packed])
def test_a_window_of_other_lengths_is_not_gone_on_with(make):
    """Rows are passed over by their number: of another plan they would be others."""
    state = after(1, make(stream_of(dicts(documents(SIZES)))))
    dataset = distribute(one(), make(stream_of(dicts(documents([5, 3, *SIZES[2:]])))))
    dataset.load_state_dict(state)
    with pytest.raises(tdi.SourceError, match="a state stands to be made of examples of the same"):
        list(dataset)


@pytest.mark.parametrize("make", [bucketed, packed])
def test_a_window_that_is_still_to_come_may_change(make):
    """Nothing of it has been delivered."""
    source = make(stream_of(dicts(documents(SIZES))))
    state = after(1, source)
    dataset = distribute(one(), make(stream_of(dicts(documents([*SIZES[:7], 1])))))
    dataset.load_state_dict(state)
    assert 1 + len(list(dataset)) == len(list(distribute(one(), source)))


@pytest.mark.parametrize("policy", ["data", "file"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda files, worker: packed(files, length=8 + worker), "pack: length of a row"),
        (lambda files, worker: packed(files, window=4 + worker), "pack: window"),
        (lambda files, worker: bucketed(files, (2 + worker, 5)), "bucket: boundaries"),
    ],
)
def test_workers_with_other_arguments_hear_of_it(tmp_path, policy, make, words):
    """Each by itself looks sound."""
    files = write_documents(tmp_path / "files", documents(SIZES), per_file=2)

    def work(strategy):
        return list(distribute(strategy, make(files, strategy.worker_index), policy))

    with pytest.raises(tdi.MismatchError, match=f"Expected the same {words} on all workers"):
        simulate(work, num_workers=2)


class CroppedByEpoch(torch.utils.data.Dataset):
    """Documents whose lengths are others in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return [index] * (1 + (index * 7 + 3 * self.epoch) % 9)


@pytest.mark.parametrize(
    ("size", "balance"),
    [(4, tdi.PaddedCost(len)), (4, len), (tdi.TokenBudget(20, length=len), None)],
)
def test_lengths_are_those_of_the_first_epoch(size, balance):
    """Whichever epoch is played first: one that is resumed goes on by what it has begun with."""

    def make(source):
        return one().distribute_dataset(
            source, global_batch_size=size, balance=balance, collate_fn=list
        )

    played = make(CroppedByEpoch())
    list(played)
    iterator = iter(played)
    next(iterator)
    resumed_from = CroppedByEpoch()
    resumed = make(resumed_from)
    resumed.load_state_dict(json.loads(json.dumps(played.state_dict())))
    rest = list(iterator)
    iterator = iter(resumed)
    assert 1 == resumed_from.epoch  # it was told epoch 0 before, to be measured
    assert rest == list(iterator)
    assert all(len(example) == 1 + (example[0] * 7 + 3) % 9 for step in rest for example in step)


class Cropped:
    """Documents of random lengths."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.arange(int(torch.randint(1, 9, ())))}


def test_measuring_documents_draws_no_random_numbers():
    """Those that a model is initialised with do not depend on it; and all ranks find the same."""

    def plan(seed):
        torch.manual_seed(seed)
        sources = (packed(Cropped()), bucketed(Cropped()))
        facts = [open_source(s, Request(global_batch_size=2)).facts for s in sources]
        return facts, torch.rand(2).tolist()

    torch.manual_seed(1)
    assert torch.rand(2).tolist() == plan(1)[1]
    assert plan(1)[0] == plan(2)[0]
