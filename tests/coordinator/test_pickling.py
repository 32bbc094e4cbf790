"""What users hand over to other processes, and what the refusals of it say."""

from __future__ import annotations

import functools
import importlib
import pickle
import re
import sys
import threading
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.coordinator.engines import pickling

LOCK = threading.Lock()
IN_PROCESS = "Make it inside of the function, which runs in the other process, or pass what"
AT_TOP = "Define it at the top of a module, or install what pickles functions by value: pip install"


@pytest.fixture
def by_value(monkeypatch):
    """By cloudpickle, or Ray's copy of it."""
    name = "cloudpickle" if find_spec("cloudpickle") else "ray.cloudpickle"
    monkeypatch.setattr(pickling, "by_value", lambda: importlib.import_module(name))


@pytest.fixture
def by_name(monkeypatch):
    """By pickle itself, as where cloudpickle is not installed."""
    monkeypatch.setattr(pickling, "by_value", lambda: pickle)


def train_step(features, scale=1, *, state=None):
    return features * scale


@dataclass
class State:
    lock: object
    step: int = 0


class WithMethod:
    def __init__(self):
        self.callback = LOCK

    def train(self):
        return self.callback


def refusal(function, *args, **kwargs):
    with pytest.raises(TypeError) as caught:
        pickling.dumps_call(function, args, kwargs)
    return str(caught.value)


@pytest.mark.usefixtures("by_value")
class TestByValue:
    def test_a_call_comes_back(self):
        factor = 3
        function, args, kwargs = pickle.loads(
            pickling.dumps_call(lambda x, *, y: factor * x + y, (2,), {"y": 1})
        )
        assert 7 == function(*args, **kwargs)

    @pytest.mark.parametrize(
        ("args", "kwargs", "place"),
        [
            ((LOCK,), {}, "argument 'features' (args[0]): a _thread.lock ("),
            ((1, LOCK), {}, "argument 'scale' (args[1]): a _thread.lock ("),
            ((1,), {"state": LOCK}, "argument 'state': a _thread.lock ("),
            ((1, [2, LOCK]), {}, "item 1 of argument 'scale' (args[1]): a _thread.lock ("),
            (({"a": (LOCK,)},), {}, "item 0 of item 'a' of argument 'features' (args[0]): a _th"),
            ((State(LOCK),), {}, "attribute 'lock' of argument 'features' (args[0]): a _thread"),
        ],
    )
    def test_an_argument_is_named(self, args, kwargs, place):
        assert refusal(train_step, *args, **kwargs) == (
            "Expected closure train_step to be picklable, since another process runs it, got "
            f"{place.partition(': a _th')[0]}: a _thread.lock (cannot pickle '_thread.lock' "
            f"object). {IN_PROCESS} it is made from."
        )

    def test_a_variable_of_the_function_is_named(self):
        f = (number for number in range(3))
        said = refusal(lambda: next(f))
        assert re.search(r", got variable 'f' of \S+<lambda>: a generator \(", said), said

    def test_a_variable_of_a_function_inside(self):
        def outer():
            return inner()

        def inner():
            return LOCK, lock

        lock = threading.Lock()
        said = refusal(outer)
        assert re.search(r"got variable 'lock' of \S*inner: a _thread.lock", said), said

    def test_a_global_variable_is_named(self):
        scope = {"LOCK": LOCK}
        exec("def step():\n    return [LOCK for _ in range(2)]", scope)  # noqa: S102 - as a notebook
        assert ", got global variable 'LOCK' of step: a _thread.lock" in refusal(scope["step"])

    def test_a_default_is_named(self):
        def step(x, lock=LOCK):
            return x, lock

        assert re.search(r"got default of parameter 'lock' of \S*step: a _th", refusal(step, 1))

    def test_what_a_partial_holds_is_named(self):
        said = refusal(functools.partial(train_step, 1, LOCK))
        assert "got argument 'scale' (args[1]): a _thread.lock" in said

    def test_the_object_of_a_method_is_named(self):
        said = refusal(WithMethod().train)
        assert ", got attribute 'callback' of the object whose method is function With" in said

    def test_a_class_of_a_script_is_named(self):
        class Local:
            lock = LOCK

        said = refusal(train_step, Local())
        assert "got attribute 'lock' of class TestByValue.test_a_class" in said

    @pytest.mark.parametrize("made", ["strategy", "dataset"])
    def test_a_strategy_or_a_dataset_of_it(self, made):
        value = strategy = tdi.OneDeviceStrategy("cpu")
        if made == "dataset":
            value = strategy.distribute_dataset(torch.arange(4), global_batch_size=2)
        said = refusal(train_step, value)
        assert "got argument 'features' (args[0]): a torch_distinput.distribute." in said
        assert "Call tdi.get_strategy() on the worker, inside of the function." in said

    def test_a_value_that_contains_itself(self):
        loop: list = [LOCK]
        loop.insert(0, loop)
        assert "got item 1 of argument 'features' (args[0]): a _th" in refusal(train_step, loop)

    def test_a_value_that_refuses_by_itself(self):
        """Its attributes are none of the reader's business."""

        class Refuses:
            lock = LOCK

            def __reduce__(self):
                raise ValueError("not this one")

        assert ".Refuses (not this one). Make it" in refusal(train_step, Refuses())


