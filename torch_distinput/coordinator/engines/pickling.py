"""Pickles what users hand over: by cloudpickle where it is there, which takes lambdas too."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any, final

import torch

import torch_distinput as tdi
from torch_distinput.coordinator.engines import unpicklable
from torch_distinput.coordinator.engines.unpicklable import Found, LabelledParts
from torch_distinput.data.batch.serialized import pickle_value, reduce_tensor
from torch_distinput.values import Distributed

_OF_TORCH = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
"""Dtypes of tensors that torch pickles and can load; others it only pickles."""
_OF_FUNCTIONS = (
    "Define it at the top of a module, or install what pickles functions by value: "
    "pip install 'torch_distinput[coordinator]'."
)
_OF_STRATEGIES = (
    "It belongs to this process. Call tdi.get_strategy() on the worker, inside of the function."
)
_OF_OTHERS = (
    "Make it inside of the function, which runs in the other process, or pass what it is made from."
)


def dumps(value: Any, name: str) -> bytes:
    """Pickle what a user hands over, to be opened by ``pickle.loads`` in another process.

    With cloudpickle, or Ray's copy of it, functions of scripts and notebooks travel by value.

    Args:
        value: a function, in most cases.
        name: what it is, for the message.

    Raises:
        TypeError: it cannot be pickled: names what in it cannot, where that is, and the cure.
    """
    return _pickled(value, name, iter([(name, value)]))


def dumps_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle ``(function, args, kwargs)``; raises as :func:`dumps`, and names the argument."""
    places = unpicklable.arguments(function, args, kwargs)
    return _pickled((function, args, kwargs), f"closure {unpicklable.name_of(function)}", places)


@final
class ByValue:
    """Stands for a value in a pickle, with its classes; what is opened is the value itself."""

    def __init__(self, value: Any) -> None:
        """Pickle the value; raises what that does."""
        self._pickled = dump_by_value(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


def _pickled(value: Any, name: str, places: LabelledParts) -> bytes:
    try:
        return dump_by_value(value)
    except Exception as error:
        found = (unpicklable.find_unpicklable(*place, by_value()) for place in places)
        first = next(filter(None, found), Found(place=name, value=value, error=error))
        msg = (
            f"Expected {name} to be picklable, since another process runs it, got {first.place}: "
            f"{_said(first)}. {_cure(first.value)}"
        )
        raise TypeError(msg) from error


def dump_by_value(value: Any) -> bytes:
    """Pickle a value with its functions and classes; raises whatever that does."""
    module = by_value()
    if module is pickle:
        return pickle_value(value)
    file = io.BytesIO()
    _make_pickler(module)(file).dump(value)
    return file.getvalue()


@cache
def _make_pickler(module: Any) -> Any:
    class TensorPickler(module.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dtype not in _OF_TORCH:
                return reduce_tensor(value)
            return super().reducer_override(value)

    return TensorPickler


def _said(found: Found) -> str:
    kind = type(found.value)
    whose = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    return f"a {whose}{kind.__qualname__} ({found.error})"


def _cure(value: Any) -> str:
    if isinstance(value, (tdi.Strategy, Distributed)):
        return _OF_STRATEGIES
    return _OF_FUNCTIONS if isinstance(value, (FunctionType, type)) else _OF_OTHERS


def by_value() -> Any:
    """The module to pickle by: ``pickle`` itself where no other is there."""
    if _has_cloudpickle():
        return importlib.import_module("cloudpickle")
    return importlib.import_module("ray.cloudpickle") if "ray" in sys.modules else pickle


@cache
def _has_cloudpickle() -> bool:
    return find_spec("cloudpickle") is not None
