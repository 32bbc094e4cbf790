"""The coordinator over real processes, by each engine: the same tests, with kill -9."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
from collections import Counter

import pytest
import torch
from torch import nn

import torch_distinput as tdi
from tests.conftest import LONG
from tests.coordinator.processes import named_pipe, wait_until_gone
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy

NUM_KILLS = 50 if LONG else 5


@pytest.fixture(scope="module")
def coordinator(engine):
    """Two workers and two servers, for the tests that leave them well."""
    with ParameterServerStrategy(2, 2, engine, devices=["cpu"]) as strategy:
        yield ClusterCoordinator(strategy)


def add(a, b=0):
    return a + b


def fail(text):
    raise ValueError(text)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_once(path):
    """Kill the process if this is the first to find that there is no such file."""
    if not path.exists():
        path.touch()
        kill_self()
    return os.getpid()


def make_numbers(context):
    return Numbers(1000 * context.input_pipeline_id)


class Numbers:
    """Numbers from ``first`` on, with a state."""

    def __init__(self, first) -> None:
        self.next = first

    def __iter__(self):
        while True:
            self.next += 1
            yield self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state) -> None:
        self.next = state["next"]


def take(iterator, number, kill_at):
    """Take some, and die before or after one of them if this is the first to try."""
    taken = []
    for index in range(number):
        if kill_at is not None and kill_at[0] == index:
            kill_once(kill_at[1])
        taken.append(next(iterator))
    if kill_at is not None:
        kill_once(kill_at[1])
    return taken


class MakeKilling:
    def __init__(self, path) -> None:
        self.path = path

    def __call__(self, context):
        kill_once(self.path)
        return [5]


def make_rows(context):
    return tdi.get_strategy().distribute_dataset(torch.arange(40), global_batch_size=4)


def take_rows(iterator):
    return next(iterator).tolist()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 2, sparse=True), nn.Flatten(), nn.Linear(4, 1))


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


class DyingSGD(torch.optim.SGD):
    """Ends its process, the server's, at the third step."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.1)
        self.num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        if self.num_steps == 3:
            kill_self()
        return super().step(closure)


