"""Each verdict of ``explain``: a loader that has the fault; those without are ordinary setups."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.inspect.doctor.loaders import (
    Augmented,
    DistributedSamplerWrapper,
    DividedStream,
    Numbers,
    Stream,
    Texts,
    sampled,
    sharded,
)
from torch_distinput import Explanation, explain

FAULTS: dict[str, tuple[Callable[[], Any], int, list[tuple[str, int]]]] = {
    "DistributedSampler repeats": (lambda: sampled(Numbers(61), 8), 8, [("repeated", 3)]),
    "Lightning's sampler repeats": (
        lambda: DataLoader(Numbers(61), 8, sampler=DistributedSamplerWrapper(Numbers(61), 8, 0)),
        8,
        [("repeated", 3)],
    ),
    "DistributedSampler drops": (lambda: sampled(Numbers(61), 8, drops=True), 8, [("dropped", 5)]),
    # 61 on 8 ranks: 8 each, batches of 5: each rank drops three positions, of which 3 are repeats
    "the loader drops": (
        lambda: sampled(Numbers(61), 8, batch_size=5, drop_last=True),
        8,
        [("dropped", 21)],
    ),
    "Accelerate repeats": (lambda: sharded(61, 2), 2, [("repeated", 3)]),
    "Accelerate drops": (lambda: sharded(61, 2, drop_last=True), 2, [("dropped", 13)]),
    "Accelerate is uneven": (
        lambda: sharded(72, 2, even=False),
        2,
        [("ranks end at different steps", 1)],
    ),
    "Accelerate splits and repeats": (lambda: sharded(61, 2, split=True), 2, [("repeated", 3)]),
    "nothing divides": (lambda: DataLoader(Numbers(61), 8), 8, [("not divided", 8)]),
    "a stream in two processes": (
        lambda: DataLoader(Stream(61), 8, num_workers=2),
        1,
        [("stream read several times", 2)],
    ),
    "a generator of the dataset": (
        lambda: DataLoader(Augmented(64), 8, num_workers=2),
        1,
        [("shared random numbers", 2)],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_number(name: str) -> None:
    make, num_ranks, expected = FAULTS[name]
    found = explain(make(), num_workers=num_ranks, read_examples=20).findings
    assert expected == [(finding.kind, finding.number) for finding in found]


class Arrays(Numbers):
    """Holds an array, a tensor, and an array in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(8)
        self.array = np.zeros(1 << 20, dtype=np.uint8)
        self.tensor = torch.zeros(1 << 20, dtype=torch.uint8)
        self.file = np.memmap(folder / "file", dtype=np.uint8, mode="w+", shape=1 << 20)


@pytest.fixture
def small_is_large(monkeypatch) -> None:
    monkeypatch.setattr("torch_distinput.inspect.doctor.verdicts.LARGE_BYTES", 1 << 20)


def in_processes(dataset: Any, method: str) -> DataLoader:
    return DataLoader(dataset, 8, num_workers=2, multiprocessing_context=method)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_copies_of_many_objects_are_found(method: str) -> None:
    (finding,) = explain(in_processes(Texts(10_000), method), num_workers=1).findings
    assert "memory copied" == finding.kind
    exact = 2 * (10_000 * (60 + 49) + 8 * 10_000)  # a str has 49 bytes beside its characters
    assert abs(finding.number - exact) < 0.2 * exact


@pytest.mark.usefixtures("small_is_large")
def test_arrays_are_copied_to_processes_that_are_not_forked(tmp_path) -> None:
    dataset = Arrays(tmp_path)
    assert () == explain(in_processes(dataset, "fork"), num_workers=1).findings
    (finding,) = explain(in_processes(dataset, "spawn"), num_workers=1).findings
    assert ("memory copied", 2 << 20) == (finding.kind, finding.number)


def test_what_a_dataset_holds_is_a_fact(tmp_path) -> None:
    facts = explain(DataLoader(Arrays(tmp_path)), num_workers=1).facts
    held = "1.0 MiB in tensors, 1.0 MiB in NumPy's arrays and about 0 B in Python objects."
    assert [True] == [fact.endswith(held) for fact in facts if "holds" in fact]


@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_trainer_divides_a_loader_that_nobody_has_divided(trainer: Any) -> None:
    loader = DataLoader(Numbers(61), 8)
    found = explain(loader, num_workers=2, trainer=trainer).findings
    assert [("repeated", 3 if trainer == "accelerate" else 1)] == [
        (finding.kind, finding.number) for finding in found
    ]


def test_the_ranks_are_those_that_the_loader_was_divided_for() -> None:
    assert explain(sampled(Numbers(61), 4)).title.endswith("on 4 ranks")


