"""Batches of one structure and dtype: in all steps of an epoch, and on all workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi
from tests.distribute.street import one, stream_of
from torch_distinput.testing import simulate

SINGLE, DOUBLE = np.float32(1), np.float64(1)


class Indexed(Dataset):
    """Examples by index; they may be others in each epoch."""

    def __init__(self, *epochs):
        self.epochs = epochs
        self.examples = epochs[0]

    def set_epoch(self, epoch):
        """Show those of an epoch."""
        self.examples = self.epochs[epoch % len(self.epochs)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def outcomes(make, *, size=2, workers=2, **keywords):
    """The dtypes of each worker's batches, and its error if it has one.

    All of them come to a collective in each step, as training does.
    """

    def work(strategy):
        dataset = strategy.distribute_dataset(make(), global_batch_size=size, **keywords)
        dtypes = []
        try:
            for batch in dataset:
                dtypes.append(batch.dtype)
                strategy.reduce("sum", torch.ones(1))
        except (ValueError, tdi.DistinputError) as error:
            return dtypes, error
        return dtypes, None

    return simulate(work, num_workers=workers)


def refusal_of(found):
    """What a worker refuses, while all of them raise; all refuse where they voted in time."""
    errors = [error for _, error in found]
    assert None not in errors, found
    refused = [str(error) for error in errors if isinstance(error, tdi.MismatchError)]
    return refused[0]


# ---------------------------------------------------------------- from step to step


@pytest.mark.parametrize("wrap", [Indexed, stream_of], ids=["by index", "stream"])
@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"x": SINGLE}, {"x": DOUBLE}, r"torch.float32 at batch\['x'\], as before, got .*float64"),
        ({"x": 1}, {"x": SINGLE}, r"torch.int64 at batch\['x'\], as before, got torch.float32"),
        ({"x": "a"}, {"x": 1}, r"a list, or None at batch\['x'\], as before, got torch.int64"),
        ({"x": 1}, {"y": 1}, r"batch\['x'\].*, as before, got .*batch\['y'\]"),
        ({"x": 1}, {"x": 1, "y": 1}, r"as before, got the parts .*batch\['y'\]"),
        ({"x": 1, "y": None}, {"x": 1, "y": 2}, r"a list, or None at batch\['y'\], as before"),
        ((1, 2), {0: 1, 1: 2}, "tuple at batch, as before, got dict"),
        (torch.ones(3), torch.ones(3, 1), "float32 of 2 dimensions .* got .* of 3 dimensions"),
    ],
)
def test_examples_that_change_are_refused(wrap, before, now, words):
    """With the leaf, both kinds and a cure."""
    dataset = one().distribute_dataset(wrap([before] * 4 + [now] * 4), global_batch_size=4)
    iterator = iter(dataset)
    next(iterator)
    words = f"Expected .*{words}.* in step 1: .*Give all examples the same"
    with pytest.raises(tdi.SourceError, match=words):
        next(iterator)


def test_all_workers_hear_of_a_change():
    """It changes at the same step on all of them, as here, or on one only."""
    found = outcomes(lambda: Indexed([SINGLE] * 4 + [DOUBLE] * 4), size=4)
    assert [[torch.float32]] * 2 == [dtypes for dtypes, _ in found]
    assert all(error is not None for _, error in found)
    assert any("float64" in str(error) for _, error in found)


def test_workers_differ_in_the_number_of_dimensions():
    """Where one worker alone could not stack these examples."""
    found = outcomes(lambda: Indexed([torch.ones(3), torch.ones(3, 1)] * 2))
    assert "of 3 dimensions" in refusal_of(found)


def test_keys_may_come_in_any_order():
    """They are looked up by name."""
    examples = [{"x": 1, "y": SINGLE}] * 2 + [{"y": SINGLE, "x": 1}] * 2
    assert 2 == len(list(one().distribute_dataset(Indexed(examples), global_batch_size=2)))


@pytest.mark.parametrize("is_told", [False, True])
def test_another_epoch_may_have_other_types(is_told):
    """Labels that are mixed from the second epoch on, for example; also where the spec was told."""
    dataset = one().distribute_dataset(Indexed([1] * 4, [SINGLE] * 4), global_batch_size=2)
    if is_told:
        assert torch.int64 == dataset.element_spec.dtype
    epochs = [[batch.dtype for batch in dataset] for _ in range(2)]
    assert [[torch.int64] * 2, [torch.float32] * 2] == epochs


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"ids": [1, 2, 3]}, {"ids": [1, 2]}),
        ({"x": 1, "note": None}, {"x": 1, "note": "a"}),
        ({"x": 1, "note": "a"}, {"x": 1, "note": None}),
    ],
    ids=["more numbers", "a text at last", "no text any more"],
)
def test_lists_may_be_longer_and_texts_may_be_missing(before, now):
    """As tokenizers give lists, and as optional texts are None in all examples of a small batch."""
    source = Indexed([before] * 2 + [now] * 2)
    assert 2 == len(list(one().distribute_dataset(source, global_batch_size=2)))


def collate_by_first(examples):
    """A collate_fn that changes the type on purpose."""
    return torch.tensor(examples, dtype=torch.float32 if examples[0] < 4 else torch.float16)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "distribute",
    [
        lambda s: s.distribute_dataset(
            list(range(8)), global_batch_size=4, collate_fn=collate_by_first
        ),
        lambda s: s.distribute_dataset(
            DataLoader(Indexed(range(8)), batch_size=4, collate_fn=collate_by_first)
        ),
        lambda s: s.distribute_dataset(
            DataLoader(
                Indexed([SINGLE] * 4 + [np.float16(1)] * 4),
                batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7]],
            )
        ),
        lambda s: s.distribute_dataset(stream_of([torch.ones(4), torch.ones(4).half()])),
        lambda s: s.distribute_datasets_from_function(
            lambda _: [torch.ones(2), torch.ones(2).half()]
        ),
    ],
    ids=["collate_fn", "loader", "batch sampler", "ready batches", "function"],
)
def test_what_the_user_makes_may_change_on_purpose(distribute, workers):
    """Ready batches, and what a batch sampler or a collate_fn of the user's makes."""
    found = simulate(lambda s: [b.dtype for b in distribute(s)], num_workers=workers)
    assert [[torch.float32, torch.float16]] * workers == found


