"""Strategies are classes: they annotate, test and show themselves as what they are."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.testing import simulate

STRATEGIES = {
    "MirroredStrategy": lambda: tdi.MirroredStrategy(["cpu", "cpu"]),
    "MultiWorkerMirroredStrategy": tdi.MultiWorkerMirroredStrategy,
    "OneDeviceStrategy": lambda: tdi.OneDeviceStrategy("cpu"),
}
REPRS = {
    "MirroredStrategy": "MirroredStrategy(worker 0 of 1, devices cpu, cpu)",
    "OneDeviceStrategy": "OneDeviceStrategy(worker 0 of 1, devices cpu)",
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_an_instance_of_its_own_class_alone(name):
    strategy = STRATEGIES[name]()
    assert name == type(strategy).__name__
    assert [name] == [other for other in STRATEGIES if isinstance(strategy, getattr(tdi, other))]
    assert isinstance(strategy, tdi.Strategy)


def test_simulated_strategies_are_strategies():
    assert [True, True] == simulate(lambda own: isinstance(own, tdi.Strategy), num_workers=2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_differs_from_the_others_in_its_constructor_only(name):
    own = {member for member in vars(getattr(tdi, name)) if member.startswith("__init__")}
    names = set(vars(getattr(tdi, name))) - {"__doc__", "__module__", "__final__", "_abc_impl"}
    assert own == names - {"__abstractmethods__", "__static_attributes__", "__firstlineno__"}


def test_the_constructors_keep_their_arguments():
    parameters = inspect.signature(tdi.MultiWorkerMirroredStrategy).parameters
    names = ["devices", "process_group", "device_mesh", "data_dims", "replicate_input"]
    assert names == list(parameters)
    assert ["devices"] == list(inspect.signature(tdi.MirroredStrategy).parameters)
    assert ["device"] == list(inspect.signature(tdi.OneDeviceStrategy).parameters)


def test_what_all_strategies_share_is_no_strategy_by_itself():
    with pytest.raises(TypeError, match="abstract class Strategy"):
        tdi.Strategy(tdi.Topology(), [], None)


@pytest.mark.parametrize("name", REPRS)
def test_a_strategy_shows_kind_workers_and_devices(name):
    assert REPRS[name] == repr(STRATEGIES[name]())


def test_a_simulated_strategy_shows_its_worker():
    shown = simulate(repr, num_workers=2)
    assert "SimulatedStrategy(worker 1 of 2, devices cpu)" == shown[1]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_neither_pickled_nor_copied(name, copied):
    with pytest.raises(TypeError, match=f"Make a {name} in the process"):
        copied(STRATEGIES[name]())


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_dataset_is_neither_pickled_nor_copied(copied):
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(range(2), global_batch_size=2)
    with pytest.raises(TypeError, match="in the function that each worker runs"):
        copied(dataset)


@pytest.mark.parametrize("name", ["sampler", "dataset"])
def test_who_takes_a_dataset_for_a_data_loader_is_told(name):
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(range(2), global_batch_size=2)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': expected a DataLoader"):
        getattr(dataset, name)
    with pytest.raises(AttributeError, match="no attribute 'other'$"):
        _ = dataset.other


@pytest.mark.parametrize("make", [tdi.MultiWorkerMirroredStrategy, tdi.MirroredStrategy])
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_a_device_that_is_not_there(make, kind, monkeypatch):
    """Said in our words, with what to pass."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    with pytest.raises(tdi.ConfigurationError, match=rf'got "{kind}".*no accelerator.*\["cpu"\]'):
        make([kind])
