"""States in the formats that checkpoints have, and sources that bring a state of their own."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import IterableDataset, SequentialSampler
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import stream_of
from torch_distinput.testing import assert_resumes_everywhere, run_ranks, simulate

ONE_PROCESS = "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"


# ---- formats -----------------------------------------------------------------------------------


class Held:
    """A state that is there already, as something that can be saved."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        """The state."""
        return self.state

    def load_state_dict(self, state):
        """Take another."""
        self.state = state


def through_json(folder, state, load):
    """Text."""
    (folder / "state.json").write_text(json.dumps(state))
    load.load_state_dict(json.loads((folder / "state.json").read_text()))


def through_torch(folder, state, load):
    """What a training script does; nothing but plain values can be read."""
    torch.save({"train": state, "step": 7}, folder / "state.pt")
    load.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["train"])


def through_pickle(folder, state, load):
    """Trainers that send states between processes."""
    (folder / "state.pkl").write_bytes(pickle.dumps(state))
    load.load_state_dict(pickle.loads((folder / "state.pkl").read_bytes()))


def through_dcp(folder, state, load):
    """It asks the dataset for a state first, and fills in that one's places."""
    dcp.save({"model": {"w": torch.ones(3)}, "train": Held(state)}, checkpoint_id=folder / "dcp")
    model = {"w": torch.zeros(3)}
    dcp.load({"model": model, "train": load}, checkpoint_id=folder / "dcp")
    assert model["w"].tolist() == [1, 1, 1]


FORMATS = [through_json, through_torch, through_pickle, through_dcp]


@pytest.fixture
def folder(tmp_path):
    """A folder with files of numbers."""
    for number in range(7):
        lines = (f"{100 * number + line}\n" for line in range(5 + 3 * number))
        (tmp_path / f"{number}.txt").write_text("".join(lines))
    return tmp_path


def files_of(folder):
    """Files with everything that a state has to hold a place for."""
    files = tdi.FileDataset(str(folder / "*.txt"), shuffle_files=True)
    return files.interleave(2, 2).filter(lambda line: int(line) % 3 != 0).shuffle(4).map(int)


def source_of(kind, folder):
    """One of each kind of position: by number, of one stream, of a stream for each worker."""
    if kind == "indexed":
        return torch.arange(60)
    return stream_of(range(60)) if kind == "stream" else files_of(folder)


def play(source, workers, *, state=None, steps=None):
    """All examples of some steps, and the state after them."""

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=5, seed=3)
        if state is not None:
            dataset.load_state_dict(state)
        some = itertools.islice(iter(dataset), steps)
        return [x for step in some for x in step.tolist()], dataset.state_dict()

    examples, states = zip(*simulate(work, num_workers=workers), strict=True)
    assert all(other == states[0] for other in states)
    return Counter(itertools.chain(*examples)), states[0]


@pytest.mark.filterwarnings(ONE_PROCESS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["indexed", "stream", "files"])
def test_formats(folder, kind, form):
    """On 3 workers, then 2, then 1, through a checkpoint: every example once; not a byte changes.

    The dataset that loads is fresh; where the format needs a state of it first, it has one.
    """
    source = source_of(kind, folder)
    whole, _ = play(source, 1)
    first, state = play(source, 3, steps=2)
    second, state = play(source, 2, state=state, steps=2)
    assert kind != "files" or state["deals"]

    fresh = tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=5, seed=3)
    form(folder, state, fresh)
    assert json.dumps(state) == json.dumps(fresh.state_dict())
    third = Counter(x for step in fresh for x in step.tolist())
    assert whole == first + second + third
    assert whole == Counter(x for step in fresh for x in step.tolist())  # the next epoch


@pytest.mark.filterwarnings(ONE_PROCESS)
@pytest.mark.parametrize("steps", [0, 3, 12, None])
def test_dcp_saves_a_dataset(tmp_path, steps):
    """The dataset itself is the value; before the first step and after the last as well."""
    one = tdi.OneDeviceStrategy("cpu")
    source = torch.arange(60)
    saved, loaded = (one.distribute_dataset(source, global_batch_size=5) for _ in range(2))
    if steps != 0:
        list(itertools.islice(iter(saved), steps))
    dcp.save({"train": saved}, checkpoint_id=tmp_path)
    dcp.load({"train": loaded}, checkpoint_id=tmp_path)
    assert loaded.state_dict() == saved.state_dict()
    assert loaded.epoch == 0
    assert 12 - (12 if steps is None else steps) == len(list(loaded))
    assert 12 == len(list(loaded))


@pytest.mark.filterwarnings(ONE_PROCESS)
@pytest.mark.parametrize("num_steps", [1, 2])
def test_dcp_saves_the_state_of_a_step_or_a_group(tmp_path, num_steps):
    """After it, not after those that were read ahead; and it is loaded into a dataset."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(torch.arange(60), global_batch_size=5)
    steps = dataset.steps()
    trained = next(steps if num_steps == 1 else tdi.accumulate(steps, num_steps))
    next(steps)
    dcp.save({"train": trained}, checkpoint_id=tmp_path)
    dataset = one.distribute_dataset(torch.arange(60), global_batch_size=5)
    dcp.load({"train": dataset}, checkpoint_id=tmp_path)
    assert trained.state_dict() == dataset.state_dict()
    assert 12 - num_steps == len(list(dataset))
    with pytest.raises(tdi.UsageError, match="loaded into the dataset"):
        trained.load_state_dict(trained.state_dict())


def save_on_ranks(folder, strategy):
    """Train a little and save, all ranks together."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(model.weight)
    dataset = strategy.distribute_dataset(files_of(folder), global_batch_size=5)
    played = [x for step in itertools.islice(iter(dataset), 4) for x in step.tolist()]
    dcp.save({"model": model.state_dict(), "train": dataset}, checkpoint_id=folder / "dcp")
    return played


