"""Mixtures that cannot be: said when they are written, or on every rank."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

import torch_distinput as tdi
from tests.distribute.mixtures import Rows
from tests.distribute.resumes import run
from tests.distribute.street import one, options, stream_of, write_files
from torch_distinput.testing import simulate

TWO = {"web": torch.arange(4), "code": torch.arange(9)}


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        ((1, -0.5), ValueError, "from 0 on, got -0.5 for 'code'"),
        ((1, math.nan), ValueError, "finite weights from 0 on, got nan for 'code'"),
        ((math.inf, 1), ValueError, "got inf for 'web'"),
        ((0, 0.0), ValueError, "a weight above 0, got \\[0, 0.0\\]"),
        ((1, 2, 3), ValueError, "2 weights, one for each of web, code, got 3"),
        ({"web": 1}, ValueError, "each of its sources web, code, got weights of web"),
        ({"web": 1, "kode": 1}, ValueError, "got weights of web, kode"),
        ((1, "2"), TypeError, "numbers as weights, got '2' for 'code'"),
        ((1, True), TypeError, "got True for 'code'"),
        (1, TypeError, "by name or in a sequence, got 1"),
        ({0.3, 0.7}, TypeError, "by name or in a sequence, got {"),
        (np.ones((2, 2)), TypeError, "numbers as weights, got array.* for 'web'"),
    ],
)
def test_weights(weights, error, words):
    """Negative, all zero, NaN, of another length or other names."""
    with pytest.raises(error, match=words):
        tdi.mix(TWO, weights=weights)
    with pytest.raises(error, match=words):
        tdi.mix(TWO, weights=tdi.schedule({0: (1, 1), 5: weights}))


@pytest.mark.parametrize(
    "weights",
    [
        np.array([0.5, 2]),
        np.array([0.2, 0.8], dtype=np.float32),
        torch.tensor([0.2, 0.8]),
        torch.tensor([1, 4]),
        [Fraction(1, 4), 1],
    ],
)
def test_numbers_of_all_kinds_are_weights(weights):
    """They are fractions at once, and exact."""
    assert Fraction(4) == Fraction(*reversed(tdi.mix(TWO, weights=weights).points[0][1]))


@pytest.mark.parametrize(
    ("points", "error", "words"),
    [
        ({0: (1, 1), 7: (1, 2), 7.5: (1, 1)}, TypeError, "whole numbers"),
        ({0: (1, 1), 9: (1, 2), 7: (1, 1)}, ValueError, "and increase, got 0, 9, 7"),
        ({5: (1, 1)}, ValueError, "begin with 0"),
        ({}, ValueError, "got {}"),
        ([(0, (1, 1))], TypeError, "by the example"),
    ],
)
def test_schedules(points, error, words):
    """Points that do not increase, or leave the beginning open."""
    with pytest.raises(error, match=words):
        tdi.schedule(points)


def test_what_else_is_misspelt():
    """Each with what there is instead."""
    with pytest.raises(ValueError, match="'first', 'all', 'repeat', got 'last'"):
        tdi.mix(TWO, weights=(1, 1), stop="last")
    with pytest.raises(ValueError, match="'examples' or 'steps', got 'tokens'"):
        tdi.schedule({0: (1, 1)}, unit="tokens")
    with pytest.raises(TypeError, match="sources by name"):
        tdi.mix([torch.arange(3)], weights=(1,))
    with pytest.raises(ValueError, match="one source or more"):
        tdi.mix({}, weights=())
    with pytest.raises(ValueError, match="above 0 at the end with stop='all'.* got 0 for code"):
        tdi.mix(TWO, weights=(1, 0), stop="all")


class Counted(IterableDataset):
    """A stream with a state of its own."""

    def __iter__(self):
        return iter(range(3))

    def state_dict(self):
        """Nothing."""
        return {}

    def load_state_dict(self, state):
        """Nothing."""


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (torch.empty(0), ValueError, "got none in 'x'"),
        (DataLoader(Rows(range(4)), batch_size=2), ValueError, "'x' .*Pass its dataset"),
        (3, TypeError, "'x' of a mixture: Expected a source"),
        (Counted(), ValueError, "'x', a Counted with a state_dict"),
    ],
)
def test_sources_that_cannot_be_mixed(source, error, words):
    """Named, with the cure."""
    with pytest.raises(error, match=words):
        one().distribute_dataset(
            tdi.mix({"a": torch.arange(3), "x": source}, weights=(1, 1)), global_batch_size=2
        )


class Counting(IterableDataset):
    """A stream without a state."""

    def __iter__(self):
        return iter(range(3))


def test_one_stream_under_two_names():
    """It would be read by both; a function is called for each."""
    stream = Counting()
    with pytest.raises(ValueError, match="got one Counting as 'a' and 'b'"):
        one().distribute_dataset(
            tdi.mix({"a": stream, "b": stream}, weights=(1, 1)), global_batch_size=2
        )
    function = stream_of(range(2))
    mixture = tdi.mix({"a": function, "b": function}, weights=(1, 1))
    (step,) = one().distribute_dataset(mixture, global_batch_size=4)
    assert [0, 0, 1, 1] == step.tolist()


def test_one_stream_in_a_mixture_and_in_one_inside():
    """It would be read by both, too."""
    stream = Counting()
    inner = tdi.mix({"again": stream}, weights=(1,))
    with pytest.raises(ValueError, match="as 'once' and 'inner: again'"):
        one().distribute_dataset(
            tdi.mix({"once": stream, "inner": inner}, weights=(1, 1)), global_batch_size=2
        )


def test_steps_of_a_mixture_inside():
    """A step has only some of its examples: a point would come later than it says."""
    points = tdi.schedule({0: (1, 1), 2: (1, 3)}, unit="steps")
    inner = tdi.mix(TWO, weights=points)
    with pytest.raises(ValueError, match="got steps in 'inner'. Use unit=\"examples\""):
        one().distribute_dataset(
            tdi.mix({"inner": inner, "more": torch.arange(4)}, weights=(1, 1)),
            global_batch_size=2,
        )


def test_a_stream_cannot_be_shuffled():
    """As by itself."""
    mixture = tdi.mix({"a": stream_of(range(3))}, weights=(1,))
    with pytest.raises(ValueError, match="'a' of a mixture: shuffle=True needs a source with an"):
        one().distribute_dataset(mixture, global_batch_size=2, shuffle=True)


def messages_of(source, size=2, workers=2, **keywords):
    """What each worker raises."""

    def work(strategy):
        try:
            list(strategy.distribute_dataset(source(), global_batch_size=size, **keywords))
        except (ValueError, tdi.DistinputError) as error:
            return str(error)
        return None

    return simulate(work, num_workers=workers)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"x": torch.arange(3), "z": torch.arange(3)}, "batch['z']"),
        ({"x": torch.arange(3.0), "y": torch.arange(3)}, "float32"),
        ([{"x": 1}], "batch['x']"),
        (Rows([{"x": 1.5, "y": 1}]), "float64"),
        (stream_of([{"x": 1.5, "y": 1}] * 3), "float64"),
        (stream_of([{"y": 1}] * 3), "batch['y']"),
    ],
)
def test_sources_of_different_structure(other, words):
    """On every rank, with both sources and both structures."""
    first = {"x": torch.arange(3), "y": torch.arange(3)}
    said = messages_of(lambda: tdi.mix({"one": first, "two": other}, weights=(1, 1)), size=4)
    for message in said:
        assert message is not None
        assert "sources of one structure" in message
        assert words in message
        assert "'one'" in message
        assert "'two'" in message


def test_rows_of_different_shapes():
    """Told with both shapes and both sources; a collate_fn may pad them."""
    sources = {"one": torch.zeros(3, 2), "two": torch.zeros(3, 5)}
    said = messages_of(lambda: tdi.mix(sources, weights=(1, 1)), size=4)
    assert all("got (2,) in 'one' and (5,) in 'two'" in message for message in said), said


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_a_stream_without_examples(stop):
    """Found when its turn comes, on every rank."""
    sources = {"one": torch.arange(3), "two": stream_of([])}
    said = messages_of(lambda: tdi.mix(sources, weights=(1, 1), stop=stop))
    assert all(message.endswith("look for what has emptied it.") for message in said), said
    assert all("got none in 'two'" in message for message in said)


def test_a_stream_that_can_be_read_once():
    """It has nothing for a second pass."""

    def source():
        left = [0, 1]

        def drain():
            while left:
                yield left.pop()

        sources = {"short": drain, "long": torch.arange(9)}
        return tdi.mix(sources, weights=(1, 1), stop="repeat")

    said = messages_of(source)
    assert all("give its examples again" in message for message in said), said


@pytest.mark.parametrize("kind", ["index", "stream"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": (2, 1)}, "weights was"),
        ({"weights": tdi.schedule({0: (1, 1), 9: (1, 2)})}, "weights was"),
        ({"stop": "repeat"}, "stop was 'all', and here it is 'repeat'"),
        ({"names": ("b", "a")}, "sources was"),
        ({"length": 8}, "number of examples was"),
    ],
)
def test_a_state_of_another_mixture(kind, change, words):
    """What has changed is said; the place would mean something else."""

    def make_of(*, weights=(1, 1), stop="all", names=("a", "b"), length=6):
        first = torch.arange(5) if kind == "index" else stream_of(range(5))

        def make(strategy):
            sources = dict(zip(names, (first, torch.arange(length)), strict=True))
            source = tdi.mix(sources, weights=weights, stop=stop)
            return strategy.distribute_dataset(source, global_batch_size=2)

        return make

    _, state = run(make_of(), (2, 1), steps=2)
    with pytest.raises(ValueError, match=words):
        run(make_of(**change), (2, 1), state=state)


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("is_saved_mixed", [False, True])
def test_a_state_of_as_many_examples_that_are_not_mixed(is_inside, is_saved_mixed):
    """The number is the same, and the order another: by itself as in a mixture."""

    def make_of(is_mixed):
        source = tdi.mix(TWO, weights=(1, 1), stop="all") if is_mixed else torch.arange(13)
        if is_inside:
            source = tdi.mix({"own": source, "more": torch.arange(3)}, weights=(1, 1), stop="all")
        return lambda strategy: strategy.distribute_dataset(source, global_batch_size=2)

    _, state = run(make_of(is_saved_mixed), (2, 1), steps=2)
    with pytest.raises(ValueError, match="sources? was"):
        run(make_of(not is_saved_mixed), (2, 1), state=state)


def test_ranks_with_different_weights():
    """Compared at the start, as all that decides the order."""

    def work(strategy):
        weights = (1, 1 + strategy.worker_index)
        dataset = strategy.distribute_dataset(tdi.mix(TWO, weights=weights), global_batch_size=2)
        with pytest.raises(tdi.MismatchError, match="weights"):
            iter(dataset)

    simulate(work, num_workers=2)


@pytest.mark.parametrize("make", [torch.tensor, Rows, lambda own: Subset(Rows(own), range(8))])
def test_ranks_with_other_examples_of_one_source(make):
    """Also where the first examples of all batches are of the other source."""

    def work(strategy):
        own = [100 * strategy.worker_index + row for row in range(9)]
        sources = {"same": torch.arange(8), "split": make(own)}
        dataset = strategy.distribute_dataset(
            tdi.mix(sources, weights=(1, 1)), global_batch_size=4
        )
        with pytest.raises(tdi.MismatchError):
            iter(dataset)

    simulate(work, num_workers=2)


def test_files_that_cannot_be_dealt_out(tmp_path):
    """Under FILE each source has files, enough of them, and weights that stay."""
    files = tdi.FileDataset(write_files(tmp_path, [[1], [2]])).map(int)
    dealt = options(auto_shard_policy="file")
    mixture = tdi.mix({"a": files, "b": torch.arange(3)}, weights=(1, 1))
    with pytest.raises(ValueError, match="to deal out in each source.* got 'b', a Tensor"):
        one().distribute_dataset(mixture, global_batch_size=2, options=dealt)
    points = tdi.schedule({0: (1, 1), 5: (1, 2)})
    changing = tdi.mix({"a": files, "b": files}, weights=points)
    with pytest.raises(ValueError, match="constant weights"):
        one().distribute_dataset(changing, global_batch_size=2, options=dealt)
    dataset = one().distribute_dataset(changing, global_batch_size=2)
    assert "data" == dataset.auto_shard_policy
    both = tdi.mix({"a": files, "b": files}, weights=(1, 1))
    said = messages_of(lambda: both, workers=3)
    assert all("has 2 for 3 workers" in message for message in said)