def test_a_collate_fn_does_not_change_between_plain_numbers():
    """A type that depends on the values of a batch is no purpose."""
    source = stream_of([1, 2, 2.5, 4.5])
    dataset = one().distribute_dataset(source, global_batch_size=2, collate_fn=torch.tensor)
    assert 2 == len(list(dataset))  # float32
    mixed = one().distribute_dataset(source, global_batch_size=2, collate_fn=collate_numbers)
    with pytest.raises(tdi.SourceError, match="int64 at batch, as before, got torch.float64"):
        list(mixed)


def collate_numbers(examples):
    """As NumPy does it."""
    return torch.from_numpy(np.array(examples))


def test_what_is_padded_does_not_change_beside_it():
    """It is our rule that makes the batches, though it is passed as a collate_fn."""
    ones = torch.ones(2)
    source = stream_of([{"x": ones, "n": SINGLE}] * 2 + [{"x": ones, "n": DOUBLE}] * 2)
    dataset = one().distribute_dataset(
        source, global_batch_size=2, collate_fn=tdi.pad_collate({"x": 0})
    )
    with pytest.raises(tdi.SourceError, match="float32 at batch.'n'., as before, got"):
        list(dataset)


def test_numbers_of_one_of_several_columns_do_not_change_in_ready_batches():
    """Also where all columns of the batch before were of one type, in a tuple."""
    ones = torch.ones(2, dtype=torch.int64)
    dataset = one().distribute_dataset(stream_of([(ones, ones), (ones, ones.double())]))
    with pytest.raises(tdi.SourceError, match=r"int64 at batch\[1\], as before, got torch.float64"):
        list(dataset)


# ---------------------------------------------------------------- on all workers


@pytest.mark.parametrize("num_processes", [0, 1])
@pytest.mark.parametrize("wrap", [Indexed, stream_of], ids=["by index", "stream"])
def test_workers_with_other_types_are_refused(wrap, num_processes):
    """Rows 1, 2 for one of them and 2.5, 4.5 for the other."""
    make = lambda: wrap([1, 2, 2.5, 4.5] * 2)
    found = outcomes(make, size=4, num_workers=num_processes)
    if wrap is stream_of:  # they vote, and all have been shown all
        assert all(isinstance(error, tdi.MismatchError) for _, error in found)
        refused = str(found[0][1])
    else:
        refused = refusal_of(found)
    for words in ("one structure and dtype", "int64", "float64", "worker 0", "worker 1", "Give"):
        assert words in refused


def test_a_collate_fn_that_makes_other_types_on_one_worker():
    """Of plain numbers; else its types are its own affair."""
    source = [1, 2, 2.5, 4.5] * 2
    assert "int64" in refusal_of(outcomes(lambda: source, size=4, collate_fn=collate_numbers))
    found = outcomes(lambda: list(range(8)), size=8, collate_fn=collate_by_first)
    assert [([torch.float32], None), ([torch.float16], None)] == found


def write_arrays(folder, *dtypes):
    """A file for each dtype, whose rows are counted beforehand."""
    for number, dtype in enumerate(dtypes):
        np.save(folder / f"{number}.npy", np.ones(4, dtype=dtype))
    return str(folder / "*.npy")