def join_for_ever(engine, pipe, environment):
    """A script that is interrupted."""
    os.environ.update(environment)
    with ParameterServerStrategy(1, 1, engine, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        coordinator.schedule(run_for_ever, args=(pipe,))
        coordinator.join()


def leave_large(path):
    path.write_text(str(os.getpid()))
    return torch.zeros(100_000)


def run_for_ever(pipe):
    pipe.write_text(str(os.getpid()))
    signal.pause()


def loss_of(model):
    return model(torch.tensor([[1, 2]])).square().mean()


def train_step(parameters, kill_path=None):
    loss = loss_of(parameters.pull())
    loss.backward()
    if kill_path is not None:
        kill_once(kill_path)
    parameters.push()
    return loss.item()


def test_closures_return_their_values(coordinator) -> None:
    values = [coordinator.schedule(add, args=(i,), kwargs={"b": 1}) for i in range(50)]
    coordinator.join()
    assert list(range(1, 51)) == coordinator.fetch(values)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_tensors_are_fetched(coordinator, size) -> None:
    value = coordinator.schedule(torch.arange, args=(size,))
    assert torch.equal(torch.arange(size), value.fetch())


def test_an_error_comes_with_its_lines(coordinator) -> None:
    coordinator.schedule(fail, args=("oh",))
    with pytest.raises(ValueError, match="^oh$") as caught:
        coordinator.join()
    assert "(fail) on worker" in str(caught.value.__cause__)
    assert "raise ValueError(text)" in str(caught.value.__cause__)
    coordinator.join()


def test_what_cannot_be_pickled_is_named(coordinator, tmp_path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(TypeError, match="args\\[1\\]"):
        coordinator.schedule(add, args=(1, file))


def test_a_remote_value_is_refused(coordinator) -> None:
    value = coordinator.schedule(add, args=(1,))
    with pytest.raises(tdi.UsageError, match="Fetch it first"):
        coordinator.schedule(add, args=([value],))


def test_a_dataset_is_distributed_on_its_worker(coordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(make_rows)
    iterator = iter(dataset)
    values = [coordinator.schedule(take_rows, args=(iterator,)) for _ in range(10)]
    rows = Counter(row for batch in coordinator.fetch(values) for row in batch)
    coordinator.join()
    visited: Counter[int] = Counter()
    for (_, row), times in dataset.visits().counts.items():
        visited[row] += times
    assert rows == visited
    assert 40 == sum(rows.values())


def test_a_death_with_a_large_value_loses_it(coordinator, tmp_path) -> None:
    value = coordinator.schedule(leave_large, args=(tmp_path / "pid",))
    coordinator.join()
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until_gone([pid])
    with pytest.raises(tdi.WorkerLostError, match=r"\(leave_large\) in worker \d"):
        value.fetch()
    values = [coordinator.schedule(add, args=(i,)) for i in range(10)]
    assert list(range(10)) == coordinator.fetch(values)


def test_a_poison_closure_is_given_up(coordinator) -> None:
    coordinator.schedule(kill_self)
    with pytest.raises(tdi.WorkerLostError, match=r"\(kill_self\)(.|\n)*3 times") as caught:
        coordinator.join()
    assert 4 == len(str(caught.value).splitlines())
    assert 1 == coordinator.schedule(add, args=(1,)).fetch()


def test_a_death_while_a_dataset_is_made_is_survived(coordinator, tmp_path) -> None:
    dataset = coordinator.create_per_worker_dataset(MakeKilling(tmp_path / "made"))
    iterator = iter(dataset)
    assert [5] == coordinator.schedule(take, args=(iterator, 1, None)).fetch()
    coordinator.join()


def test_random_kills_neither_lose_nor_repeat(coordinator, tmp_path) -> None:
    """With the state of its iterator, a worker goes on after the last closure that returned."""
    dataset = coordinator.create_per_worker_dataset(make_numbers, resume="state")
    iterator = iter(dataset)
    rng = random.Random(0)
    killing = set(rng.sample(range(10 * NUM_KILLS), NUM_KILLS))
    values = []
    for index in range(10 * NUM_KILLS):
        number = rng.randrange(1, 4)
        kill_at = (rng.randrange(number + 1), tmp_path / str(index)) if index in killing else None
        values.append(coordinator.schedule(take, args=(iterator, number, kill_at)))
    coordinator.join()
    taken = Counter(number for numbers in coordinator.fetch(values) for number in numbers)
    for first in (0, 1000):
        own = sorted(number for number in taken if first <= number < first + 1000)
        assert list(range(first, first + len(own))) == own
    assert {1} == set(taken.values())
    visits = dataset.visits()
    assert {1} == set(visits.counts.values())
    assert (len(taken), NUM_KILLS) == (len(visits.counts), visits.num_lost)


def test_workers_train_what_is_on_the_servers(coordinator, tmp_path) -> None:
    """One dies between pull and push; its push is not waited for."""
    parameters = coordinator.strategy.create_parameters(make_model, make_optimizer, max_staleness=1)
    losses = [coordinator.schedule(train_step, args=(parameters,)) for _ in range(5)]
    losses.append(coordinator.schedule(train_step, args=(parameters, tmp_path / "pushed")))
    losses += [coordinator.schedule(train_step, args=(parameters,)) for _ in range(5)]
    coordinator.join()
    state = parameters.state_dict()
    assert {"0.weight", "2.weight", "2.bias"} == set(state["model"])
    assert 11 == parameters.stats().num_pushes
    # Any of the eleven may have pulled first, so their order tells nothing.
    before, after = loss_of(make_model()).item(), loss_of(parameters.pull()).item()
    assert any(loss == pytest.approx(before) for loss in coordinator.fetch(losses))
    assert after < before


def test_a_state_is_an_exact_cut(coordinator) -> None:
    """While closures push, the state is that after a whole number of pushes."""
    parameters = coordinator.strategy.create_parameters(make_model, make_optimizer)
    values = [coordinator.schedule(train_step, args=(parameters,)) for _ in range(40)]
    before = parameters.stats().num_pushes
    with coordinator._queue.hold():
        held = parameters.stats().num_pushes
        parameters.state_dict()
        assert held == parameters.stats().num_pushes
    coordinator.join()
    assert before <= held <= parameters.stats().num_pushes == len(values)


class TestEnds:
    """Each needs processes of its own."""

    def test_a_server_that_dies_ends_the_job(self, engine) -> None:
        with ParameterServerStrategy(2, 1, engine, devices=["cpu"]) as strategy:
            coordinator = ClusterCoordinator(strategy)
            parameters = strategy.create_parameters(make_model, DyingSGD)
            for _ in range(9):
                coordinator.schedule(train_step, args=(parameters,))
            with pytest.raises(tdi.ServerLostError, match="restore from a checkpoint"):
                coordinator.join()
            for call in (coordinator.join, coordinator.done, parameters.pull):
                with pytest.raises(tdi.ServerLostError, match="restore from a checkpoint"):
                    pytest.fail(f"{call.__name__} returned {call()}, {coordinator.stats()}")

    def test_close_ends_what_runs(self, engine, tmp_path) -> None:
        pipe = named_pipe(tmp_path / "pid")
        with ParameterServerStrategy(2, 0, engine, devices=["cpu"]) as strategy:
            value = ClusterCoordinator(strategy).schedule(run_for_ever, args=(pipe,))
            pid = int(pipe.read_text())
        wait_until_gone([pid])
        with pytest.raises(tdi.UsageError, match="was closed"):
            value.fetch()

    @pytest.mark.slow
    def test_ctrl_c_while_it_joins_ends_all(self, engine, tmp_path) -> None:
        pipe = named_pipe(tmp_path / "pid")
        ray = engine == "ray" and importlib.import_module("ray")
        environment = dict(os.environ)  # the fork server may be older than Ray's token
        if ray:
            environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        context = multiprocessing.get_context("forkserver")
        script = context.Process(target=join_for_ever, args=(engine, pipe, environment))
        script.start()
        assert script.pid is not None
        pid = int(pipe.read_text())
        os.kill(script.pid, signal.SIGINT)
        wait_until_gone([pid, script.pid])
        script.join()
        assert 1 == script.exitcode
