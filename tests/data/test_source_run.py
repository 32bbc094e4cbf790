"""How the state of a source travels: the example at the head of ``user_sources/run``, played."""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from tests.distribute.stateful_sources import Forgetful, OwnIterator, Shuffled, order_of
from torch_distinput.data.user_sources.run import SourceRun
from torch_distinput.data.user_sources.states import (
    UnreadableStateError,
    make_place,
    next_epoch,
    pack_state,
    unpack_state,
)


def place(number, *words):
    """The place of an example."""
    return make_place({"example": number}, *words)


SAVED = place(2, '{"n": 2}', 'new:{"n": 0}')
AFTER_0 = place(0, 'after 0-0:{"n": 2}')


class Count(IterableDataset):
    """Counts its four examples, and goes on behind those that it has counted."""

    def __init__(self):
        self.n = 0

    def __iter__(self):
        while self.n < 4:
            self.n += 1
            yield self.n - 1
        self.n = 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


def half_an_epoch():
    """A source in the midst of its first epoch, and its run."""
    source = Count()
    run = SourceRun(source, epoch=0)
    assert [0, 1] == [next(run.items), next(run.items)]
    return source, run


def test_a_start_has_our_numbers_the_place_and_the_beginning():
    _, run = half_an_epoch()
    assert place(0, 'new:{"n": 0}') == run.beginning(example=0)
    assert run.place(example=2) == SAVED


@pytest.mark.parametrize(
    ("start", "ended", "expected"),
    [
        (SAVED, False, place(0, 'left:new:{"n": 0}')),
        (SAVED, True, AFTER_0),
        (AFTER_0, True, place(0, 'after 0-1:{"n": 2}')),
        (AFTER_0, False, AFTER_0),
    ],
)
def test_the_start_of_the_next_epoch(start, ended, expected):
    epoch = 0 if start == SAVED else 1
    assert expected == next_epoch(start, epoch, ended=ended)


@pytest.mark.parametrize("is_new", [False, True], ids=["this process", "a new process"])
@pytest.mark.parametrize(
    ("start", "epoch", "expected"),
    [
        (SAVED, 0, [2, 3]),
        (place(0, 'left:new:{"n": 0}'), 1, [0, 1, 2, 3]),
        (AFTER_0, 1, [0, 1, 2, 3]),
        (place(0, 'after 0-1:{"n": 2}'), 2, [0, 1, 2, 3]),
    ],
    ids=["go on", "after a break", "after the end", "after two epochs"],
)
def test_what_is_played_from_a_start(start, epoch, expected, is_new):
    source, _ = half_an_epoch()
    run = SourceRun(Count() if is_new else source, start, epoch=epoch)
    assert expected == list(run.items)


@pytest.mark.parametrize(
    "is_left", [True, False, None], ids=["left", "its state is loaded", "distributed once more"]
)
def test_an_epoch_begins_again_that_went_on_here_and_was_read_to_its_end(is_left):
    """The source was never at its beginning in this process, and is behind its end now."""
    run = SourceRun(Shuffled(), epoch=0)
    for _ in range(4):
        next(run.items)
    saved, beginning = run.place(example=4), run.beginning(example=0)
    source = Shuffled()
    assert order_of(0)[4:] == list(SourceRun(source, saved, epoch=0).items)
    left = next_epoch(saved, 0, ended=False)
    again = {True: left, False: beginning, None: None}[is_left]
    assert order_of(0) == list(SourceRun(source, again, epoch=0).items)


@pytest.mark.parametrize(
    "state",
    [
        {"at": 3},
        {"at": (1, 2), 3: float("inf")},
        {"seen": {1, 2}, "bytes": b"a"},
        OrderedDict(at=np.int64(3)),
        {"at": np.int64(3), "of": [np.float32(0.5), np.bool_(True)]},
        np.random.RandomState(1).get_state(),
        np.random.Generator(np.random.MT19937(1)).bit_generator.state,
        np.random.default_rng(1).bit_generator.state,
        torch.Generator().manual_seed(1).get_state(),
        {"names": np.array(["a", "bc"]), "at": np.datetime64("2020-01-01")},
    ],
)
def test_a_state_of_a_source_is_read_as_it_was_written(state):
    same = unpack_state(pack_state(state))
    if isinstance(state, torch.Tensor):
        assert torch.equal(same, state)
    else:
        np.testing.assert_equal(same, state)
    assert type(same) is type(state)
    if isinstance(state, dict):
        assert list(map(type, state.values())) == list(map(type, same.values()))


@pytest.mark.parametrize(
    "value",
    [deque([1]), Count, np.array([None]), np.ma.masked_all(1), np.random.default_rng(1)],
    ids=str,
)
def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_written(value):
    with pytest.raises(UnreadableStateError, match=r"\w+"):
        pack_state({"at": [value]})


def test_a_source_whose_state_cannot_be_read_again_goes_on_without(caplog):
    """Its examples are read again, from the last state that can be."""
    source = Count()
    source.state_dict = lambda: {"n": source.n, "kept": deque() if source.n > 1 else 0}
    run = SourceRun(source, epoch=0)
    next(run.items)
    assert place(1, '{"n": 1, "kept": 0}', 'new:{"n": 0, "kept": 0}') == run.place(example=1)
    next(run.items)
    for _ in range(2):
        assert run.place(example=2) is None
    (said,) = caplog.messages
    assert "state_dict() of Count holds collections.deque" in said
    assert [2, 3] == list(run.items)


@pytest.mark.parametrize("make", [Shuffled, OwnIterator, Forgetful])
def test_an_epoch_that_was_left_begins_alike_here_and_in_a_new_process(make):
    """Also that of a source which forgets in ``__iter__`` what was loaded."""
    source = make()
    run = SourceRun(source, epoch=0)
    for _ in range(4):
        next(run.items)
    left = next_epoch(run.place(example=4), 0, ended=False)
    assert order_of(0) == list(SourceRun(source, left, epoch=1).items)
    assert order_of(0) == list(SourceRun(make(), left, epoch=1).items)
