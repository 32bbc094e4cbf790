"""``num_threads``: the same as without, whoever fetches; and the threads end."""

from __future__ import annotations

import gc
import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi
from torch_distinput.testing import assert_resumes_everywhere, simulate


class Rows(Dataset):
    """Examples of all kinds of leaves."""

    def __init__(self, count=23, fails_at=None, error=ValueError):
        self.count, self.fails_at, self.error = count, fails_at, error

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fails_at:
            raise self.error("broken")
        return {"x": torch.full((3,), index), "y": np.float64(index), "name": str(index)}


def lines(tmp_path):
    """Files with work to do for each record."""
    for name in range(3):
        text = "".join(f"{name * 10 + row}\n" for row in range(7))
        (tmp_path / f"{name}.txt").write_text(text)
    files = tdi.FileDataset(str(tmp_path / "*.txt"), shuffle_files=True).shuffle(5)
    return files.map(lambda line, rng: (line, int(line) + rng.integers(1000)))


def mixed_lines(tmp_path):
    """What is read in order, as not all of it has an index."""
    listed = [(str(number), number) for number in range(9)]
    return tdi.mix({"a": lines(tmp_path), "b": listed}, weights=[2, 1])


SOURCES = {
    "examples": lambda _: Rows(),
    "a list": lambda _: [{"a": number, "b": str(number)} for number in range(23)],
    "columns": lambda _: (torch.arange(23 * 20_000).view(23, 20_000), np.arange(23)),
    "a DataLoader": lambda _: DataLoader(Rows(), 4, shuffle=True),
    "files": lines,
    "a mixture": lambda _: tdi.mix({"a": Rows(), "b": Rows(9)}, weights=[2, 1], stop="all"),
    "a mixture with files": mixed_lines,
}


def keywords_of(source):
    """What a DataLoader has itself."""
    is_loader = isinstance(source, DataLoader)
    return {} if is_loader else {"global_batch_size": 4, "shuffle": True}


def has_index(dataset):
    """Its length is known before it is read."""
    try:
        return len(dataset) > 0
    except TypeError:
        return False


def shown(batch):
    """Equal for equal batches."""
    leaves = batch.values() if isinstance(batch, dict) else batch
    return [leaf if isinstance(leaf, list) else leaf.tolist() for leaf in leaves]


def played(source, num_ranks, **keywords):
    """All that each rank sees of two epochs.

    The state of a voted step tells a place at or before it, which depends on when the votes came.
    """
    def work(strategy):
        dataset = strategy.distribute_dataset(source, **keywords_of(source), **keywords)
        is_voted = num_ranks > 1 and not has_index(dataset)
        seen = []
        for _ in range(2):
            for step in dataset.steps():
                state = None if is_voted else json.dumps(step.state_dict())
                seen.append((shown(step.batch), step.ids.tolist(), state))
        return seen

    return simulate(work, num_workers=num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", SOURCES)
def test_threads_change_nothing(tmp_path, name, num_ranks):
    """The same examples in the same order, with the same states."""
    source = SOURCES[name](tmp_path)
    expected = played(source, num_ranks)
    for num_threads in (1, 3):
        assert expected == played(source, num_ranks, num_threads=num_threads)


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"a list", "columns", "files"}))
def test_examples_are_fetched_in_threads(tmp_path, name):
    """Also those of a mixture: the argument is not for nothing."""
    found = set()

    def collate(examples):
        found.add(threading.current_thread().name.rpartition("-")[0])
        return torch.zeros(len(examples))

    source = SOURCES[name](tmp_path)
    keywords = {**keywords_of(source), "collate_fn": collate}
    if isinstance(source, DataLoader):
        source, keywords = DataLoader(Rows(), 4, collate_fn=collate), {}
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(source, **keywords, num_threads=2)
    iterator = iter(dataset)  # the check before it fetches here
    found.clear()
    list(iterator)
    assert {"torch_distinput-fetch"} == found


@pytest.mark.slow
def test_processes_and_threads_are_alike():
    """As far as anybody can see."""
    assert played(Rows(), 1, num_threads=2) == played(Rows(), 1, num_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["examples", "columns", "files"])