def load_on_ranks(folder, strategy):
    """Go on to the end of the epoch."""
    model = torch.nn.Linear(2, 2).state_dict()
    dataset = strategy.distribute_dataset(files_of(folder), global_batch_size=5)
    dcp.load({"model": model, "train": dataset}, checkpoint_id=folder / "dcp")
    assert model["weight"].tolist() == [[1, 1], [1, 1]]
    return [x for step in dataset for x in step.tolist()]


@pytest.mark.slow
@pytest.mark.filterwarnings(ONE_PROCESS)
def test_dcp_on_ranks(folder):
    """Saved by two ranks; loaded by two, by three, and by one without a process group."""
    whole, _ = play(files_of(folder), 1)
    head = run_ranks(partial(save_on_ranks, folder), 2)
    for tail in (
        run_ranks(partial(load_on_ranks, folder), 2),
        run_ranks(partial(load_on_ranks, folder), 3),
        [load_on_ranks(folder, tdi.OneDeviceStrategy("cpu"))],
    ):
        assert whole == Counter(itertools.chain(*head, *tail))


# ---- sources with a state of their own ---------------------------------------------------------


class Counting(IterableDataset):
    """A stream that can go on where it was; notes what it reads.

    Its state after the last number is not that of the beginning: StatefulDataLoader needs that.
    """

    def __init__(self, count):
        self.count, self.position, self.loaded, self.seen = count, 0, False, []

    def __iter__(self):
        """From the beginning, or where a state says."""
        self.position, self.loaded = self.position if self.loaded else 0, False
        while self.position < self.count:
            self.position += 1
            self.seen.append(self.position - 1)
            yield self.position - 1

    def state_dict(self):
        """The next number."""
        return {"position": self.position}

    def load_state_dict(self, state):
        """Go on there."""
        self.position, self.loaded = state["position"], True


class Numbers:
    """A map-style dataset that notes what it reads."""

    def __init__(self, count):
        self.count, self.seen = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.seen.append(index)
        return index


def stateful_loader(count, **keywords):
    """Its batches are the global batches."""
    data = Counting(count)
    return StatefulDataLoader(data, batch_size=5, **keywords), None, data


def wrapped_iterable(count):
    """A node of examples."""
    data = Counting(count)
    return nodes.IterableWrapper(data), 5, data


def batcher(count):
    """A node of global batches."""
    data = Numbers(count)
    node = nodes.MapStyleWrapper(data, SequentialSampler(data))
    batches = nodes.Batcher(node, 5, drop_last=False)
    return nodes.Mapper(batches, torch.tensor), None, data


def prefetching(count):
    """A node that reads ahead, in threads."""
    data = Counting(count)
    node = nodes.ParallelMapper(nodes.IterableWrapper(data), lambda x: x, num_workers=2)
    return nodes.Prefetcher(node, 3), 5, data


def loader_of(make, count):
    """A ``torchdata.nodes.Loader``, which starts anew when its state is that of the end."""
    node, size, data = make(count)
    return nodes.Loader(node), size, data


OWN_STATES = {
    "StatefulDataLoader": stateful_loader,
    "StatefulDataLoader, 2 processes": partial(stateful_loader, num_workers=2),
    "StatefulDataLoader, a snapshot in 4": partial(
        stateful_loader, num_workers=1, snapshot_every_n_steps=4
    ),
    "IterableWrapper": wrapped_iterable,
    "Batcher over MapStyleWrapper": batcher,
    "Prefetcher": prefetching,
    "Loader": partial(loader_of, wrapped_iterable),
    "Loader of batches": partial(loader_of, batcher),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_STATES)
def test_own_states_at_every_position(name):
    """The end of data included; a last batch that is partial, and one that is not."""
    waits = not LONG and ("Prefetcher" in name or "," in name)  # for its threads or processes
    # Two workers with two processes each take long to start; those with one process go elsewhere.
    elsewhere = () if not LONG and "2 processes" in name else ((1, 2),)
    for count in (12,) if waits else (10, 12):

        def distributed(strategy, count=count):
            source, size, _ = OWN_STATES[name](count)
            return strategy.distribute_dataset(source, global_batch_size=size)

        assert_resumes_everywhere(distributed, elsewhere=elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OWN_STATES if "process" not in name])
def test_own_states_replay_nothing(name):
    """What was delivered is not read again, but for a few steps that were under way."""
    make = OWN_STATES[name]
    one = tdi.OneDeviceStrategy("cpu")

    def distributed():
        source, size, data = make(1000)
        return one.distribute_dataset(source, global_batch_size=size), data

    dataset, _ = distributed()
    head = [x for step in itertools.islice(iter(dataset), 150) for x in step.tolist()]
    state = json.dumps(dataset.state_dict())
    assert len(state) < 2000

    dataset, data = distributed()
    dataset.load_state_dict(json.loads(state))
    tail = [x for step in dataset for x in step.tolist()]
    assert list(range(1000)) == head + tail
    if "snapshot" not in name:  # read in another process, which notes by itself
        assert 700 <= min(data.seen) <= 750
    assert list(range(1000)) == [x for step in dataset for x in step.tolist()]  # the next epoch
