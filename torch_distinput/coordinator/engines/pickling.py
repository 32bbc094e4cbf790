"""Pickles what users hand over: by cloudpickle where it is there, which takes lambdas too."""

from __future__ import annotations

import importlib
import pickle
import sys
from importlib.util import find_spec
from typing import Any


def dumps(value: Any) -> bytes:
    """Pickle what a user hands over, such as a function with its arguments.

    With cloudpickle, or Ray's copy of it, functions of scripts and notebooks travel by value.
    """
    pickled: bytes = by_value().dumps(value)
    return pickled


def by_value() -> Any:
    """The module to pickle by: ``pickle`` itself where no other is there."""
    if find_spec("cloudpickle") is not None:
        return importlib.import_module("cloudpickle")
    return importlib.import_module("ray.cloudpickle") if "ray" in sys.modules else pickle