def test_resume_at_every_step(tmp_path, name):
    """What is fetched ahead is not delivered."""
    source = SOURCES[name](tmp_path)
    assert_resumes_everywhere(
        lambda strategy: strategy.distribute_dataset(source, **keywords_of(source), num_threads=3),
        elsewhere=((1, 1),),
    )


@pytest.mark.slow
@settings(max_examples=30)
@given(
    fails_at=st.integers(0, 22),
    num_threads=st.sampled_from([0, 1, 3]),
    error=st.sampled_from([ValueError, StopIteration, OSError]),
)
def test_an_error_comes_after_the_steps_before_it(fails_at, num_threads, error):
    """As without threads, and with the same words."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        Rows(fails_at=fails_at, error=error), global_batch_size=4, num_threads=num_threads
    )
    before = fetch_threads()
    steps = iter(dataset)
    for _ in range(fails_at // 4):
        next(steps)
    with pytest.raises(tdi.SourceError, match=f"{error.__name__} at example {fails_at}:"):
        next(steps)
    assert fetch_threads() <= before


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_what_cannot_be_read_comes_after_the_steps_before_it(tmp_path, num_threads):
    """Also where it is the reading that fails, which is ahead of the threads."""
    (tmp_path / "a.txt").write_text("".join(f"{row}\n" for row in range(6)))
    (tmp_path / "broken.txt").write_bytes(b"6\n\xff\n")
    files = tdi.FileDataset(str(tmp_path / "*.txt")).map(int)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        files, global_batch_size=2, num_threads=num_threads
    )
    steps = iter(dataset)
    assert [[0, 1], [2, 3], [4, 5]] == [next(steps).tolist() for _ in range(3)]
    with pytest.raises(tdi.SourceError, match="broken.txt"):
        next(steps)


def fetch_threads():
    """Those that are alive; some of other tests may be about to end."""
    return {one for one in threading.enumerate() if one.name.startswith("torch_distinput-fetch")}


@pytest.mark.parametrize("leave", ["break", "close", "end", "collected"])
def test_threads_end(leave):
    """As soon as nobody iterates."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        Rows(100), global_batch_size=4, num_threads=3
    )
    before = fetch_threads()
    iterator = iter(dataset)
    next(iterator)
    assert 3 == len(fetch_threads() - before)
    if leave == "break":
        for _ in dataset:
            break  # the new iterator has closed the one before
    elif leave == "close":
        iterator.close()
    elif leave == "end":
        for _ in iterator:
            pass
    else:
        del iterator, dataset
        gc.collect()
    assert fetch_threads() <= before


def test_a_collate_fn_that_uses_its_buffer_again():
    """A batch is kept while the next one is made."""
    buffer = torch.zeros(4)

    def collate(examples):
        buffer.copy_(torch.stack([example["x"][0] for example in examples]))
        return buffer

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        Rows(20), global_batch_size=4, collate_fn=collate, num_threads=1
    )
    batches = list(dataset)
    assert list(range(20)) == torch.cat(batches).int().tolist()


def test_several_examples_are_fetched_at_once():
    """Each thread waits until the others have begun: one alone would wait for ever."""
    barrier = threading.Barrier(3, timeout=100)

    class Meeting(Rows):
        def __getitem__(self, index):
            barrier.wait()
            return index

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        Meeting(12), global_batch_size=1, num_threads=3
    )
    assert list(range(12)) == [int(batch) for batch in dataset]


def no_stream():
    """One."""
    yield from range(3)


@pytest.mark.parametrize(
    ("source", "keywords", "words"),
    [
        (Rows(), {"num_workers": 2, "num_threads": 3}, "got num_workers=2 and num_threads=3"),
        (DataLoader(Rows(), 4, num_workers=1), {"num_threads": 1}, "got num_workers=1 and num_th"),
        (no_stream, {"num_threads": 2}, "with an index, or files, got num_threads=2"),
        (Rows(), {"num_threads": -1}, "num_threads"),
    ],
)
def test_what_threads_cannot_do(source, keywords, words):
    """It is refused, with the cure."""
    size = {} if isinstance(source, DataLoader) else {"global_batch_size": 4}
    with pytest.raises(ValueError, match=words):
        tdi.OneDeviceStrategy("cpu").distribute_dataset(source, **size, **keywords)