def test_the_ranks_are_those_of_torchrun_where_nothing_is_divided(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert explain(DataLoader(Numbers(61))).title.endswith("on 3 ranks")


def states() -> list[Any]:
    return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]


def test_nothing_is_drawn_read_or_changed() -> None:
    dataset = Numbers(61)
    loader: Any = sampled(dataset, 8, num_workers=2, persistent_workers=True)
    before, attributes = states(), dict(vars(loader))
    explain(loader, num_workers=8, read_examples=5)
    assert before == states()
    assert attributes == vars(loader)
    assert ([], 0, None) == (dataset.asked, loader.sampler.epoch, loader._iterator)


class Noisy(IterableDataset):
    """Draws while it is read, and would not like to be read."""

    read = 0

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __iter__(self):
        self.read += 1
        while True:
            yield self.draw()


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1).item()])
def test_a_stream_that_is_read_is_a_copy_and_random_states_are_put_back(draw) -> None:
    loader: Any = DataLoader(Noisy(draw), 8, num_workers=2)
    before = states()
    assert () == explain(loader, num_workers=2, read_examples=9).findings
    assert before == states()
    assert 0 == loader.dataset.read


def test_a_stream_with_a_length_is_not_asked_for_it_through_the_loader() -> None:
    """The loader would remember, and warn of more batches than that later."""

    class Sized(Stream):
        def __len__(self):
            return 61

    loader = DataLoader(Sized(61), 8)
    explain(loader, num_workers=4)
    assert loader._IterableDataset_len_called is None


def test_a_stream_that_cannot_be_copied_is_refused() -> None:
    stream: Any = Stream(61)
    stream.lock = (number for number in range(3))
    with pytest.raises(TypeError, match="can be copied.*Stream cannot.*torch-distinput doctor"):
        explain(DataLoader(stream, num_workers=2), read_examples=3)


@pytest.mark.parametrize("given", [[1, 2], TensorDataset(torch.ones(3)), None])
def test_what_is_no_loader_is_refused(given) -> None:
    with pytest.raises(TypeError, match=f"Expected a torch DataLoader.*got {type(given).__name__}"):
        explain(given)


def test_arguments_that_say_nothing_are_refused() -> None:
    loader, other = DataLoader(Numbers(3)), cast(Any, "keras")
    with pytest.raises(ValueError, match="num_workers must be"):
        explain(loader, num_workers=0)
    with pytest.raises(ValueError, match="trainer to be one of.*got 'keras'"):
        explain(loader, trainer=other)


def test_what_only_a_run_can_show_is_said_to_be_unseen() -> None:
    unseen = explain(sampled(Numbers(64), 8), num_workers=8).unseen
    assert ["set_epoch" in line for line in unseen] == [True]
    unseen = explain(DataLoader(DividedStream(64), 8), num_workers=8).unseen
    assert ["yields another part" in line for line in unseen] == [True]
    (line,) = explain(DataLoader(DividedStream(64), 8, num_workers=2), num_workers=1).unseen
    assert "yields another part on each of 2 loader processes;" in line


def test_an_explanation_prints_findings_facts_and_code() -> None:
    printed = str(explain(sampled(Numbers(61), 8), num_workers=8))
    assert "1. repeated: an epoch of 61 examples delivers 64. 3 come again" in printed
    assert "An epoch has 1 step on each of 8 ranks" in printed
    assert "loader = DataLoader(dataset, batch_size=64, shuffle=True)" in printed


def test_an_explanation_without_findings_says_so() -> None:
    assert "Found nothing" in str(explain(DataLoader(Numbers(61), 8), num_workers=1))


def test_what_was_not_seen_limits_what_was_found() -> None:
    printed = str(explain(DataLoader(DividedStream(64), 8), num_workers=8))
    assert "Found nothing that is lost, repeated or out of step, as far as it was seen." in printed


def test_a_notebook_shows_text_as_text() -> None:
    html = Explanation(title="<b>", findings=(), facts=("1 < 2",))._repr_html_()
    assert "&lt;b&gt;" in html
    assert "1 &lt; 2" in html


def test_what_accelerate_prepared_on_one_process_it_would_divide_on_more(monkeypatch) -> None:
    class DataLoaderShard(DataLoader[Any]):
        __module__ = "accelerate.data_loader"

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (finding,) = explain(DataLoaderShard(Numbers(61), 4), num_workers=8).findings
    assert ("repeated", 3) == (finding.kind, finding.number)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_drop_last_leaves_out_of_undivided_examples_is_a_fact(num_ranks: int) -> None:
    found = explain(DataLoader(Numbers(50), 7, drop_last=True), num_workers=num_ranks)
    (said,) = (fact for fact in found.facts if "drop_last" in fact)
    assert "leaves out 1 example an epoch" in said
    assert ("on each rank" in said) == (num_ranks > 1)
