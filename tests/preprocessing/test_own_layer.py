"""A layer is a file of its own and a line in the registry: nothing else knows it by its class."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch

from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.artifact import registry
from torch_distinput.preprocessing.columns.tensors import to_floats
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, Layer
from torch_distinput.preprocessing.states.column_moments import ColumnMoments
from torch_distinput.testing import simulate


class MeanAnalyzer(NamedTuple):
    """The mean of all numbers."""

    def new_state(self):
        return ColumnMoments()

    def finish(self, state):
        return torch.from_numpy(state.finalize()[0]).float() if state.num_seen else None


class Sharing(AdaptiveLayer):
    """Numbers as shares of their mean."""

    takes = "floats"
    state_types = MappingProxyType({"mean": torch.float32})

    def __init__(self, power=1):
        super().__init__(MeanAnalyzer(), power=power)
        self.power = power

    def forward(self, inputs):
        return (to_floats(inputs, self, "ignore") / self.need("mean")) ** self.power

    def count(self, state, column):
        state.update(to_floats(column, self).numpy())

    def _set_state(self, found):
        self.mean = found


class Lengths(Layer):
    """The length of each string, in bytes."""

    takes = "strings"

    def forward(self, inputs):
        return (inputs if isinstance(inputs, pp.PaddedStrings) else pp.pack_strings(inputs)).lengths


DATA = {"size": [4, 8, 2, 2], "name": ["a", "bcd", "", "é"]}


@pytest.fixture
def features(monkeypatch):
    for kind in (Sharing, Lengths):
        monkeypatch.setitem(registry.LAYERS, kind.__name__, kind)
    made = pp.Features(size=Sharing(power=2), name=Lengths())
    made.adapt(DATA)
    return made


def test_it_adapts_and_takes_a_batch(features):
    found = features(DATA)
    assert [1.0, 4.0, 0.25, 0.25] == found["size"].tolist()
    assert [1, 3, 0, 2] == found["name"].tolist()


def test_all_workers_adapt_it_together(features):
    def run(strategy):
        own = pp.Features(size=Sharing())
        own.adapt(DATA, strategy=strategy)
        return own["size"].mean.item()

    assert [4.0, 4.0] == simulate(run, num_workers=2)


def test_features_pack_its_column_as_it_says(features):
    packed = features.pack(DATA)
    assert torch.float32 == packed["size"].dtype
    assert isinstance(packed["name"], pp.PaddedStrings)
    expected, found = features(DATA), features(packed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_it_is_part_of_a_graph(features):
    packed = features.pack(DATA)
    graph = torch.export.export(features, (packed,), strict=False).module()
    assert torch.equal(features(packed)["size"], graph(packed)["size"])


def test_an_artifact_holds_it(features, tmp_path):
    pp.save(features, tmp_path / "out")
    loaded = pp.load(tmp_path / "out", expect=features.fingerprint())
    assert torch.equal(features(DATA)["size"], loaded(DATA)["size"])


def test_without_its_line_it_is_refused(features, tmp_path, monkeypatch):
    monkeypatch.delitem(registry.LAYERS, "Lengths")
    with pytest.raises(ValueError, match="to save; got Lengths. Put other modules"):
        pp.save(features, tmp_path / "out")


def test_a_layer_says_what_it_takes():
    class Silent(Layer):
        pass

    with pytest.raises(TypeError, match="takes"):
        Silent()


def classes():
    """All classes of the package, apart from exceptions and protocols."""
    for module in pkgutil.walk_packages(pp.__path__, f"{pp.__name__}."):
        if not module.name.endswith("__main__"):
            for kind in vars(importlib.import_module(module.name)).values():
                if isinstance(kind, type) and kind.__module__ == module.name:
                    yield kind


def test_each_class_is_abstract_or_final():
    loose = [
        kind.__qualname__
        for kind in classes()
        if not getattr(kind, "__final__", False)
        and not inspect.isabstract(kind)
        and not getattr(kind, "_is_protocol", False)
        and not issubclass(kind, (tuple, Exception))
    ]
    assert [] == loose


def test_no_method_that_does_something_is_overridden():
    """But those of torch.nn.Module, which a layer can extend in no other way."""
    of_torch = set(dir(torch.nn.Module))
    overridden = [
        f"{kind.__name__}.{name} of {base.__name__}"
        for kind in classes()
        for base in kind.__mro__[1:]
        if base.__module__.startswith(pp.__name__) and not getattr(base, "_is_protocol", False)
        for name, method in vars(base).items()
        if name in vars(kind) and inspect.isfunction(method) and name not in of_torch
        if not getattr(method, "__isabstractmethod__", False)
    ]
    assert [] == overridden


@pytest.mark.parametrize("kind", [pp.StringLookup, pp.IntegerLookup, pp.TextVectorization])
def test_a_lookup_is_no_large_object(kind):
    layer = kind()
    of_torch = torch.nn.Module()
    methods = {
        name
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not hasattr(of_torch, name)
    }
    assert len(methods) <= 15, methods
    assert len(vars(layer)) - len(vars(of_torch)) <= 10, vars(layer)