@pytest.mark.usefixtures("by_name")
class TestByName:
    def test_a_call_comes_back(self):
        function, args, kwargs = pickle.loads(pickling.dumps_call(train_step, (2,), {"scale": 5}))
        assert 10 == function(*args, **kwargs)

    def test_a_lambda_is_refused(self):
        said = refusal(lambda: torch.ones(LOCK))
        assert re.search(r"Expected closure \S+<lambda> to be picklable, .*, got function ", said)
        assert AT_TOP in said

    def test_a_lambda_inside_of_an_argument_is_named(self):
        said = refusal(train_step, 1, State(lambda x: x))
        assert "got attribute 'lock' of argument 'scale' (args[1]): a function (" in said
        assert AT_TOP in said

    def test_a_class_inside_of_a_function_is_named(self):
        class Local:
            pass

        said = refusal(train_step, Local())
        assert "got class TestByName.test_a_class_inside_of_a_function_is_named.Local: a t" in said
        assert AT_TOP in said

    def test_an_argument_is_named(self):
        said = refusal(train_step, 1, State(LOCK))
        assert "got attribute 'lock' of argument 'scale' (args[1]): a _thread.lock (" in said


def test_the_error_of_pickle_is_the_cause():
    with pytest.raises(TypeError) as caught:
        pickling.dumps(State(LOCK), "the dataset_fn")
    assert "cannot pickle '_thread.lock' object" == str(caught.value.__cause__)
    assert "Expected the dataset_fn to be picklable" in str(caught.value)


def test_cloudpickle_comes_first(monkeypatch):
    """Then Ray's, where Ray is imported anyway, and pickle itself."""
    monkeypatch.setitem(sys.modules, "cloudpickle", functools)
    monkeypatch.setattr(pickling, "_has_cloudpickle", lambda: True)
    assert pickling.by_value() is functools
    monkeypatch.setattr(pickling, "_has_cloudpickle", lambda: False)
    monkeypatch.setitem(sys.modules, "ray", functools)
    monkeypatch.setitem(sys.modules, "ray.cloudpickle", inspect := importlib)
    assert pickling.by_value() is inspect
    monkeypatch.delitem(sys.modules, "ray")
    assert pickling.by_value() is pickle


@pytest.mark.parametrize("by", ["by_value", "by_name"])
@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.float32, torch.bool]
)
def test_tensors_of_all_dtypes(request, by, dtype):
    """Some of them torch pickles, but cannot load: alone, and in an object."""
    request.getfixturevalue(by)
    value = torch.tensor([0, 1, 1]).to(dtype)
    _, (found,), _ = pickle.loads(pickling.dumps_call(train_step, (value,), {}))
    held = pickle.loads(pickle.dumps(pickling.ByValue({"x": value})))["x"]
    for one in (found, held):
        assert value.dtype == one.dtype
        assert torch.equal(value.view(torch.uint8), one.view(torch.uint8))
