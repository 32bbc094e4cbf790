"""The oracle for states finds what it is there to find, and refuses what proves nothing."""

import threading

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.testing import assert_resumes_everywhere


class Forgetful(torch.utils.data.IterableDataset):
    """Says that it goes on behind what was read, and begins one example too late."""

    def __init__(self, too_late):
        self.too_late = too_late
        self.position = 0

    def __iter__(self):
        begin, self.position = self.position, 0
        for number in range(begin, 12):
            self.position = number + 1
            yield number
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"] + self.too_late * (state["position"] > 0)


@pytest.mark.parametrize("too_late", [False, True])
def test_a_source_that_loses_an_example(too_late):
    def make(strategy):
        return strategy.distribute_dataset(Forgetful(too_late), global_batch_size=4)

    if not too_late:
        assert_resumes_everywhere(make)
        return
    with pytest.raises(AssertionError, match="1 examples are lost and 0 repeated"):
        assert_resumes_everywhere(make)


@pytest.mark.parametrize("keywords", [{}, {"drop_last": True}])
def test_an_epoch_without_steps_proves_nothing(keywords):
    examples = range(3) if keywords else []

    def make(strategy):
        return strategy.distribute_dataset(list(examples), global_batch_size=4, **keywords)

    with pytest.raises(AssertionError, match="some steps, but it delivers none"):
        assert_resumes_everywhere(make)


def test_examples_that_cannot_be_compared_prove_nothing():
    def make(strategy):
        return strategy.distribute_dataset(
            [threading.Lock() for _ in range(8)],
            global_batch_size=4,
            collate_fn=lambda locks: {"lock": locks},
        )

    with pytest.raises(AssertionError, match=r"objects of class lock, which .* Map them to arrays"):
        assert_resumes_everywhere(make)


def test_drop_last_leaves_out_others_elsewhere(tmp_path):
    """A correct dataset, of which other workers leave out other examples: the cause is named."""
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text("".join(f"{part}{line}\n" for line in range(5)))

    def make(strategy):
        files = tdi.FileDataset(str(tmp_path / "*.txt"))
        return strategy.distribute_dataset(
            files,
            global_batch_size=4,
            drop_last=True,
            options=tdi.InputOptions(auto_shard_policy="file"),
        )

    assert_resumes_everywhere(make, elsewhere=())
    with pytest.raises(AssertionError, match=r"With drop_last, .* Pass elsewhere=\(\) then"):
        assert_resumes_everywhere(make)