@pytest.mark.parametrize("size", [4, 1], ids=["at once", "after a step without rows"])
def test_files_of_other_types_on_each_worker(tmp_path, size):
    """A worker is compared when its first rows come: a batch of one is dealt in turn."""
    files = write_arrays(tmp_path, "float32", "float64")
    found = outcomes(lambda: tdi.FileDataset(files, reader="npy"), size=size)
    refused = refusal_of(found)
    assert "torch.float32 at batch on worker 0 and torch.float64 on worker 1" in refused or (
        "torch.float64 at batch on worker 1 and torch.float32 on worker 0" in refused
    )


def test_workers_are_compared_when_an_epoch_goes_on():
    """Also on another number of workers: nothing of it is in the state."""
    source = Indexed([1, 2] + [1, 2.5] * 8)

    def play(strategy, state=None):
        dataset = strategy.distribute_dataset(source, global_batch_size=2)
        if state is None:
            next(iter(dataset))
            return dataset.state_dict()
        dataset.load_state_dict(state)
        try:
            for _ in dataset:
                strategy.reduce("sum", torch.ones(1))
        except tdi.DistinputError as error:
            return error
        return None

    (state,) = simulate(play, num_workers=1)
    found = simulate(lambda s: play(s, state), num_workers=2)
    assert "float64" in refusal_of([((), error) for error in found])


def test_an_epoch_without_a_step_compares_nothing():
    """There is no batch."""
    found = outcomes(lambda: Indexed([1, 2.5]), size=4, drop_last=True)
    assert [([], None)] * 2 == found


def test_a_worker_that_never_has_rows_is_in_nobodys_way():
    """Its batches without rows are like those of the source."""
    found = outcomes(lambda: Indexed([SINGLE, SINGLE]), size=1)
    assert [([torch.float32] * 2, None)] * 2 == found


def test_a_voting_worker_whose_first_rows_come_late():
    """So late that it has introduced none: batches of one long example come first."""
    long, short = {"n": 4, "x": SINGLE}, {"n": 2, "x": SINGLE}
    source = stream_of([long] * 100 + [short, {**short, "x": DOUBLE}] * 4)
    budget = tdi.TokenBudget(4, length=lambda example: int(example["n"]))

    def work(strategy):
        try:
            for _ in strategy.distribute_dataset(source, global_batch_size=budget):
                strategy.reduce("sum", torch.ones(1))
        except tdi.DistinputError as error:
            return error
        return None

    found = simulate(work, num_workers=2)
    refused = refusal_of([((), error) for error in found])
    assert "float32" in refused
    assert "float64" in refused


def test_voting_workers_whose_files_have_other_orders_of_columns(tmp_path):
    """They are looked up by name."""
    for number, line in enumerate(['{"x": 1, "y": 2}\n', '{"y": 2, "x": 1}\n']):
        (tmp_path / f"{number}.jsonl").write_text(line * 4)

    def work(strategy):
        files = tdi.FileDataset(str(tmp_path / "*.jsonl"), reader="jsonl")
        dataset = strategy.distribute_dataset(files, global_batch_size=4)
        return [batch["y"].tolist() for batch in dataset]

    assert [[[2, 2]] * 2] * 2 == simulate(work, num_workers=2)


# ---------------------------------------------------------------- mixtures


@pytest.mark.parametrize("num_processes", [0, 1])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [2, 1])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: torch.zeros(8), lambda: torch.zeros(8).double()),
        (lambda: Indexed([SINGLE] * 8), lambda: Indexed([DOUBLE] * 8)),
        (lambda: stream_of([SINGLE] * 8), lambda: stream_of([DOUBLE] * 8)),
    ],
    ids=["columns", "by index", "stream"],
)
def test_mixtures_of_other_types(first, second, size, workers, num_processes):
    """Also where a worker, or a batch, has rows of one source only."""
    make = lambda: tdi.mix({"one": first(), "two": second()}, weights=(1, 1))
    found = outcomes(make, size=size, workers=workers, num_workers=num_processes)
    assert all(error is not None for _, error in found)
    assert any("float32" in str(error) and "float64" in str(error) for _, error in found)


def test_loader_processes_name_the_sources_of_a_mixture_on_all_workers():
    """Before the first step, as without them."""
    sources = {"one": Indexed([SINGLE] * 8), "two": Indexed([DOUBLE] * 8)}
    found = outcomes(lambda: tdi.mix(sources, weights=(1, 1)), num_workers=1)
    for dtypes, error in found:
        assert [] == dtypes
        assert "float32 at batch in 'one' and torch.float64 in 'two'" in str(error)


def test_mixtures_of_longer_and_shorter_tuples():
    """A batch of both could not be made."""
    sources = {"one": Indexed([(1, 2)] * 8), "two": Indexed([(1, 2, 3)] * 8)}
    (found,) = outcomes(lambda: tdi.mix(sources, weights=(1, 1)), workers=1)
    assert "Expected sources of one structure to mix" in str(found[1])
